"""The judge made from a header, and recorded outcomes judged without the implementation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pymllm.errors import ProgramError
from pymllm.history.files import Header, Step
from pymllm.history.operations import KINDS, Alloc, Free, Span
from pymllm.history.outcomes import Done, Outcome, Slots
from pymllm.oracle.judge import judge_steps, make_judge
from tests.unit.oracle.verdict_book import read_corpus

HEADER = Header("mine", "slots", {"page_size": 1, "pages": 4}, ("pool",))
STEPS = [
    Step(1, Alloc(2), Outcome(Slots((1, 2)), (), {"available_size": 2})),
    Step(4, Free((Span(1, 0, 1),)), Outcome(Done(), (), {"available_size": 3})),
    Step(5, Alloc(3), Outcome(Slots((3, 4, 1)), (), {"available_size": 0})),
]


def test_every_kind_has_a_judge() -> None:
    """A header that can be read can be judged."""
    config: dict[str, int | str | bool | None] = {
        **{"page_size": 1, "pages": 4, "max_reqs": 2, "max_context_len": 4, "size": 4, "layers": 1},
        **{"k_heads": 1, "k_dim": 1, "v_heads": 1, "v_dim": 1, "dtype": "int64", "conv_dim": 1, "kernel": 2},
        **{"track_slots": 1, "slots": 4, "pool": "token", "window": None, "swa_slots": 4},
        **{"blocks": 4, "policy": "lru"},
        **{"max_requests": 2, "num_blocks": 4, "max_blocks": 2, "paused_limit": 0, "block_size": 2},
        **{"chunk_size": 2, "mamba_slots": 0, "conv_width": 1, "ssm_width": 1},
    }
    for kind in KINDS:
        assert not make_judge(Header("mine", kind, config, ("callbacks", "pool"))).evidence.exercised


def test_an_unknown_kind_is_refused() -> None:
    """X1: with the kinds that there are."""
    with pytest.raises(ProgramError, match="kind is 'kettle'; it must be one of slots, rows"):
        make_judge(Header("mine", "kettle"))


def test_a_good_history_is_evidence() -> None:
    """Each law that was tested is counted, and no violation is found."""
    evidence, found = judge_steps(HEADER, STEPS)
    assert found is None
    assert evidence.exercised["A2"] >= 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_that_is_left_out_accuses_nobody(kind: str) -> None:
    """X3: neither one, nor all but one, nor all; inside of callbacks and after them; and none tests more."""
    for name, history in read_corpus().items():
        if history.header.kind != kind:
            continue
        counted = judge_steps(history.header, history.steps)[0].exercised
        names = {size for step in history.steps for size in _sizes_of(step)}
        for told in (set(), *({size} for size in names), *(names - {size} for size in names)):
            evidence, found = judge_steps(history.header, [_telling(told, step) for step in history.steps])
            assert found is None, f"{name}, told {told}: {found}"
            assert evidence.exercised <= counted


def _sizes_of(step: Step) -> set[str]:
    assert step.outcome is not None
    return {*step.outcome.sizes, *(name for effect in step.outcome.effects for name in effect.sizes)}


def _telling(names: set[str], step: Step) -> Step:
    """Leave out of a step's outcome all sizes but some."""
    assert step.outcome is not None
    effects = tuple(replace(effect, sizes=_only(names, effect.sizes)) for effect in step.outcome.effects)
    sizes = _only(names, step.outcome.sizes)
    return replace(step, outcome=replace(step.outcome, effects=effects, sizes=sizes))


def _only(names: set[str], sizes: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if name in names}


def test_the_step_that_breaks_a_law_is_named() -> None:
    """A2: slot 2 is handed out twice; what came after does not matter."""
    spoiled = replace(STEPS[2], outcome=Outcome(Slots((3, 4, 2)), (), {"available_size": 0}))
    _, found = judge_steps(HEADER, [*STEPS[:2], spoiled, Step(9, Alloc(1), None)])
    assert found is not None
    assert (found[0].number, found[1].law) == (5, "A2")


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([*STEPS[:2], Step(6, Alloc(1))], "step 6: it has no outcome"),
        ([replace(STEPS[1], number=2)], "step 2: "),
    ],
)
def test_a_program_that_cannot_be_judged_is_refused(steps: list[Step], says: str) -> None:
    """X1: a step without an outcome, or one that names what was never given."""
    with pytest.raises(ProgramError) as caught:
        judge_steps(HEADER, steps)
    assert str(caught.value).startswith(says)


def test_nothing_is_known_of_an_empty_program() -> None:
    """No evidence and no violation."""
    evidence, found = judge_steps(HEADER, [])
    assert (not evidence.exercised, found) == (True, None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_without_bounds_has_no_judge(kind: str) -> None:
    """X1: it would never be made."""
    with pytest.raises(ProgramError, match="slots is 1,000,000,000,000; at most it is 1,048,576"):
        make_judge(Header("mine", kind, {"slots": 10**12}))
