"""Importing a package that can do nothing without torch."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_the_import_itself_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with the way out, raised in one place."""
    monkeypatch.delitem(sys.modules, "pymllm.torch_needed", raising=False)
    importlib.import_module("pymllm.torch_needed")  # torch is there: nothing
    monkeypatch.delitem(sys.modules, "pymllm.torch_needed")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"^this part of pymllm needs torch, .*'pymllm\[torch\]'"
    ) as it:
        importlib.import_module("pymllm.torch_needed")
    assert it.value.name == "torch"
