"""The adapter for a program in any language, named as ``command:PROGRAM ARGS``."""

from __future__ import annotations

import atexit
import functools
import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from pymllm.adapters.base import BaseAdapter
from pymllm.adapters.process.command_name import split_command
from pymllm.adapters.process.conversation import Asked, Conversation
from pymllm.adapters.process.wire import write_operation
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.codec import name_of
from pymllm.history.operations import OPERATIONS_OF, Insert, Lock, Match, Operation
from pymllm.history.outcomes import Inserted, Locked, Matched, Outcome, Slots, Unsupported
from pymllm.history.spans import nodes_and_holds_of, spans_of, steps_of
from pymllm.text_file import cut

_KEPT = 4
"""The number of idle programs kept per command: one under examination, and those for reruns."""


class _Shelf:
    """The idle programs of this process; a forked child begins without any."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.idle: defaultdict[tuple[str, ...], list[Conversation]] = defaultdict(list)


_shelf = _Shelf()


def _own_shelf() -> _Shelf:
    global _shelf
    if _shelf.owner != os.getpid():
        _shelf = _Shelf()
    return _shelf


def _key(command: Sequence[str]) -> tuple[str, ...]:
    """Return the key of a command with the working folder, since programs may be named relative to it."""
    return os.getcwd(), *command


def lend(name: str, command: Sequence[str]) -> Conversation:
    """Return a program that has introduced itself, idle or new; raise errors as `Conversation`."""
    idle = _own_shelf().idle[_key(command)]
    return idle.pop() if idle else Conversation(name, command)


def take_back(conversation: Conversation, command: Sequence[str]) -> None:
    """Keep a program as idle, unless it is closed or enough are kept.

    In the folder in which it was lent, or it is taken for another one's.
    """
    idle = _own_shelf().idle[_key(command)]
    if not conversation.is_open:
        return
    if len(idle) < _KEPT:
        idle.append(conversation)
    else:
        conversation.finish()


@atexit.register
def end_idle_programs() -> None:
    """End all idle programs."""
    idle = _own_shelf().idle
    for conversations in idle.values():
        for conversation in conversations:
            conversation.finish()
    idle.clear()


_SEED = 0
_SAID = 400  # characters of a program's own words in a violation
_NODE_GIVERS = (Match, Insert, Lock)
_BATCH = 64
"""The number of operations sent at once; with two batches in transit both sides stay busy."""


class ProcessAdapter(BaseAdapter):
    """The adapter of an implementation behind a program; `load_command` makes concrete classes.

    Closing one keeps the program for the next: a `Start` is all that lies between two of them. After that the
    `conversation` may be somebody else's.
    """

    COMMAND: ClassVar[Sequence[str]]

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        self.conversation = lend(name, self.COMMAND)
        self._claimed = self.conversation.start(dict(config), _SEED)
        self._clock = 0
        self._is_closed = False
        self._nodes: set[int] = set()
        self._holds: set[int] = set()
        self._unsupported: set[int] = set()
        super().__init__(name, config)

    def claim(self) -> frozenset[str]:
        """Return the capabilities that the program claims."""
        return self._claimed

    # -- one by one --------------------------------------------------------------------------------------

    def apply(self, step: int, operation: Operation) -> Outcome:
        """Have the program carry out an operation, and wait for the result."""
        if self._is_foreign(operation) or self._is_about_nothing(operation):
            return Outcome(Unsupported(name_of(type(operation))))
        self._check_steps(operation, {})
        asked = self._asked(step, operation)
        self.conversation.ask([asked])
        return self._keep(step, self.conversation.outcome_of(asked))

    def _is_foreign(self, operation: Operation) -> bool:
        return type(operation) not in OPERATIONS_OF[self.kind]

    def _is_about_nothing(self, operation: Operation) -> bool:
        """Tell whether an operation refers to a step that was unsupported."""
        return bool(self._unsupported) and any(step in self._unsupported for step in steps_of(operation))

    def _asked(self, step: int, operation: Operation) -> Asked:
        plain = write_operation(operation, self.numbers)
        if not self.conversation.program.clock:
            return Asked(step, plain)
        self._clock += 1
        return Asked(step, plain, self._clock)

    def _keep(self, step: int, outcome: Outcome) -> Outcome:
        """Store the results to which later steps may refer."""
        result = outcome.result
        if isinstance(result, Unsupported):
            self._unsupported.add(step)
        if isinstance(result, Slots | Matched):
            self._given[step] = result.slots
        if isinstance(result, Matched | Inserted):
            self._nodes.add(step)
        elif isinstance(result, Locked):
            self._holds.add(step)
        return outcome

    def _check_steps(self, operation: Operation, open_steps: Mapping[int, type]) -> None:
        """Raise an error for an operation on a node or hold that no earlier step can have returned."""
        nodes, holds = nodes_and_holds_of(operation)
        for node in nodes:
            is_given = node in self._nodes or node in self._holds
            if not is_given and open_steps.get(node) not in _NODE_GIVERS:
                raise ProgramError(f"step {node} gave no node")
        for hold in holds:
            if hold not in self._holds and open_steps.get(hold) is not Lock:
                raise ProgramError(f"step {hold} took no hold")

    # -- many at once ------------------------------------------------------------------------------------

    def apply_many(self, steps: Iterable[tuple[int, Operation]]) -> Iterator[Outcome]:
        """Have the program carry out operations, many sent before their results arrive; yield the outcomes.

        What names slots of a step waits for its answer; what names what was not given is a `ProgramError`.
        Nothing is judged here: which ones follow from which is up to the caller.
        """
        batch: list[tuple[Asked, Operation]] = []
        sent: deque[list[tuple[Asked, Operation]]] = deque()
        open_steps: dict[int, type] = {}
        for step, operation in steps:
            if self._is_foreign(operation):
                raise ProgramError(f"step {step}: {name_of(type(operation))} is not for {self.kind}")
            spans = spans_of(operation)
            if spans and any(span.step in open_steps for span in spans):
                self._send(batch, sent)
                batch = []
                while sent:
                    yield from self._collect(sent, open_steps)
            self._check_steps(operation, open_steps)
            batch.append((self._asked(step, operation), operation))
            open_steps[step] = type(operation)
            if len(batch) == _BATCH:
                self._send(batch, sent)
                batch = []
                if len(sent) > 1:
                    yield from self._collect(sent, open_steps)
        self._send(batch, sent)
        while sent:
            yield from self._collect(sent, open_steps)

    def _send(self, batch: list[tuple[Asked, Operation]], sent: deque[list[tuple[Asked, Operation]]]) -> None:
        if batch:
            self.conversation.ask([asked for asked, _ in batch])
            sent.append(batch)

    def _collect(
        self, sent: deque[list[tuple[Asked, Operation]]], open_steps: dict[int, type]
    ) -> Iterator[Outcome]:
        for asked, operation in sent.popleft():
            outcome = self.conversation.outcome_of(asked)
            del open_steps[asked.step]
            self._check_steps(operation, {})  # what it named was open then, and has been answered
            yield self._keep(asked.step, outcome)

    # -- the rest ----------------------------------------------------------------------------------------

    def audit(self) -> Sequence[str]:
        """Have the program audit its internal state, if it offers that."""
        if not self.conversation.program.audits:
            return ()
        audited = self.conversation.audit()
        if audited.broken is not None:
            found = audited.broken
            expected = None if found.expected is None else cut(found.expected, _SAID)
            observed = None if found.observed is None else cut(found.observed, _SAID)
            message = cut(found.message, _SAID)
            raise InvariantViolation(found.law, message, expected=expected, observed=observed)
        return audited.laws

    def close(self) -> None:
        """Keep the program for the next adapter, unless it has ended."""
        if not self._is_closed:
            self._is_closed = True  # from now on it may be somebody else's
            take_back(self.conversation, self.COMMAND)


def load_command(name: str) -> type[ProcessAdapter]:
    """Start the program of ``command:PROGRAM ARGS``, read its introduction, and make its adapter class.

    `UsageError` where it names none, `AdapterError` where it cannot be started or does not introduce itself.
    """
    return _load(name, os.getcwd())


@functools.cache
def _load(name: str, folder: str) -> type[ProcessAdapter]:
    command = split_command(name)
    conversation = lend(name, command)
    take_back(conversation, command)
    program = conversation.program
    space = {
        "__doc__": f"{program.name} {program.version}, in {program.language}.",
        "COMMAND": command,
        "KIND": program.kind,
        "CONFIGURATIONS": program.configurations,
        "LIMITS": program.limits,
    }
    return type("Command", (ProcessAdapter,), space)
