"""An examiner that runs operations on an adapter, has a judge check each, and keeps the history.

What is no answer is the adapter's fault, however late it comes, and never booked as the implementation's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pymllm.adapters.base import Adapter, header_of
from pymllm.errors import AdapterError, InvariantViolation
from pymllm.history.codec import fits, name_of
from pymllm.history.files import Deviation, History, Step
from pymllm.history.operations import (
    OPERATIONS,
    Inspect,
    Key,
    Operation,
    ReadHalves,
    ReadKV,
    ReadLive,
    ReadRows,
    ReadStates,
    WriteKV,
)
from pymllm.history.outcomes import (
    RESULTS,
    Done,
    Failed,
    Inspected,
    Locked,
    NoRoom,
    Outcome,
    Unsupported,
)
from pymllm.machines.adapter_calls import apply_step, audit_adapter, closing, describe_error, find_changed
from pymllm.machines.smoke import LEGAL_RESULTS, find_unknown_size
from pymllm.oracle.judge import Judge, make_judge
from pymllm.oracle.laws import find_audit_fault
from pymllm.text_file import shown

_ALWAYS_LEGAL = (Failed, Unsupported, NoRoom)
_LEGAL = {operation: frozenset((*legal, *_ALWAYS_LEGAL)) for operation, legal in LEGAL_RESULTS.items()}
_RESULTS = frozenset(RESULTS)
# What only looks leaves behind what the walk before has seen, and is every third operation.
_LOOKS = frozenset((Inspect, ReadHalves, ReadKV, ReadLive, ReadRows, ReadStates))
_PLAIN = {it: field.default for it in OPERATIONS for field in fields(it) if field.name == "form"}


def find_wrong_answer(operation: Operation, outcome: Outcome) -> str | None:
    """Describe a mistake in the form of an outcome; return ``None`` if the outcome can be judged."""
    if type(outcome) is not Outcome:
        return f"answered {shown(outcome)}, which is not an Outcome"
    result, sizes = outcome.result, outcome.sizes
    kind = type(result)
    if not fits(outcome) or type(sizes) is not dict:
        return _find_wrong_field(outcome)
    if kind not in _LEGAL.get(type(operation), _RESULTS):
        legal = LEGAL_RESULTS[type(operation)]
        return f"answered {result!r}; it must be {' or '.join(kind.__name__ for kind in legal)}"
    return find_unknown_size(sizes)


def _find_wrong_field(outcome: Outcome) -> str:
    result = outcome.result
    if type(result) not in _RESULTS:
        return f"answered {result!r}, which is not a result"
    if not fits(result):
        return f"answered {result!r}; {name_of(type(result))} has a field of another type than documented"
    if not fits(Outcome(Done(), outcome.effects)):
        return f"effects are {outcome.effects!r}; they must be a tuple of Effect with integers in tuples"
    return f"sizes are {outcome.sizes!r}; they must be a dict of integers by name"


def in_plain_form(operation: Operation) -> Operation:
    """Return an operation with its arguments in the default containers and memory layout."""
    plain = dict[str, Any]()
    if type(operation) in _PLAIN:
        plain["form"] = _PLAIN[type(operation)]
    if isinstance(operation, WriteKV):
        plain["shape"] = "heads"
    key = getattr(operation, "key", None)
    if isinstance(key, Key):
        plain["key"] = Key(key.tokens, key.extra_key)
    return replace(operation, **plain) if plain else operation


class Examiner:
    """An examiner that carries out operations on a new adapter, records them, and judges each at once."""

    def __init__(
        self,
        adapter: Adapter,
        *,
        seed: int | None = None,
        versions: Mapping[str, str] | None = None,
        audit: int = 1,
        coverage: bool = True,
        deviations: Iterable[Deviation] = (),
    ) -> None:
        self.adapter = adapter
        header = header_of(adapter, seed, versions)
        known = tuple(it for it in deviations if it.is_of(header.adapter, header.config))
        self.history = History(replace(header, deviations=known) if known else header)
        self.judge: Judge[Any] = make_judge(self.history.header, coverage=coverage)
        self._said = adapter.kind, dict(adapter.config), adapter.capabilities, self.history.header.limits
        self._takes_forms = "forms" in adapter.capabilities
        self.audited: Counter[str] = Counter()  # how often each law was checked from inside
        self.audits_steps = True  # who would rather choose the time clears it and calls `look_in_turn`
        self._audit_every = self._until_audit = audit
        self.is_found_inside = False
        self._known_laws: tuple[str, ...] = ()

    @property
    def is_cut_short(self) -> bool:
        """Whether the last step has no outcome, so that the state is unknown and no step can follow."""
        return bool(self.history.steps) and self.history.steps[-1].outcome is None

    @property
    def next_step(self) -> int:
        """The number of the next operation."""
        return self.history.steps[-1].number + 1 if self.history.steps else 1

    def find_known(self, violation: InvariantViolation) -> Deviation | None:
        """Return the known deviation that a violation of the last step shows, if any."""
        operation = self.history.steps[-1].operation if self.history.steps else None
        return self.history.header.known(operation, violation)

    def do(self, operation: Operation, step: int | None = None) -> Outcome:
        """Carry out one operation and judge it; a history ends with a violation.

        `AdapterError`: what came back is no answer, or nothing did; the step has none.
        """
        steps = self.history.steps
        operation = operation if self._takes_forms else in_plain_form(operation)
        number = step if step is not None else steps[-1].number + 1 if steps else 1
        try:
            outcome = apply_step(self.adapter, number, operation, self.history)
        except BaseException:  # an interrupt, too, leaves behind what nobody can judge
            steps.append(Step(number, operation))
            raise
        try:
            wrong = find_wrong_answer(operation, outcome) or self._find_changed()
        except Exception as error:  # what was answered may raise anything where it is looked at
            wrong = f"reading its answer raised {describe_error(error)}"
        if wrong is not None:
            steps.append(Step(number, operation))
            raise AdapterError(self.adapter.name, f"step {number}, {operation}: {wrong}")
        steps.append(Step(number, operation, outcome))
        self.judge.judge(number, operation, outcome)
        if self.audits_steps and type(operation) not in _LOOKS:
            self.look_in_turn()
        return outcome

    def _find_changed(self) -> str | None:
        """Return the adapter's attribute that changed since the history began."""
        adapter = self.adapter
        try:
            if (
                adapter.kind,
                adapter.config,
                adapter.capabilities,
                getattr(adapter, "limits", {}),
            ) == self._said:
                return None
            what = find_changed(self.history.header, adapter)
        except Exception as error:
            return f"asked for what it is, it raised {describe_error(error)}"
        return f"its {what} changed after it was made; what an adapter is it says once"

    def look_in_turn(self) -> None:
        """Audit the implementation's internal state at each ``audit``-th call; never for 0."""
        self._until_audit -= 1
        if not self._until_audit:
            self._until_audit = self._audit_every
            self.look_inside()

    def look_inside(self) -> None:
        """Audit the implementation's internal state if the adapter can; raise the errors of the audit."""
        try:
            audited = audit_adapter(self.adapter, self.history)
        except InvariantViolation as violation:
            self._demand_laws(violation.law)
            self.is_found_inside = True
            raise
        if audited != self._known_laws:  # nearly always the same ones
            self._demand_laws(*audited)
            self._known_laws = audited
        self.audited.update(audited)

    def _demand_laws(self, *named: str) -> None:
        """Raise an `AdapterError` for an audit that names anything but laws of the adapter's kind."""
        odd = next((name for name in named if type(name) is not str), None)
        if odd is not None:
            fault: str | None = f"names {shown(odd)}, which is no text; ids of laws are asked for"
        else:
            fault = find_audit_fault(self.history.header.kind, named)
        if fault is not None:
            raise AdapterError(self.adapter.name, f"its audit {fault}") from None

    def check_replay(self, make: Callable[[], Adapter]) -> None:
        """Run the program again on a new adapter, and demand the same outcomes (X3)."""
        twin, is_exact = make(), "node_ids" in self.adapter.capabilities or self.adapter.kind != "prefix"
        names, names_again = _Names(), _Names()
        with closing(twin, self.history):
            changed = find_changed(self.history.header, twin)
            if changed is not None:
                raise AdapterError(self.adapter.name, f"made again, its {changed} is another")
            for step in self.history.steps:
                again = apply_step(twin, step.number, step.operation, self.history)
                if is_exact and again == step.outcome:
                    continue
                if is_exact or names.renamed(step.outcome) != names_again.renamed(again):
                    expected, observed = _difference(step.outcome, again)
                    raise InvariantViolation(
                        "X3", f"step {step.number}, run again", expected=expected, observed=observed
                    )
        self.judge.evidence.count("X3")


class _Names:
    """Numbers for nodes and hold tokens, in the order of their first appearance in a run."""

    def __init__(self) -> None:
        self._nodes: dict[object, int] = {}
        self._tokens: dict[object, int] = {}

    def _node(self, id: int | None) -> int | None:
        return None if id is None else self._nodes.setdefault(id, len(self._nodes))

    def _ids(self, nodes: Sequence[int] | None) -> tuple[int, ...] | None:
        """Return the numbers of some nodes."""
        return None if nodes is None else tuple(self._nodes.setdefault(id, len(self._nodes)) for id in nodes)

    def _token(self, token: int | str | None) -> int | None:
        return None if token is None else self._tokens.setdefault(token, len(self._tokens))

    def renamed(self, outcome: Outcome | None) -> Outcome | None:
        """Return an outcome with its nodes and tokens as numbers, and its times by their order."""
        if outcome is None:
            return None
        result = outcome.result
        effects = tuple(replace(effect, node=self._node(effect.node)) for effect in outcome.effects)
        if isinstance(result, Locked):
            result = replace(result, token=self._token(result.token))
        elif isinstance(result, Inspected):
            times = sorted({node.last_access for node in result.nodes if node.last_access is not None})
            nodes = tuple(
                replace(
                    node,
                    id=self._ids((node.id,))[0],  # type: ignore[index]
                    parent=self._node(node.parent),
                    boundary=self._token(node.boundary),
                    last_access=None if node.last_access is None else times.index(node.last_access),
                )
                for node in result.nodes
            )
            result = replace(
                result,
                nodes=nodes,
                full_lru=self._ids(result.full_lru),
                mamba_lru=self._ids(result.mamba_lru),
            )
        return replace(outcome, result=result, effects=effects)


def _difference(once: Outcome | None, again: Outcome) -> tuple[str, str]:
    """Return words for the differing parts of two outcomes."""
    assert once is not None  # whatever is run again was run before
    parts = [name for name in ("result", "effects", "sizes") if getattr(once, name) != getattr(again, name)]
    shown = [", ".join(f"{name} {getattr(one, name)}" for name in parts) for one in (once, again)]
    return shown[0], shown[1]
