"""Tests of the search for torch, and of the sentence for its absence."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest

from pymllm.torch_extra import PACKAGES, collector_aside, require_torch, why_no_torch


class _Refusing:
    """A finder of modules that refuses some, as a test or an embedding program may."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in PACKAGES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_nothing_is_said_where_both_are_there() -> None:
    """The gate has them."""
    assert why_no_torch() is None
    require_torch("nobody")


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        (["torch"], "needs torch, which is not installed; pip install 'pymllm[torch]' brings it"),
        (["numpy"], "needs numpy, which is not installed; pip install 'pymllm[torch]' brings it"),
        (
            ["torch", "numpy"],
            "needs torch and numpy, which are not installed; pip install 'pymllm[torch]' brings them",
        ),
    ],
)
def test_what_is_missing_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, missing: list[str], sentence: str
) -> None:
    """One line, and an ImportError that programs can tell by its name."""
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    assert why_no_torch() == sentence
    with pytest.raises(ModuleNotFoundError) as caught:
        require_torch("a cache")
    assert str(caught.value) == f"a cache {sentence}"
    assert caught.value.name == missing[0]


def test_a_finder_that_refuses_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module finder that raises an error counts as a missing package."""
    for name in PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Refusing(), *sys.meta_path])
    assert "torch and numpy" in str(why_no_torch())


def test_a_module_that_was_made_by_hand_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in of a test has no specification, and is what an import will get."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert why_no_torch() is None


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_stands_aside_while_torch_is_loaded(
    monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    """The collector is off while torch is loaded; then garbage is frozen and the old state returns."""
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    try:
        if not is_on:
            gc.disable()
        with collector_aside():
            assert not gc.isenabled()
            assert not frozen
        assert (gc.isenabled(), frozen) == (is_on, [False])
    finally:
        gc.enable()


def test_the_collector_stays_where_torch_was_loaded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command in a process that has loaded torch leaves its collector on, and freezes nothing."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    frozen = gc.get_freeze_count()
    with collector_aside():
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
