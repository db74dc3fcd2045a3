"""Wrappers that nobody can tell from what they wrap."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pymllm.adapters.base import Adapter
from pymllm.adapters.registry import OWN, make_adapter
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.machines import load_machine, machines_for
from pymllm.conformance.program import play_steps
from pymllm.history.files import History, load_history
from pymllm.instrument.recorder import AdapterWrapper, Recorder, layers
from pymllm.instrument.timing import Timing


def recorded(name: str, seed: int = 3, steps: int = 40) -> History:
    """A program that a machine makes for an adapter, with its outcomes."""
    adapter = make_adapter(name)
    entry = next(iter(machines_for(adapter.kind, adapter.capabilities)))
    return drive(make_machine(load_machine(entry), name, adapter.config), seed, steps).examiner.history


@pytest.mark.parametrize("name", [entry.name for entry in OWN])
def test_instruments_in_any_order_change_nothing(name: str, tmp_path: Path) -> None:
    """Outcomes and audits under a recorder and a timer are those without, for every own adapter."""
    history = recorded(name)
    bare = make_adapter(name)
    for order in itertools.permutations(["record", "time"]):
        adapter: Adapter = make_adapter(name)
        for number, kind in enumerate(order):
            adapter = Timing(adapter) if kind == "time" else Recorder(adapter, tmp_path / f"{number}.jsonl")
        examiner = Examiner(adapter)
        play_steps(examiner, ((step.number, step.operation) for step in history.steps))
        adapter.close()
        assert examiner.history.steps == history.steps
        assert load_history(next(tmp_path.iterdir())).steps == history.steps
        assert (adapter.name, adapter.kind, adapter.config) == (bare.name, bare.kind, bare.config)
        assert adapter.capabilities == bare.capabilities
        for path in tmp_path.iterdir():
            path.unlink()


def test_layers_lead_from_the_outside_to_the_adapter() -> None:
    """Whoever holds a stack finds the timer in it."""
    inside = make_adapter("token-slots")
    timing = Timing(inside)
    outside = AdapterWrapper(timing)
    assert list(layers(outside)) == [outside, timing, inside]
    assert list(layers(inside)) == [inside]


def test_a_wrapper_hands_audit_and_close_on() -> None:
    """A process behind an adapter ends with the outermost wrapper."""
    told = []

    class Telling(AdapterWrapper):
        def audit(self) -> tuple[str, ...]:
            told.append("audit")
            return ("A1",)

        def close(self) -> None:
            told.append("close")

    stack = AdapterWrapper(Timing(Telling(make_adapter("token-slots"))))
    assert stack.audit() == ("A1",)
    stack.close()
    assert told == ["audit", "close"]


def test_what_is_no_adapter_is_refused() -> None:
    """When it is wrapped, not when it is used; what is missing is named (X1)."""
    with pytest.raises(TypeError, match=r"adapter must have name, kind, .* got None; make_adapter of"):
        Timing(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got 'radix'"):
        AdapterWrapper("radix")  # type: ignore[arg-type]
