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

import functools
import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.codec import name_of
from pymllm.history.config_limits import check_config
from pymllm.history.files import Header, Step
from pymllm.history.operations import OPERATIONS_OF, Operation
from pymllm.history.outcomes import Outcome, Unsupported
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.laws import laws_of
from pymllm.oracle.laws.law import Asked, Broken, Check, KindLaws
from pymllm.oracle.models.kind_model import DONE, NO_ROOM, REFUSED, KindModel, Seen

_KINDS = {
    "blocks": ("pymllm.oracle.models.blocks:BlocksModel", "pymllm.oracle.laws.blocks:BLOCKS"),
    "slots": ("pymllm.oracle.models.slots:SlotModel", "pymllm.oracle.laws.slots:SLOTS"),
    "rows": ("pymllm.oracle.models.rows:RowModel", "pymllm.oracle.laws.rows:ROWS"),
    "buffers": ("pymllm.oracle.models.buffers:BufferModel", "pymllm.oracle.laws.buffers:BUFFERS"),
    "hashes": ("pymllm.oracle.models.hashes:HashModel", "pymllm.oracle.laws.keys:HASHES"),
    "states": (
        "pymllm.oracle.models.state_pools:StatePoolModel",
        "pymllm.oracle.laws.state_pools:STATE_POOLS",
    ),
}
_JUDGES = {
    "prefix": "pymllm.oracle.prefix_judge:PrefixJudge",
    "requests": "pymllm.oracle.request_judge:RequestJudge",
}


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


@functools.cache
def _find(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


# -- laws over a model -------------------------------------------------------------------------------------

_WHOLE = frozenset({"X1", "X4", "X7"})
"""Laws about everything at once: that sizes are right afterwards is a test of them, changed or not."""


class _Plan:
    """What there is to do for operations of one class, looked up once."""

    __slots__ = ("answer", "asked", "fates", "follow", "read")

    def __init__(self, operation: type[Operation], model: KindModel, laws: KindLaws) -> None:
        name, kind = name_of(operation), model.KIND
        if operation not in OPERATIONS_OF[kind]:
            raise ProgramError(f"{name} is no operation of kind {kind}")
        self.read: Callable[[Any, Outcome], Seen] = getattr(model, f"read_{name}", model.read)
        self.follow: Callable[[int, Any, Any], None] | None = getattr(model, f"follow_{name}", None)
        self.asked: Asked | None = laws.asked.get(operation)
        self.answer = None if self.asked is None else self.asked.answer
        self.fates = _fates_of(kind, laws, model.claims).get(operation, {})


_Tell = Callable[[Any, Any, Any], Mapping[str, object]]
_Fate = tuple[Sequence[tuple[str, Check]], _Tell | None]
"""Checks of laws in their order, and what tells the situations that are met."""


@functools.cache
def _fates_of(
    kind: str, laws: KindLaws, claims: frozenset[str]
) -> Mapping[type[Operation], Mapping[str, _Fate]]:
    """Return what there is to look at, by operation and fate, for an implementation with these claims."""
    claimed = {law.id: law for law in laws_of(kind) if law.is_claimed_by(claims)}
    checks: dict[tuple[type[Operation], str], list[tuple[str, Check]]] = {key: [] for key in laws.met}
    for law in (claimed[id] for id in laws.order.split() if id in claimed):
        for operation, fate, of_kind, check in law.checks:
            if of_kind == kind:
                checks.setdefault((operation, fate), []).append((law.id, check))
    found: dict[type[Operation], dict[str, _Fate]] = {}
    for (operation, fate), each in checks.items():
        found.setdefault(operation, {})[fate] = each, laws.met.get((operation, fate))
    return found


_NOTHING: _Fate = ((), None)


class LawJudge:
    """Puts the laws of a kind to what was seen, one operation after the other.

    Parameters
    ----------
    model : KindModel
        Of an implementation that has done nothing.
    laws : KindLaws
        Of its kind.
    """

    def __init__(self, model: KindModel, laws: KindLaws) -> None:
        self.evidence = Evidence()
        self.model = model
        self._laws = laws
        self._plans: dict[type[Operation], _Plan] = {}
        self._sizes: dict[str, int] | None = None

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
        if now:
            self._test_sizes(law, before, now, outcome.sizes)
        self._sizes = now

    def check_end(self) -> None:
        """Judge what is left at the end: nothing, since what these hold is compared wherever it is read."""

    def _judge_done(self, plan: _Plan, step: int, operation: Operation, outcome: Outcome) -> str:
        """Judge what an operation came to; return the law that a wrong size breaks afterwards."""
        model, evidence, asked = self.model, self.evidence, plan.asked
        seen = plan.read(operation, outcome)
        fate = seen.fate
        checks, tell = plan.fates.get(fate, _NOTHING)
        if fate == REFUSED:
            self._judge_refusal(seen, outcome)
        elif fate == DONE and plan.answer is not None and asked is not None:
            law = asked.law if isinstance(asked.law, str) else asked.law(model, operation, seen)
            if type(seen.result) is not plan.answer:
                evidence.refuse(law, name_of(type(operation)), name_of(plan.answer), seen.result)
            if self._laws.counts_all:
                evidence.exercised[law] += 1
        exercised = evidence.exercised
        for law, check in checks:
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
        law = self._law_of_sizes(asked, operation, seen)
        if plan.follow is not None:
            plan.follow(step, operation, seen)
        return law

    def _judge_refusal(self, seen: Seen, outcome: Outcome) -> None:
        """Judge an operation that must be refused, by the errors of all that is wrong with it."""
        first, evidence = seen.wrong[0], self.evidence
        errors: Collection[str] = first.errors
        if len(seen.wrong) > 1:
            errors = dict.fromkeys(error for misuse in seen.wrong for error in misuse.errors)
        for misuse in seen.wrong:
            if misuse.needs not in self.model.claims:
                raise ProgramError(
                    f"{misuse.what} must be refused, and the adapter does not claim {misuse.needs}"
                )
            evidence.meet(misuse.situation, misuse.situation)
        evidence.expect_error(first.law, first.what, outcome, *errors)

    def _law_of_sizes(self, asked: Asked | None, operation: Operation, seen: Seen) -> str:
        if seen.fate == NO_ROOM and "pool" in self.model.claims:
            return "X4"
        if asked is None:
            return self._laws.sizes_law
        law = asked.sizes or asked.law
        return law if isinstance(law, str) else law(self.model, operation, seen)

    def _test_sizes(
        self, law: str, before: Mapping[str, int], now: Mapping[str, int], found: Mapping[str, int]
    ) -> None:
        """Test the sizes that were told against those that the model knows now."""
        is_changed = now != before
        if found != now:  # not all are told, or one is wrong
            is_changed = is_changed and any(now[name] != before[name] for name in found if name in now)
            for name, expected in now.items():
                if found.get(name, expected) != expected:
                    if law == "X1" and self._sizes is None:
                        law = self._laws.sizes_law  # what a refusal was the first to see was wrong before
                    self.evidence.refuse(self._laws.sizes.get((law, name), law), name, expected, found[name])
        if law in _WHOLE and self._laws.counts_all:
            self.evidence.exercised[law] += bool(found)
        elif is_changed:
            self.evidence.exercised[law] += 1


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
