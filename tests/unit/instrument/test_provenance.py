"""Which source a figure is of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pymllm
from pymllm.instrument import provenance as module
from pymllm.instrument.provenance import build_version


def test_a_change_of_the_source_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X3: runs of different code are no duplicates."""
    package = tmp_path / "pymllm"
    (package / "instrument").mkdir(parents=True)
    shutil.copy(pymllm.__file__, package / "__init__.py")
    monkeypatch.setattr(module, "__file__", str(package / "instrument" / "provenance.py"))
    before = build_version.__wrapped__()
    assert before == build_version.__wrapped__()
    assert before.startswith(f"{pymllm.__version__}+")
    (package / "more.py").write_text("", encoding="utf-8")
    assert build_version.__wrapped__() != before
