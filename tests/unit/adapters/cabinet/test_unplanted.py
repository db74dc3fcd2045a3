"""What cannot be planted says why."""

from __future__ import annotations

from pymllm.adapters.cabinet.bugs import BUGS
from pymllm.adapters.cabinet.unplanted import UNPLANTED


def test_every_reason_is_one_clause() -> None:
    """A reader of the page learns what our classes lack."""
    for id, reason in UNPLANTED.items():
        assert id in BUGS
        assert len(reason) > 20
        assert not reason.endswith(".")
