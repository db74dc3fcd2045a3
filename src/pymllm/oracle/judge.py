"""The judge: runs the laws of an operation over what was seen of it, and lets the model follow.

Which law is named where several are broken:

1. What must be refused is the law's of its misuse, the first one where a call has several.
2. An operation that was not done, or answers with something else, breaks the law of that operation.
3. Then the laws are asked in the order that the kind declares (`pymllm.oracle.laws.law.KindLaws`): the one
   whose text the observation contradicts most directly comes first, and the rest rely on it.
4. What differs and was not touched by this operation is blamed on the one that may have: a refused one (X1),
   one that found no room (X4), a clear (X7). The model remembers which, until nothing of it is left.
5. Sizes come last: a wrong one breaks the law of the operation, unless the size has a law of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.codec import name_of
from pymllm.history.config_limits import check_config
from pymllm.history.files import Header, Step
from pymllm.history.operations import OPERATIONS_OF, Operation
from pymllm.history.outcomes import Outcome, Unsupported
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.laws import laws_of
from pymllm.oracle.laws.law import Asked, Broken, Check, KindLaws, Law
from pymllm.oracle.models.kind_model import DONE, NO_ROOM, REFUSED, STRUCK, KindModel, Seen

_KINDS = {
    "slots": ("pymllm.oracle.models.slots:SlotModel", "pymllm.oracle.laws.slots:SLOTS"),
    "prefix": ("pymllm.oracle.models.prefix:CacheModel", "pymllm.oracle.laws.prefix_kind:PREFIX"),
}
_JUDGES = {
    "rows": "pymllm.oracle.row_judge:RowJudge",
    "buffers": "pymllm.oracle.buffer_judge:BufferJudge",
    "states": "pymllm.oracle.state_judge:StateJudge",
    "hashes": "pymllm.oracle.hash_judge:HashJudge",
    "blocks": "pymllm.oracle.block_judge:BlockJudge",
    "requests": "pymllm.oracle.request_judge:RequestJudge",
}


ModelT = TypeVar("ModelT", bound=KindModel)


class Judge(Protocol):
    """What every judge offers.

    Attributes
    ----------
    evidence : Evidence
        What was tested so far.
    """

    evidence: Evidence

    def judge(self, step: int, operation: Operation, outcome: Outcome) -> None:
        """Judge one step and follow it in the model.

        Raises
        ------
        InvariantViolation
            The outcome breaks a law. The judge is of no further use: its model and the implementation
            have parted.
        ProgramError
            The operation makes no sense here; nothing was judged.
        """

    def check_end(self) -> None:
        """Judge what is left at the end of a program; `InvariantViolation` as of `judge`."""


def make_judge(header: Header) -> Judge:
    """Make the judge of a history from its header alone: kind, configuration and capabilities.

    Raises
    ------
    ProgramError
        The header names no kind that there is, or a size of its configuration is missing or too large.
    """
    if header.kind not in OPERATIONS_OF:
        raise ProgramError(f"kind is {header.kind!r}; it must be one of {', '.join(OPERATIONS_OF)}")
    check_config(header.config, header.kind)
    if header.kind in _KINDS:
        model, laws = map(_find, _KINDS[header.kind])
        return LawJudge(model(header), laws)
    judge: Judge = _find(_JUDGES[header.kind])(header)
    return judge


def _find(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


# -- laws over a model -------------------------------------------------------------------------------------

_WHOLE = frozenset({"X1", "X2", "X4", "X7"})
"""Laws about everything at once: that sizes are right afterwards is a test of them, changed or not."""

_FAILED = {NO_ROOM: "X4", STRUCK: "X2"}
"""The law that a wrong size breaks after an operation that came to nothing, where it is claimed."""


class _Plan:
    """What there is to do for operations of one class, looked up once."""

    __slots__ = ("answer", "checks", "failed", "follow", "is_test", "law", "met", "read", "sizes")

    def __init__(self, operation: type[Operation], model: KindModel, laws: KindLaws) -> None:
        name, kind = name_of(operation), model.KIND
        if operation not in OPERATIONS_OF[kind]:
            raise ProgramError(f"{name} is no operation of kind {kind}")
        claimed = _find_claimed(kind, model.claims)
        self.read: Callable[[Any, Outcome], Seen] = getattr(model, f"read_{name}", model.read)
        self.follow: Callable[[int, Any, Any], None] | None = getattr(model, f"follow_{name}", None)
        asked = laws.asked.get(operation, Asked(None, laws.sizes_law))
        self.answer, self.is_test = asked.answer, asked.is_test
        self.law = _choose(asked.law, claimed)
        self.sizes = _choose(asked.sizes or asked.law, claimed)
        self.failed = {fate: law for fate, law in _FAILED.items() if law in claimed}
        self.met = {fate: met for (of, fate), met in laws.met.items() if of is operation}
        order = laws.orders.get(operation, laws.order)
        self.checks = _find_checks(operation, kind, model.claims, order)


@lru_cache(maxsize=64)
def _find_claimed(kind: str, claims: frozenset[str]) -> dict[str, Law]:
    return {law.id: law for law in laws_of(kind) if law.is_claimed_by(claims)}


@lru_cache(maxsize=1024)
def _find_checks(
    operation: type[Operation], kind: str, claims: frozenset[str], order: str
) -> dict[str, list[tuple[str, Check]]]:
    """Return the checks of an operation in order, by what came of it; asked for once in each program."""
    found: dict[str, list[tuple[str, Check]]] = {}
    claimed, ids = _find_claimed(kind, claims), order.split()
    for place, id in enumerate(ids):
        checks: dict[str, list[Check]] = {}
        for of, fate, of_kind, check in claimed[id].checks if id in claimed else ():
            if of is operation and of_kind == kind:
                checks.setdefault(fate, []).append(check)
        before = ids[:place].count(id)
        for fate, each in checks.items():
            here = each[before : before + 1] if id in ids[place + 1 :] else each[before:]
            found.setdefault(fate, []).extend((id, check) for check in here)
    return found


def _choose(law: str | Callable[[Any, Any, Any], str], claimed: Collection[str]) -> Any:
    """Return the first law that is claimed of several."""
    if not isinstance(law, str):
        return law
    return next((id for id in law.split() if id in claimed), law.split()[-1])


class LawJudge(Generic[ModelT]):
    """Puts the laws of a kind to what was seen, one operation after the other.

    Parameters
    ----------
    model : KindModel
        Of an implementation that has done nothing.
    laws : KindLaws
        Of its kind.
    """

    def __init__(self, model: ModelT, laws: KindLaws) -> None:
        self.evidence = Evidence()
        self.model = model
        self._laws = laws
        self._plans: dict[type[Operation], _Plan] = {}
        self._sizes: dict[str, int] | None = None
        self._blamed: dict[str, list[tuple[str, str]]] = {}

    def judge(self, step: int, operation: Operation, outcome: Outcome) -> None:
        """Judge one step and follow it in the model; see `Judge`."""
        model = self.model
        plan = self._plans.get(type(operation))
        if plan is None:
            plan = self._plans[type(operation)] = _Plan(type(operation), model, self._laws)
        before = model.sizes() if self._sizes is None else self._sizes
        law = self._laws.sizes_law
        if not isinstance(outcome.result, Unsupported):
            law = self._judge_done(plan, step, operation, outcome)
        model.end_step(operation)
        now = model.sizes()
        self._test_sizes(law, before, now, outcome.sizes)
        self._sizes = now

    def check_end(self) -> None:
        """Judge what is left at the end: nothing, since what these hold is compared wherever it is read."""

    def _judge_done(self, plan: _Plan, step: int, operation: Operation, outcome: Outcome) -> str:
        """Judge what an operation came to; return the law that a wrong size breaks afterwards."""
        model, evidence = self.model, self.evidence
        seen = plan.read(operation, outcome)
        fate = seen.fate
        tell = plan.met.get(fate)
        if fate == REFUSED:
            self._judge_refusal(seen, outcome)
        elif fate == DONE and plan.answer is not None:
            law = plan.law if isinstance(plan.law, str) else plan.law(model, operation, seen)
            if type(seen.result) is not plan.answer:
                evidence.refuse(law, name_of(type(operation)), name_of(plan.answer), seen.result)
            if plan.is_test:
                evidence.exercised[law] += 1
        exercised = evidence.exercised
        for law, check in plan.checks.get(fate, ()):
            found = check(model, operation, seen)
            if found is True:
                exercised[law] += 1
            elif isinstance(found, tuple):
                evidence.count(*found)
            elif isinstance(found, Broken):
                evidence.refuse(found.law or law, found.what, found.expected, found.observed)
        if tell is not None:
            evidence.meet_each(tell(model, operation, seen))
        if fate == REFUSED:
            model.follow_refused(step, operation, seen)
            return seen.wrong[0].trace
        law = plan.failed.get(fate) or plan.sizes
        if not isinstance(law, str):
            law = law(model, operation, seen)
        if plan.follow is not None:
            plan.follow(step, operation, seen)
        return law

    def _judge_refusal(self, seen: Seen, outcome: Outcome) -> None:
        """Judge an operation that must be refused, by the errors of all that is wrong with it."""
        first = seen.wrong[0]
        for misuse in seen.wrong:
            if misuse.needs not in self.model.claims:
                raise ProgramError(
                    f"{misuse.what} must be refused, and the adapter does not claim {misuse.needs}"
                )
        errors = dict.fromkeys(error for misuse in seen.wrong for error in misuse.errors)
        self.evidence.expect_error(first.law, first.what, outcome, *errors)
        for misuse in seen.wrong:
            self.evidence.meet(misuse.situation, misuse.situation)

    def _test_sizes(
        self, law: str, before: Mapping[str, int], now: Mapping[str, int], found: Mapping[str, int]
    ) -> None:
        """Test the sizes that were told against those that the model knows now."""
        is_whole = law in _WHOLE or self.model.tests_each_size
        if not is_whole and found == now == before:
            return  # as after every second operation: nothing is wrong, and nothing could have become so
        if self._sizes is None and self._laws.is_wrong_from_start and now == before != found:
            self._test_first_sizes(now, found)
        tested = set()
        for name, blamed in self._blamed.get(law) or self._blame(law, now):
            if name in found:
                if found[name] != now[name]:
                    self.evidence.refuse(blamed, f"{name} afterwards", now[name], found[name])
                if is_whole or now[name] != before[name]:
                    tested.add(blamed)
        self.evidence.count(*tested)

    def _test_first_sizes(self, now: Mapping[str, int], found: Mapping[str, int]) -> None:
        """Blame nothing that was done for what was wrong before."""
        for name, blamed in self._blame(self._laws.sizes_law, now):
            if found.get(name, now[name]) != now[name]:
                self.evidence.refuse(blamed, name, now[name], found[name])

    def _blame(self, law: str, sizes: Iterable[str]) -> list[tuple[str, str]]:
        """Return the sizes that may be tested, with the law of a wrong one, by that of the operation."""
        claimed, named = _find_claimed(self.model.KIND, self.model.claims), self._laws.sizes
        pairs = ((name, _choose(named.get((law, name), law), claimed)) for name in sizes)
        known = [(name, blamed) for name, blamed in pairs if blamed == law or blamed in claimed]
        self._blamed[law] = known
        return known


# -- recorded outcomes -------------------------------------------------------------------------------------


def judge_steps(
    header: Header, steps: Iterable[Step]
) -> tuple[Evidence, tuple[Step, InvariantViolation] | None]:
    """Judge recorded outcomes without the implementation.

    Parameters
    ----------
    header : Header
        Of the history.
    steps : iterable of Step
        In order, each with its outcome.

    Returns
    -------
    Evidence
        What was tested.
    tuple of (Step, InvariantViolation) or None
        The step that broke a law, and how.

    Raises
    ------
    ProgramError
        A step has no outcome, or makes no sense; its number is named.
    """
    judge = make_judge(header)
    step = None
    try:
        for step in steps:
            if step.outcome is None:
                raise ProgramError("it has no outcome: this is a program that was not run")
            judge.judge(step.number, step.operation, step.outcome)
        judge.check_end()
    except ProgramError as error:
        raise ProgramError(f"step {step.number if step else 0}: {error}") from error
    except InvariantViolation as violation:
        assert step is not None  # an empty program breaks no law
        return judge.evidence, (step, violation)
    return judge.evidence, None
