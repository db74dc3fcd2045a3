"""Tests of judges of all kinds: evidence, numbers by step, whole programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import Deviation, Header, Step, load_histories
from pymllm.history.operations import KINDS, Alloc, Free, RunStep, Span
from pymllm.history.outcomes import Done, Failed, Outcome, Slots
from pymllm.history.spans import GivenNumbers
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.judge import judge_steps, make_judge
from pymllm.oracle.laws import laws_of
from pymllm.oracle.models.block_model import BlockModel
from pymllm.oracle.models.slot_model import Remainder
from tests.unit.oracle.recorded import read_corpus

# -- The judge made from a header, and recorded outcomes judged without the implementation -------------------


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


WRONG = {
    "A2": Step(6, Free((Span(1, 1, 2),)), Outcome(Done(), (), {"available_size": 9})),
    "A5": Step(6, Free((Span(1, 0, 1),)), Outcome(Failed("ValueError", "twice"), (), {"available_size": 3})),
    "A1": Step(6, Alloc(1), Outcome(Slots((0,)), (), {"available_size": 0})),
}
"""After two slots were handed out and one came back: a size, the name of an error, and slot 0."""


@pytest.mark.parametrize("law", WRONG)
def test_what_is_known_may_count_as_right(law: str) -> None:
    """A known deviation counts as right only for its own law, and only if it does not end a program."""
    header = replace(HEADER, capabilities=("pool", "refusals"))
    for then, other in (("end", law), ("go on", "X3"), ("go on", law)):
        known = Deviation("it", other, "because", then=then)
        judge = make_judge(replace(header, deviations=(known,)))
        for step in STEPS[:2]:
            assert step.outcome is not None
            judge.judge(step.number, step.operation, step.outcome)
        assert WRONG[law].outcome is not None
        if then == "go on" and other == law and law != "A1":  # page 0 is not the pool's to give
            judge.judge(6, WRONG[law].operation, WRONG[law].outcome)
            assert judge.evidence.known == {"it": 1}
            continue
        with pytest.raises(InvariantViolation) as broken:
            judge.judge(6, WRONG[law].operation, WRONG[law].outcome)
        assert broken.value.law == law


PROGRAMS = sorted((Path(__file__).parents[3] / "docs/specification/programs").glob("*.jsonl"))


def test_what_cannot_be_followed_ends_a_program() -> None:
    """A deviation after which the state is unknown ends a program; the judge goes on after others."""
    ended, followed = set(), set()
    for name, history in (it for path in PROGRAMS for it in load_histories(path).items()):
        law, _, verb = name.partition("-")
        if verb == "keeps":
            continue
        listed = tuple(Deviation(law.id, law.id, "so", then="go on") for law in laws_of(history.header.kind))
        _, found = judge_steps(replace(history.header, deviations=listed), history.steps)
        (followed if found is None else ended).add(law)
    assert {"R3", "R5", "S3", "C1"} <= ended
    assert {"A4", "R7"} <= followed


CORPUS = read_corpus()


def test_no_program_of_the_corpus_is_accused() -> None:
    """Every program that sound implementations did breaks no law."""
    accused = {name for name, history in CORPUS.items() if judge_steps(history.header, history.steps)[1]}
    assert accused == set()
    assert {history.header.kind for history in CORPUS.values()} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_that_is_left_out_accuses_nobody(kind: str) -> None:
    """X3: neither one, nor all but one, nor all; inside of callbacks and after them; and none tests more."""
    for name, history in CORPUS.items():
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


# -- Evidence: what passed is counted, what failed is refused with both sides --------------------------------


@pytest.fixture
def evidence() -> Evidence:
    return Evidence()


def test_a_test_that_passes_is_counted(evidence: Evidence) -> None:
    """A law is known to hold only as often as it was tested."""
    evidence.count("R2", "E1")
    evidence.count("R2")
    assert evidence.exercised == {"R2": 2, "E1": 1}


def test_what_differs_is_refused_with_both_sides(evidence: Evidence) -> None:
    """A violation holds both sides: the expected and the observed value."""
    with pytest.raises(InvariantViolation) as caught:
        evidence.refuse("R2", "length", 4, [1, 2])
    violation = caught.value
    assert (violation.law, violation.message, violation.expected, violation.observed) == (
        "R2",
        "length",
        "4",
        "[1, 2]",
    )
    assert not evidence.exercised


@pytest.mark.parametrize(
    ("outcome", "observed"),
    [(Outcome(Done()), "no error, Done()"), (Outcome(Failed("KeyError", "x")), "KeyError")],
)
def test_a_call_that_is_not_refused_as_it_must_is(outcome: Outcome, observed: str) -> None:
    """X1: neither success nor another error will do."""
    judge = make_judge(replace(HEADER, capabilities=("pool", "refusals")))
    with pytest.raises(InvariantViolation) as caught:
        judge.judge(1, Free((Span(0, -1, 0),)), outcome)
    assert caught.value.expected == "OwnershipError"
    assert caught.value.observed == observed


def test_a_long_value_is_shortened(evidence: Evidence) -> None:
    """A violation can be read on a screen."""
    with pytest.raises(InvariantViolation) as caught:
        evidence.refuse("R2", "slots", list(range(1000)), [])
    assert caught.value.expected is not None
    assert len(caught.value.expected) == 400


def test_a_goal_counts_only_when_it_was_met(evidence: Evidence) -> None:
    """The condition may be any truth value."""
    evidence.meet("halves move")
    evidence.meet("halves move", [1])
    evidence.meet("memory runs out", 0)
    assert evidence.reached == {"halves move": 2}


def test_a_goal_that_is_not_registered_is_not_counted(evidence: Evidence) -> None:
    """A name with a slip in it would stay at zero for ever, and nobody would wonder."""
    with pytest.raises(ValueError, match="no coverage goal 'halfs move'; register it"):
        evidence.meet("halfs move")
    assert not evidence.reached


def test_a_long_name_of_what_was_looked_at_is_shortened(evidence: Evidence) -> None:
    """A call may name a million slots."""
    with pytest.raises(InvariantViolation) as caught:
        evidence.refuse("A2", "x" * 10_000, 1, 2)
    assert len(caught.value.message) == 400


# -- Numbers by the steps that gave them, and back -----------------------------------------------------------


@pytest.fixture
def given() -> GivenNumbers:
    """Step 1 gave 5, 6, 7; step 3 gave 6 again and 9."""
    made = GivenNumbers()
    made.record(1, (5, 6, 7))
    made.record(3, (6, 9))
    return made


def test_spans_name_places_of_an_answer(given: GivenNumbers) -> None:
    """A span names numbers of a step, even where a later step gave them again."""
    assert given.resolve([Span(1, 1, 3), Span(3, 0, 2), Span(1, 0, 0)]) == [6, 7, 6, 9]


def test_step_0_names_the_numbers_themselves(given: GivenNumbers) -> None:
    """A program names negative numbers, and numbers that no step gave, by step 0."""
    assert given.resolve([Span(0, -1, 2)]) == [-1, 0, 1]


@pytest.mark.parametrize("span", [Span(1, 0, 4), Span(1, 2, 1), Span(2, 0, 1), Span(1, -1, 1)])
def test_a_place_that_a_step_did_not_give_makes_no_sense(given: GivenNumbers, span: Span) -> None:
    """The message says how many there were."""
    with pytest.raises(ProgramError, match=f"gave {3 if span.step == 1 else 0} numbers"):
        given.resolve([span])


def test_names_are_as_few_spans_as_possible(given: GivenNumbers) -> None:
    """The latest step that gave a number names it; one that none gave is its own name."""
    numbers = [5, 6, 9, 7, 5, 40, 41]
    spans = given.name(numbers)
    assert spans == (Span(1, 0, 1), Span(3, 0, 2), Span(1, 2, 3), Span(1, 0, 1), Span(0, 40, 42))
    assert given.resolve(spans) == numbers


def test_the_origin_is_the_step_that_gave_a_number_last(given: GivenNumbers) -> None:
    """0 stands for none."""
    assert [given.origin(number) for number in (5, 6, 40)] == [1, 3, 0]


def test_what_a_program_can_name_of_a_page_its_first_number_was_given_with(given: GivenNumbers) -> None:
    """Numbers of a page that no step gave, or that an earlier or a later step gave, are left out."""
    assert [given.given_with_first(page) for page in ((5, 6, 7, 8), (6, 7), (9, 10), (8, 9))] == [
        [5, 7],
        [6],
        [9],
        [8],
    ]


def test_a_span_without_end_is_refused() -> None:
    """X1: a spoiled file takes no memory."""
    with pytest.raises(ProgramError, match="makes more than 1,000,000 numbers of one list"):
        GivenNumbers().resolve([Span(0, 0, 10**12)])


def test_many_spans_are_refused_as_one_is() -> None:
    """X1: a line of them takes no memory either."""
    with pytest.raises(ProgramError, match="makes more than 1,000,000 numbers of one list"):
        GivenNumbers().resolve([Span(0, 0, 600_000)] * 2)


# -- Whose turn it is ----------------------------------------------------------------------------------------


def test_a_chain_of_cached_blocks_goes_from_its_end() -> None:
    """C1: behind each victim its parent may go; the oldest first, and the lowest of equals."""
    model = BlockModel(5, "lru", is_caching=True)
    model.take(range(5))
    model.register(model.plan_registration((0, 1, 2), (7, 8, 9), None))
    model.register(model.plan_registration((3,), (4,), None))
    model.release(range(5))
    assert [{*leaves} for leaves in model.turns((2, 1))] == [{2, 3}, {1, 3}, {0, 3}]
    assert model.least_recent(4) == [2, 1, 0, 3]
    assert model.least_recent(2, keep=[1]) == [2, 3]
    model.stamps[3] = -1
    assert model.least_recent(2) == [3, 2]


# -- What is left of a range ---------------------------------------------------------------------------------


@pytest.fixture
def left() -> Remainder:
    made = Remainder(range(1, 8))
    made.take([2, 5, 6])
    made.give([6])
    return made


def test_it_is_a_set(left: Remainder) -> None:
    """Of the numbers that are not gone, in order."""
    assert ([*left], [*reversed(left)], len(left)) == ([1, 3, 4, 6, 7], [7, 6, 4, 3, 1], 5)
    assert left == {1, 3, 4, 6, 7}
    assert left & {4, 5} == {4}
    assert [number in left for number in (0, 1, 2, 8)] == [False, True, False, False]
    assert str(left) == "[1, 3, 4, 6, 7]"


@pytest.mark.parametrize(
    ("numbers", "are_left"), [([], True), ([7, 1], True), ([1, 2], False), ([0, 1], False), ([7, 8], False)]
)
def test_numbers_are_left_or_not(left: Remainder, numbers: list[int], are_left: bool) -> None:
    """None, all, and not those outside."""
    assert left.issuperset(numbers) == are_left
    assert (left.intersection(numbers) == {*numbers}) == are_left


def test_it_costs_what_is_gone() -> None:
    """Of 10**12 numbers it keeps none, and shows the first."""
    gone = {1}
    many = Remainder(range(10**12), gone)
    assert (many.gone is gone, len(many), 10**12 - 1 in many) == (True, 10**12 - 1, True)
    assert str(many).startswith("[0, 2, 3, ")
    assert len(str(many)) < 1_000


@pytest.mark.parametrize("kind", KINDS)
def test_who_asks_for_no_goals_gets_the_same_verdicts(kind: str) -> None:
    """X3: the laws are tested as often, and no coverage goal is told but what is wrong with calls."""
    for history in CORPUS.values():
        if history.header.kind == kind:
            told, _ = judge_steps(history.header, history.steps)
            silent, found = judge_steps(history.header, history.steps, coverage=False)
            assert found is None
            assert silent.exercised == told.exercised
            assert silent.reached <= told.reached
    assert kind == "requests" or silent.reached != told.reached


def test_failures_that_nobody_claims_test_less() -> None:
    """X2: of requests whose calls were let fail, judged as of an adapter that does not claim it."""
    struck = [history for history in CORPUS.values() if history.header.kind == "requests"]
    counted = left = 0
    for history in struck:
        claims = tuple(it for it in history.header.capabilities if it != "faults")
        counted += judge_steps(history.header, history.steps)[0].exercised["X2"]
        evidence, found = judge_steps(replace(history.header, capabilities=claims), history.steps)
        assert found is None
        left += evidence.exercised["X2"]
    assert left < counted


def test_an_operation_of_another_kind_has_no_meaning() -> None:
    """Whichever kind it is."""
    for header in {history.header.kind: history.header for history in CORPUS.values()}.values():
        operation = Alloc(1) if header.kind not in ("slots", "prefix") else RunStep()
        with pytest.raises(ProgramError, match=f"is no operation of kind {header.kind}"):
            make_judge(header).judge(1, operation, Outcome(Done()))
