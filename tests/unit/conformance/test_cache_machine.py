"""Entries for other projects: a machine of their adapter, and one call that examines everything."""

from __future__ import annotations

import unittest

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pymllm.adapters.own_caches import WindowedRadix
from pymllm.conformance.cache_machine import cache_machine, check_adapter
from pymllm.conformance.lifecycle_machine import LifecycleMachine
from pymllm.conformance.prefix_machine import PrefixMachine
from pymllm.conformance.row_machine import RowMachine
from pymllm.errors import AdapterError, InvariantViolation, UsageError
from tests.unit.tiny_adapters import KeepsEntries, TinyRows


def test_a_machine_has_a_name_of_its_own_for_each_adapter_and_configuration() -> None:
    """Hypothesis files failing examples under it."""
    small, large = TinyRows.CONFIGURATIONS
    names = {
        cache_machine(TinyRows).__name__,
        cache_machine(TinyRows, dict(large)).__name__,
        cache_machine("rows", dict(small)).__name__,
    }
    assert len(names) == 3
    assert all(name.isidentifier() for name in names)


def test_a_machine_is_of_the_adapters_kind_and_a_test_case() -> None:
    """By class or by name; driven where an engine can drive."""
    machine = cache_machine(TinyRows)
    assert issubclass(machine, RowMachine)
    assert issubclass(machine.TestCase, unittest.TestCase)
    assert dict(machine.CONFIG) == dict(TinyRows.CONFIGURATIONS[0])
    config = next(dict(it) for it in WindowedRadix.CONFIGURATIONS if it["pool"] == "swa")
    assert issubclass(cache_machine("radix-window", config), PrefixMachine)
    assert issubclass(cache_machine(WindowedRadix, config, driven=True), LifecycleMachine)
    with pytest.raises(UsageError, match="no engine can drive rows"):
        cache_machine("rows", driven=True)
    with pytest.raises(AdapterError):
        cache_machine("nowhere:Cache")


def test_what_fails_is_shrunk_and_not_explained() -> None:
    """Whatever else the profile has stays, and its length counts."""
    chosen = cache_machine(TinyRows).TestCase.settings
    assert set(settings.default.phases) - set(chosen.phases) == {Phase.explain}
    assert Phase.shrink in chosen.phases
    assert chosen.stateful_step_count == settings.default.stateful_step_count
    assert chosen.max_examples == settings.default.max_examples


def test_a_wrong_adapter_is_found_by_its_machine() -> None:
    """P2: also a class that no module has at its top."""

    class Local(KeepsEntries):
        pass

    with pytest.raises(InvariantViolation, match="P2"):
        run_state_machine_as_test(cache_machine(Local))
    run_state_machine_as_test(cache_machine(TinyRows))


def test_one_call_examines_everything(tiny: str) -> None:
    """P2: what is wrong is told with the smallest program; what holds is silent."""
    check_adapter(f"{tiny}:TinyRows", examples=30)
    with pytest.raises(AssertionError) as caught:
        check_adapter(f"{tiny}:KeepsEntries", examples=10)
    said = str(caught.value)
    assert "tiny_adapters:KeepsEntries breaks P2" in said
    assert "run_program(" in said


def test_what_was_not_tested_or_examined_is_no_success(tiny: str) -> None:
    """A law that no program tested is unknown, and so is everything of an adapter that breaks down."""
    with pytest.raises(AssertionError, match=r"no program tested .*; give more examples"):
        check_adapter(f"{tiny}:Bare", examples=1)
    with pytest.raises(AssertionError, match="could not be examined to the end"):
        check_adapter(f"{tiny}:LacksSetting")
