"""Wrong implementations: what they have in common; tests/meta lets each be caught by its law."""

from __future__ import annotations

import inspect
import pickle

import pytest

from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import OWN, find_adapter, load_adapter, make_adapter
from pymllm.faults import adapters
from pymllm.faults.adapters import FAULTY, Faulty
from pymllm.history import operations as ops
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator
from pymllm.oracle.laws import find_law

each_entry = pytest.mark.parametrize("entry", FAULTY, ids=lambda entry: entry.name)

Program = tuple[ops.Operation, ...]


def class_of(name: str) -> type[Faulty]:
    found = load_adapter(find_adapter(name))
    assert issubclass(found, Faulty)
    return found


def config_of(name: str) -> dict[str, int | str | bool | None]:
    """Its first configuration."""
    return dict(class_of(name).CONFIGURATIONS[0])


@each_entry
def test_it_breaks_a_law_that_its_sound_sibling_claims(entry: AdapterEntry) -> None:
    """An accusation of a law that nobody promised to keep would prove nothing."""
    faulty, law = load_adapter(entry), find_law(class_of(entry.name).BREAKS)
    assert faulty.KIND in law.kinds
    for config in faulty.CONFIGURATIONS:
        assert law.is_claimed_by(make_adapter(class_of(entry.name).SOUND, dict(config)).capabilities)


@each_entry
def test_it_is_its_sound_sibling_but_for_the_fault(entry: AdapterEntry) -> None:
    """It claims the same in configurations of the same class, and is not looked into.

    Strangers claim less: their windows are followed (S1, S2, S3, S5).
    """
    unclaimed = {"exact_windows", "exact_lru", "faults"} if "-followed-" in entry.name else set()
    sibling = find_adapter(class_of(entry.name).SOUND)
    assert sibling in OWN
    assert load_adapter(entry).CONFIGURATIONS
    for config in load_adapter(entry).CONFIGURATIONS:
        assert config in load_adapter(sibling).CONFIGURATIONS
        wrong, right = make_adapter(entry.name, dict(config)), make_adapter(sibling.name, dict(config))
        assert (wrong.kind, wrong.capabilities) == (right.kind, right.capabilities - unclaimed)
        assert wrong.audit() == ()


@each_entry
def test_the_registry_says_what_is_wrong(entry: AdapterEntry) -> None:
    """One line, the same as in the class."""
    assert inspect.getdoc(load_adapter(entry)) == f"{entry.summary[0].upper()}{entry.summary[1:]}."


def test_a_fault_is_in_place_only_while_its_adapter_works() -> None:
    """X3: a sound adapter beside it, and whoever uses the class itself, meets the sound code."""
    config = config_of("faulty-slot-zero")
    wrong, right = make_adapter("faulty-slot-zero", config), make_adapter("token-slots", config)
    operation = ops.Alloc(1)
    slots = [it.apply(1, operation).result.slots for it in (wrong, right, wrong)]  # type: ignore[union-attr]
    assert [min(each) for each in slots] == [0, 1, 1]
    assert TokenToKVPoolAllocator(4, "cpu").alloc(1).tolist() == [1]  # type: ignore[union-attr]


def test_a_class_has_the_name_of_its_fault() -> None:
    """It is made once, and another process finds it by that name."""
    assert pickle.loads(pickle.dumps(class_of("faulty-slot-zero"))) is adapters.SlotZero
    with pytest.raises(AttributeError, match="no attribute 'Sound'"):
        _ = adapters.Sound


ONE = ops.Span(1, 0, 1)
WITH_STATE: Program = (ops.AllocBlocks(2), ops.AllocSlots((ONE,)))


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("faulty-early-observer", (ops.AllocBlocks(1), ops.Fault("callback"), ops.ReleaseBlocks((ONE,)))),
        ("faulty-requests-as-rows", (*WITH_STATE, ops.RestoreLive(3, ONE))),
        ("faulty-requests-as-rows", (ops.AllocBlocks(1), ops.RestoreLive(0, ONE))),
    ],
)
def test_the_rest_of_it_is_as_it_should_be(name: str, program: Program) -> None:
    """One fault each: errors pass through, and misuse is refused."""
    last = []
    for adapter in (make_adapter(each, config_of(name)) for each in (name, class_of(name).SOUND)):
        result = [adapter.apply(step, operation) for step, operation in enumerate(program, 1)][-1].result
        last.append(getattr(result, "error", result))
    assert last[0] == last[1]
