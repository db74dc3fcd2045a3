"""Names that stand in for modules while others are imported, and are gone afterwards."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pymllm.adapters.stand_ins import standing_in

FILES = {
    "made_up_server/__init__.py": "raise ImportError('its own __init__ must not run')",
    "made_up_server/pool.py": """
import logging
import made_up_kernels.fast as fast
from made_up_server.metrics import Collector

logging.getLogger(__name__).warning("no kernels")

class Pool(Collector):
    pass
""",
}


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that imports kernels which nobody has, and metrics of its own."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("made_up_")]:
        del sys.modules[name]


@pytest.mark.usefixtures("made_up")
def test_only_the_stand_ins_of_the_kept_package_stay(caplog: pytest.LogCaptureFixture) -> None:
    """Modules of that package go on importing each other; everybody else finds no kernels."""
    before = list(sys.meta_path)
    with standing_in(["made_up_kernels", "made_up_server.metrics"], ["made_up_server"], "made_up_server"):
        pool = importlib.import_module("made_up_server.pool")
    assert isinstance(pool.Pool(), pool.Pool)
    assert sys.meta_path == before
    assert "made_up_server.metrics" in sys.modules
    assert not {"made_up_kernels", "made_up_kernels.fast"} & set(sys.modules)
    assert not caplog.records
    assert logging.getLogger().manager.disable == logging.NOTSET
    with pytest.raises(RuntimeError, match="launch is a stand-in"):
        pool.fast.launch(1, 2)


def test_a_package_that_is_not_there_is_named() -> None:
    """Nothing is left in its place."""
    before = list(sys.meta_path)
    with (
        pytest.raises(ImportError, match="made_up_nowhere is no package"),
        standing_in([], ["made_up_nowhere"], "made_up_nowhere"),
    ):
        raise AssertionError("never entered")
    assert sys.meta_path == before
