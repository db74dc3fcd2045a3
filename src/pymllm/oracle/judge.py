"""The judge: checks the laws of each operation on its outcome, and updates the model.

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

import functools
import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any, Generic, TypeVar

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.codec import name_of
from pymllm.history.config_limits import check_config
from pymllm.history.files import GO_ON, Header, Step
from pymllm.history.operations import OPERATIONS_OF, Operation
from pymllm.history.outcomes import Failed, Outcome, Unsupported
from pymllm.oracle.answers import LEFT, OWED, Answers
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.laws import laws_of
from pymllm.oracle.laws.every_class import ANSWERED
from pymllm.oracle.laws.law import LEFT_OUT, Asked, Broken, Check, KindLaws, Law
from pymllm.oracle.models.kind_model import (
    DONE,
    NO_ROOM,
    REFUSED,
    STRUCK,
    UNDONE,
    KindModel,
    Seen,
    SeenUndone,
)

_KINDS = {
    "blocks": ("pymllm.oracle.models.blocks:BlocksModel", "pymllm.oracle.laws.block_kind:BLOCKS"),
    "prefix": ("pymllm.oracle.models.prefix:CacheModel", "pymllm.oracle.laws.prefix_kind:PREFIX"),
    "slots": ("pymllm.oracle.models.slots:SlotModel", "pymllm.oracle.laws.slots:SLOTS"),
    "rows": ("pymllm.oracle.models.rows:RowModel", "pymllm.oracle.laws.rows:ROWS"),
    "buffers": ("pymllm.oracle.models.buffers:BufferModel", "pymllm.oracle.laws.buffers:BUFFERS"),
    "hashes": ("pymllm.oracle.models.hashes:HashModel", "pymllm.oracle.laws.keys:HASHES"),
    "index": ("pymllm.oracle.models.block_index:IndexModel", "pymllm.oracle.laws.block_index:INDEX"),
    "requests": ("pymllm.oracle.models.requests:RequestsModel", "pymllm.oracle.laws.request_kind:REQUESTS"),
    "states": (
        "pymllm.oracle.models.state_pools:StatePoolModel",
        "pymllm.oracle.laws.state_pools:STATE_POOLS",
    ),
}


ModelT = TypeVar("ModelT", bound=KindModel)


def make_judge(header: Header, *, coverage: bool = True) -> Judge[Any]:
    """Return a judge of a history, given only its header: kind, configuration and capabilities.

    Without ``coverage`` nobody asks which coverage goals were met: a quarter of judging slots.

    Raises
    ------
    ProgramError
        The header names no kind that there is, or a size of its configuration is missing or too large.
    """
    if header.kind not in OPERATIONS_OF:
        raise ProgramError(f"kind is {header.kind!r}; it must be one of {', '.join(OPERATIONS_OF)}")
    check_config(header.config, header.kind)
    model, laws = map(_find, _KINDS[header.kind])
    return Judge(model(header), laws, coverage=coverage, header=header)


@functools.cache
def _find(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


@functools.cache
def operations_testing(law: Law, kind: str) -> frozenset[str]:
    """Return the names of the operations that test a law when an implementation of a kind does them."""
    checked = {of for of, fate, of_kind, _ in law.checks if of_kind == kind and fate != UNDONE}
    laws: KindLaws = _find(_KINDS[kind][1])
    for operation in OPERATIONS_OF[kind]:
        asked = laws.asked.get(operation, Asked(None, laws.sizes_law))
        ids = " ".join(each for each in (asked.law, asked.sizes) if isinstance(each, str))
        if law.id in ids.split():
            checked.add(operation)
    return frozenset(map(name_of, checked))


# -- laws over a model -------------------------------------------------------------------------------------

_WHOLE = frozenset({"X1", "X2", "X4", "X7"})
"""Laws about the whole state, which every correct size after an operation tests, changed or not."""


class _Plan:
    """The checks and functions that operations of one class need, looked up once."""

    __slots__ = ("answer", "counts", "fates", "follow", "is_new", "is_test", "law", "read", "sizes")

    def __init__(self, operation: type[Operation], model: KindModel, laws: KindLaws, coverage: bool) -> None:
        name, kind = name_of(operation), model.KIND
        self.is_new = self.counts = True  # until the first one was done
        if operation not in OPERATIONS_OF[kind]:
            raise ProgramError(f"{name} is no operation of kind {kind}")
        self.read: Callable[[Any, Outcome], Seen] = getattr(model, f"read_{name}", model.read)
        self.follow: Callable[[int, Any, Any], None] | None = getattr(model, f"follow_{name}", None)
        asked = laws.asked.get(operation, Asked(None, laws.sizes_law))
        claimed = _find_claimed(kind, model.claims)
        self.answer, self.is_test = asked.answer, asked.is_test and laws.counts_all
        self.law = _choose(asked.law, claimed)
        self.sizes = _choose(asked.sizes or asked.law, claimed)
        self.fates = _fates_of(kind, laws, model.claims, coverage).get(operation, {})


_Tell = Callable[[Any, Any, Any], Mapping[str, object]]
_Fate = tuple[Sequence[tuple[str, Check]], _Tell | None]
"""Checks of laws, in order, and the function that returns the coverage goals reached."""


@functools.cache
def _fates_of(
    kind: str, laws: KindLaws, claims: frozenset[str], coverage: bool
) -> Mapping[type[Operation], Mapping[str, _Fate]]:
    """Return the checks to make, by operation and result, for an implementation with these claims."""
    claimed = _find_claimed(kind, claims)
    checks: dict[tuple[type[Operation], str], list[tuple[str, Check]]] = {key: [] for key in laws.met}
    for operation in OPERATIONS_OF[kind]:
        ids = laws.orders.get(operation, laws.order).split()
        ids += [id for id in claimed if id not in ids]
        for place, id in enumerate(ids):
            before, is_last = ids[:place].count(id), id not in ids[place + 1 :]
            for fate, known in _checks_of(claimed[id], operation, kind) if id in claimed else ():
                here = known[before:] if is_last else known[before : before + 1]
                checks.setdefault((operation, fate), []).extend((id, check) for check in here)
    found: dict[type[Operation], dict[str, _Fate]] = {}
    for (operation, fate), each in checks.items():
        found.setdefault(operation, {})[fate] = each, laws.met.get((operation, fate)) if coverage else None
    return found


@functools.cache
def _find_claimed(kind: str, claims: frozenset[str]) -> Mapping[str, Law]:
    return {law.id: law for law in laws_of(kind) if law.is_claimed_by(claims)}


def _checks_of(law: Law, operation: type[Operation], kind: str) -> Iterable[tuple[str, list[Check]]]:
    checks: dict[str, list[Check]] = {}
    for of, fate, of_kind, check in law.checks:
        if of is operation and of_kind == kind:
            checks.setdefault(fate, []).append(check)
    return checks.items()


def _choose(law: str | Callable[[Any, Any, Any], str], claimed: Collection[str]) -> Any:
    """Return the first claimed law among several."""
    if not isinstance(law, str):
        return law
    return next((id for id in law.split() if id in claimed), law.split()[-1])


_NOTHING: _Fate = ((), None)
_REFUSAL = Outcome(Failed("", ""))
"""A placeholder for an outcome, to ask the model whether an operation must be refused."""


class Judge(Generic[ModelT]):
    """The judge of a history, which checks each operation against the laws of a kind.

    Attributes
    ----------
    evidence : Evidence
        What was tested so far.
    model : KindModel
        What is known of the implementation.

    Parameters
    ----------
    model : KindModel
        Of an implementation that has done nothing.
    laws : KindLaws
        Of its kind.
    coverage : bool
        Whether to count the coverage goals that operations meet.
    header : Header, optional
        Whose deviations the judge takes as they come and goes on, where that is what they ask for.
    """

    def __init__(
        self, model: ModelT, laws: KindLaws, *, coverage: bool = True, header: Header | None = None
    ) -> None:
        self.evidence = Evidence()
        self.model = model
        self._header = header
        self._laws = laws
        self._coverage = coverage
        self._plans: dict[type[Operation], _Plan] = {}
        self._sizes: dict[str, int] | None = None
        self._told: Set[str] = frozenset()  # names of sizes
        self._answers = Answers(model.KIND, model.claims, header, self.evidence)
        self._blamed: dict[str, tuple[list[tuple[str, str]], str]] = {}

    def judge(self, step: int, operation: Operation, outcome: Outcome) -> None:
        """Judge one step, and update the model by it.

        Raises
        ------
        InvariantViolation
            The outcome breaks a law. The judge is of no further use: its model and the implementation
            have parted.
        ProgramError
            The operation makes no sense here; nothing was judged.
        """
        model = self.model
        plan = self._plans.get(type(operation))
        if plan is None:
            plan = self._plans[type(operation)] = _Plan(type(operation), model, self._laws, self._coverage)
        model.step = step
        before = model.sizes() if self._sizes is None else self._sizes
        law = self._laws.sizes_law
        if not isinstance(outcome.result, Unsupported):
            law = self._judge_done(plan, step, operation, outcome)
            if plan.counts:
                self._count_done(plan, step, operation, outcome)
        else:
            self._judge_undone(plan, step, operation, outcome)
        model.end_step(operation, outcome.sizes)
        if outcome.sizes.keys() != self._told:
            self._note_sizes(operation, outcome)
        now = model.sizes()
        if now:
            self._test_sizes(operation, law, before, now, outcome.sizes)
        self._sizes = now

    def _judge_done(self, plan: _Plan, step: int, operation: Operation, outcome: Outcome) -> str:
        """Judge the outcome of an operation; return the law that a wrong size breaks afterwards."""
        model, evidence = self.model, self.evidence
        seen = plan.read(operation, outcome)
        if outcome.effects:
            seen.effects = outcome.effects
        fate = seen.fate
        checks, tell = plan.fates.get(fate, _NOTHING)
        if fate == REFUSED:
            self._judge_refusal(operation, seen)
        elif fate == DONE and plan.answer is not None:
            law = plan.law if isinstance(plan.law, str) else plan.law(model, operation, seen)
            if type(seen.result) is not plan.answer:
                evidence.refuse(law, name_of(type(operation)), name_of(plan.answer), seen.result)
            if plan.is_test:
                evidence.exercised[law] += 1
        exercised = evidence.exercised
        for law, check in checks:
            found = check(model, operation, seen)
            if found is None:  # as most find nothing to test
                continue
            if found is True:
                exercised[law] += 1
            elif isinstance(found, tuple):
                evidence.count(*found)
            elif isinstance(found, Broken):
                can_follow = plan.follow is None or model.can_follow(seen)
                blamed = found.law or law
                self._refuse(operation, blamed, found.what, found.expected, found.observed, can_follow)
                tell = None  # what is wrong reaches nothing
            elif found is LEFT_OUT:
                evidence.left_out.add(law)
        if tell is not None:
            evidence.meet_each(tell(model, operation, seen))
        if fate == REFUSED:
            model.follow_refused(step, operation, seen)
            return seen.wrong[0].trace
        law = self._law_of_sizes(plan, operation, seen)
        if plan.follow is not None:
            plan.follow(step, operation, seen)
        return law

    def _count_done(self, plan: _Plan, step: int, operation: Operation, outcome: Outcome) -> None:
        """Record that an operation was done; for most operations only the first time counts."""
        answers = self._answers
        answers.note_done(step, operation, outcome)
        if plan.is_new and answers.is_demanded and answers.is_owed(operation):
            plan.is_new = False
            self.evidence.exercised[ANSWERED] += 1
        plan.counts = plan.is_new or answers.counts(type(operation))

    def _judge_undone(self, plan: _Plan, step: int, operation: Operation, outcome: Outcome) -> None:
        """Judge an operation that was not done: whether it had to be done, and whether it had any effect."""
        answers = self._answers
        reason = answers.find_reason(step, operation, lambda: self._is_misuse(plan, operation))
        if answers.is_demanded:
            seen = SeenUndone(outcome.result, is_owed=reason == OWED, effects=outcome.effects)
            for law, check in plan.fates.get(UNDONE, _NOTHING)[0]:
                found = check(self.model, operation, seen)
                if isinstance(found, Broken):
                    self._refuse(operation, law, found.what, found.expected, found.observed)
        if reason in (None, LEFT) and isinstance(plan.law, str):
            self.evidence.left_out.add(plan.law)

    def _is_misuse(self, plan: _Plan, operation: Operation) -> bool:
        """Tell whether an operation would have to be refused, or names a step or object that is missing."""
        try:
            return bool(plan.read(operation, _REFUSAL).wrong)
        except ProgramError:
            return True

    def _judge_refusal(self, operation: Operation, seen: Seen) -> None:
        """Judge an operation that must be refused, by the errors that any of its mistakes permits."""
        first, evidence = seen.wrong[0], self.evidence
        errors: Collection[str] = first.errors
        if len(seen.wrong) > 1:
            errors = dict.fromkeys(error for misuse in seen.wrong for error in misuse.errors)
        for misuse in seen.wrong:
            if misuse.needs not in self.model.claims:
                raise ProgramError(
                    f"{misuse.what} must be refused, and the adapter does not claim {misuse.needs}"
                )
            evidence.meet(misuse.goal, misuse.goal)
        result = seen.result
        if not isinstance(result, Failed):
            evidence.refuse(first.law, first.what, " or ".join(errors), f"no error, {result}")
        if result.error not in errors:
            self._refuse(operation, first.law, first.what, " or ".join(errors), result.error)
        else:
            evidence.exercised[first.law] += 1

    def _law_of_sizes(self, plan: _Plan, operation: Operation, seen: Seen) -> str:
        if seen.fate == NO_ROOM and "pool" in self.model.claims:
            return "X4"
        if seen.fate == STRUCK:
            return "X2"
        law: str | Callable[[Any, Any, Any], str] = plan.sizes
        return law if isinstance(law, str) else law(self.model, operation, seen)

    def _refuse(
        self,
        operation: Operation,
        law: str,
        what: str,
        expected: object,
        observed: object,
        can_follow: bool = True,
    ) -> None:
        """Raise a violation, unless it is a known one that the model can follow and that counts as right."""
        try:
            self.evidence.refuse(law, what, expected, observed)
        except InvariantViolation as violation:
            known = None if self._header is None else self._header.known(operation, violation)
            if known is None or known.then != GO_ON or not can_follow:
                raise
            self.evidence.known[known.name] += 1

    def _note_sizes(self, operation: Operation, outcome: Outcome) -> None:
        """Record the names of the reported sizes, and demand that no size reported before is missing."""
        missing = sorted(self._told - outcome.sizes.keys())
        is_silent = isinstance(outcome.result, Unsupported) and not outcome.sizes
        if missing and self._answers.is_demanded and not is_silent:
            self._refuse(operation, ANSWERED, f"{missing[0]}, which was told before", "told", "left out")
        self._told = self._told | outcome.sizes.keys()

    def _test_sizes(
        self,
        operation: Operation,
        law: str,
        before: Mapping[str, int],
        now: Mapping[str, int],
        found: Mapping[str, int],
    ) -> None:
        """Compare the reported sizes with the sizes in the model."""
        is_whole = self.model.tests_each_size or (law in _WHOLE and self._laws.counts_all)
        if not is_whole and found == now == before:
            return  # as after every second operation: nothing is wrong, and nothing could have become so
        blamed_by_name, only = self._blamed.get(law) or self._blame(law, now)
        if only and found == now:
            self.evidence.exercised[only] += 1
            return
        is_first = law == "X1" and self._sizes is None and self._laws.is_wrong_from_start
        if is_first and any(found.get(name, size) != size for name, size in now.items()):
            # What a refusal was the first to see was wrong before.
            blamed_by_name, _ = self._blame(self._laws.sizes_law, now)
        tested = set()
        for name, blamed in blamed_by_name:
            if name in found:
                if found[name] != now[name]:
                    self._refuse(operation, blamed, name, now[name], found[name])
                elif is_whole or now[name] != before[name]:
                    tested.add(blamed)
            else:
                self.evidence.left_out.add(blamed)
        self.evidence.count(*tested)

    def _blame(self, law: str, sizes: Iterable[str]) -> tuple[list[tuple[str, str]], str]:
        """Return the sizes to test with the law of each, and the only law if all have one."""
        claimed, named = _find_claimed(self.model.KIND, self.model.claims), self._laws.sizes
        pairs = ((name, _choose(named.get((law, name), law), claimed)) for name in sizes)
        known = [(name, blamed) for name, blamed in pairs if blamed == law or blamed in claimed]
        laws = {blamed for _, blamed in known}
        self._blamed[law] = found = known, laws.pop() if len(laws) == 1 else ""
        return found


# -- recorded outcomes -------------------------------------------------------------------------------------


def judge_steps(
    header: Header, steps: Iterable[Step], *, coverage: bool = True
) -> tuple[Evidence, tuple[Step, InvariantViolation] | None]:
    """Judge recorded outcomes without the implementation.

    Parameters
    ----------
    header : Header
        Of the history.
    steps : iterable of Step
        In order, each with its outcome.
    coverage : bool
        Whether to count the coverage goals that operations meet.

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
    judge = make_judge(header, coverage=coverage)
    step = None
    try:
        for step in steps:
            if step.outcome is None:
                raise ProgramError("it has no outcome: this is a program that was not run")
            judge.judge(step.number, step.operation, step.outcome)
    except ProgramError as error:
        raise ProgramError(f"step {step.number if step else 0}: {error}") from error
    except InvariantViolation as violation:
        assert step is not None  # an empty program breaks no law
        return judge.evidence, (step, violation)
    return judge.evidence, None
