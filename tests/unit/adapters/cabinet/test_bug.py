"""What a bug says about itself."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from pymllm.adapters.cabinet.bug import COMMIT, Bug


def test_a_bug_is_a_record() -> None:
    """The version is empty where nobody knows it, and nobody changes what stands there."""
    bug = Bug("B1", "Something is wrong", "engine", ("https://x",), "So.", "That.", COMMIT)
    assert bug.version == ""
    with pytest.raises(FrozenInstanceError):
        bug.title = "else"  # type: ignore[misc]
