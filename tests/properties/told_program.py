"""Programs with their outcomes, of which one is changed afterwards: which law does the judge name?"""

from __future__ import annotations

import dataclasses
from typing import Any

from pymllm.adapters.base import Adapter, header_of
from pymllm.adapters.registry import make_adapter
from pymllm.errors import InvariantViolation
from pymllm.history.files import Header, Step
from pymllm.history.operations import Alloc, AllocTrack, Insert, Key, Operation, Span
from pymllm.history.outcomes import Effect, Outcome
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.judge import judge_steps

TINY = {"page_size": 1, "window": None, "pool": "swa", "slots": 12, "swa_slots": 12}
HYBRID = {"pool": "token", "track_slots": 3}
"""What differs for a cache that keeps states."""


class ToldProgram:
    """Runs operations on an adapter, `TINY` but for changes and claims left out, and keeps what they did."""

    def __init__(self, adapter: str = "radix", without: tuple[str, ...] = (), **config: Any) -> None:
        self.adapter: Adapter = make_adapter(adapter, {**TINY, **config})
        header = header_of(self.adapter)
        claims = tuple(name for name in header.capabilities if name not in without)
        self.header: Header = dataclasses.replace(header, capabilities=claims)
        self.steps: list[Step] = []

    def __call__(self, operation: Operation) -> int:
        """Run an operation; return its number."""
        number = len(self.steps) + 1
        self.steps.append(Step(number, operation, self.adapter.apply(number, operation)))
        return number

    def put(self, *tokens: int, extra_key: str | int | None = None, **options: Any) -> int:
        """Insert new slots for a key; return the number of the insert."""
        if self.adapter.config["pool"] == "none":
            first = 1000 * (len(self.steps) + 1)
            spans = (Span(0, first, first + len(tokens)),)
        else:
            spans = (Span(self(Alloc(len(tokens))), 0, len(tokens)),)
        return self(Insert(Key(tokens, extra_key), spans, **options))

    def snapshot(self) -> Span:
        """Take a track slot; return what names it."""
        return Span(self(AllocTrack()), 0, 1)

    def put_state(self, *tokens: int) -> int:
        """Insert new slots for a key and the state at its end; return the number of the insert."""
        return self.put(*tokens, state=self.snapshot())

    def step(self, number: int) -> Step:
        """Return a step by its number."""
        return next(step for step in self.steps if step.number == number)

    def outcome(self, number: int) -> Outcome:
        """Return what a step did."""
        outcome = self.step(number).outcome
        assert outcome is not None
        return outcome

    def effects(self, number: int) -> tuple[Effect, ...]:
        """Return the effects of a step."""
        return self.outcome(number).effects

    def judged(self, *changed: Step) -> tuple[Evidence, str | None]:
        """Judge the program, with some of its steps changed; return the law that is broken, if one is."""
        evidence, violation = self._judge(*changed)
        return evidence, violation and violation.law

    def sound(self) -> Evidence:
        """Judge the program, which breaks no law; return what it has shown."""
        evidence, law = self.judged()
        assert law is None
        return evidence

    def _judge(self, *changed: Step) -> tuple[Evidence, InvariantViolation | None]:
        by_number = {step.number: step for step in changed}
        steps = [by_number.get(step.number, step) for step in self.steps]
        evidence, broken = judge_steps(self.header, steps)
        if broken is None:
            return evidence, None
        assert not changed or broken[0].number == changed[0].number, f"another step is refused: {broken}"
        return evidence, broken[1]

    def law(self, number: int, **changes: Any) -> str | None:
        """Change one outcome and return the law that this breaks; the parameters are those of `words`."""
        return self.judged(self._changed(number, changes))[1]

    def words(self, number: int, **changes: Any) -> str:
        """Change an outcome and return the message about it: the law, the compared part, and both sides.

        ``result`` and ``effects`` are replaced, ``sizes`` in part; other names are fields of the result.
        """
        violation = self._judge(self._changed(number, changes))[1]
        assert violation is not None
        return str(violation)

    def _changed(self, number: int, changes: dict[str, Any]) -> Step:
        step, outcome = self.step(number), self.outcome(number)
        sizes = {**outcome.sizes, **changes.pop("sizes", {})}
        effects = changes.pop("effects", outcome.effects)
        result = changes.pop("result", outcome.result)
        result = dataclasses.replace(result, **changes) if changes else result
        return Step(number, step.operation, Outcome(result, effects, sizes))
