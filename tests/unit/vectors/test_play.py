"""Vectors on our own adapters, which must pass all, and on adapters with a fault, which must not."""

from __future__ import annotations

from collections import Counter

import pytest

from pymllm.adapters.registry import OWN, find_adapter, load_adapter
from pymllm.adapters.simple import SlotAdapter
from pymllm.faults.table import own_cabinet
from pymllm.history.files import Config
from pymllm.history.operations import KINDS, Alloc, Free, Operation, Span
from pymllm.history.outcomes import Done, Outcome, Slots, Unsupported
from pymllm.vectors.format import TWICE, Vector, VectorStep
from pymllm.vectors.make import try_faults
from pymllm.vectors.page import CALLERS, UNSHOWN
from pymllm.vectors.play import find_config, play, play_on
from pymllm.vectors.run import load_all
from tests.unit.vectors.runners import FOLDER

FILES = load_all(FOLDER)
EVERY = {kind: vectors for kind, (_, vectors) in FILES.items()}


def test_there_are_vectors_of_every_kind() -> None:
    """Each kind of implementation has a file, named after it."""
    assert set(EVERY) == set(KINDS) == {path.stem for path in FOLDER.glob("*.jsonl")}


@pytest.mark.parametrize("name", [entry.name for entry in OWN])
def test_our_own_adapters_pass(name: str) -> None:
    """None fails, nor goes another way: they are what the vectors were made with."""
    made = load_adapter(find_adapter(name))
    found = {vector.id: play_on(vector, name, made) for vector in EVERY[made.KIND]}
    assert {it.verdict for it in found.values()} <= {"passed", "skipped"}, found
    assert "passed" in {it.verdict for it in found.values()}


def test_every_vector_is_played_by_one_of_ours() -> None:
    """A vector that all skip says nothing."""
    passed: Counter[str] = Counter()
    for entry in OWN:
        made = load_adapter(entry)
        passed.update(it.id for it in EVERY[made.KIND] if play_on(it, entry.name, made).verdict == "passed")
    assert {it.id for vectors in EVERY.values() for it in vectors} == set(passed)


SAMPLE = ("B01", "B91", "B94", "B116", "B142", "B241", "faulty-one-layer-copies")


def test_planted_faults_are_shown() -> None:
    """A sample of all, one for nearly every kind; -m slow has them all."""
    faults = [fault for fault in own_cabinet() if fault.id in SAMPLE]
    kills = try_faults(EVERY, faults)
    assert frozenset[str]().union(*kills.values()) == set(SAMPLE)


@pytest.mark.slow
def test_nearly_all_faults_of_caches_are_shown() -> None:
    """And each vector shows one; what none shows is listed with its reason, and true."""
    kills = try_faults(EVERY, own_cabinet())
    killed = frozenset[str]().union(*kills.values())
    assert all(kills.values())
    assert killed.isdisjoint({*UNSHOWN, *CALLERS})
    assert len(killed) >= 0.95 * (len(own_cabinet()) - len(CALLERS))


def test_what_is_not_shown_is_a_fault() -> None:
    """The list names nothing that is not there."""
    assert set(UNSHOWN) <= {fault.id for fault in own_cabinet()}


# -- one vector --------------------------------------------------------------------------------------------

GIVEN = {"$of": [{"step": 1, "start": 0, "stop": 2}]}
STEPS = (
    VectorStep(Alloc(2), {"result": {"is": "slots"}, "sizes": {"available_size": 1}}),
    VectorStep(Alloc(1), {"result": {"is": "slots", "slots": {"$may": [9]}}}),
    VectorStep(Free((Span(1, 0, 2),)), {"result": {"is": "done"}, "effects": []}),
)
VECTOR = Vector("it", "A3", "", "ownership", "may", (), {}, STEPS)
GOOD = (Outcome(Slots((4, 5)), sizes={"available_size": 1}), Outcome(Slots((9,))), Outcome(Done()))


@pytest.mark.parametrize(
    ("place", "outcome", "verdict", "step"),
    [
        (0, GOOD[0], "passed", 0),
        (0, Outcome(Slots((4, 5)), sizes={"available_size": 2}), "failed", 1),
        (1, Outcome(Slots((8,))), "other way", 2),
        (2, Outcome(Unsupported("free")), "skipped", 3),
        (2, Outcome(Slots(())), "failed", 3),
    ],
)
def test_a_vector_ends_at_the_first_step_that_decides(
    place: int, outcome: Outcome, verdict: str, step: int
) -> None:
    """With the number of that step."""
    outcomes = [*GOOD[:place], outcome, *GOOD[place + 1 :]]
    asked: list[int] = []

    def apply(number: int, operation: Operation) -> Outcome:
        asked.append(number)
        return outcomes[number - 1]

    played = play(VECTOR, apply)
    assert (played.verdict, played.step) == (verdict, step)
    assert asked == list(range(1, (step or len(STEPS)) + 1))


class _Counting(SlotAdapter):
    """Hands out slots of all its objects together where it is told to."""

    taken = 0
    together = True

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        if not self.together:
            type(self).taken = 0

    def claim(self) -> set[str]:
        return {"pool"}

    def alloc(self, tokens: int) -> list[int]:
        type(self).taken += tokens
        return list(range(type(self).taken - tokens, type(self).taken))


@pytest.mark.parametrize(("together", "verdict"), [(False, "passed"), (True, "failed")])
def test_twice_is_played_on_a_second_object(
    together: bool, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers must be those of the first, to the last number."""
    monkeypatch.setattr(_Counting, "together", together)
    monkeypatch.setattr("pymllm.vectors.play.build_adapter", _Counting)
    step = VectorStep(Alloc(2), {"result": {"is": "slots"}})
    vector = Vector("it", "X3", "", "observable", "must", ("pool", TWICE), {}, (step, step))
    played = play_on(vector, "counting", _Counting)
    assert (played.verdict, played.step, played.where) == (
        verdict,
        1 if together else 0,
        "result" if together else "",
    )


OWN_CONFIGURATIONS = (
    {"page_size": 1, "window": None, "pool": "token", "slots": 24},
    {"page_size": 4, "window": 4, "pool": "swa", "slots": 24, "swa_slots": 18, "check_ownership": False},
)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"page_size": 1, "window": None, "pool": "token", "slots": 3}, True),
        ({"page_size": 2, "window": 6, "pool": "swa", "slots": 3, "swa_slots": 2}, True),
        ({"page_size": 2, "window": 6, "pool": "swa", "slots": 3}, True),
        ({"page_size": 1, "window": 6, "pool": "token", "slots": 3}, False),
        ({"page_size": 1, "window": None, "pool": "none"}, False),
        ({"page_size": 1, "window": None, "pool": "token", "slots": 3, "track_slots": 2}, False),
        ({"page_size": 1, "window": None, "pool": "token", "slots": 3, "policy": "lfu"}, True),
    ],
)
def test_a_configuration_must_be_of_a_form_that_the_adapter_has(
    config: dict[str, int | str | bool | None], found: bool
) -> None:
    """Numbers are the vector's; a decision that the adapter has made otherwise, or not at all, is none."""
    chosen = find_config(config, OWN_CONFIGURATIONS)
    assert (chosen is not None) is found
    assert chosen is None or config.items() <= chosen.items()


def test_an_adapter_without_pages_builds_none() -> None:
    """Nor does one that has only pages of several tokens build pages of one."""
    for own, other in ((1, 4), (4, 1)):
        assert find_config({"page_size": other}, ({"page_size": own},)) is None
        assert find_config({"page_size": own}, ({"page_size": own},)) == {"page_size": own}


def test_an_adapter_has_made_no_decision_that_a_vector_does_not_know() -> None:
    """Such as to keep nothing."""
    own = {"page_size": 1, "retains": False}
    assert find_config({"page_size": 1}, (own,)) is None
    assert find_config(own, (own,)) == own
