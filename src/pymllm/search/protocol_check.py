"""A short conversation with an adapter program under development, to find each mistake and its line.

Everything that the protocol has is said once for each configuration, and every answer is looked at: first
whether it is a message, then whether it is the one that was due, then whether an adapter may answer so. What
is wrong with one answer does not keep the rest from being asked, as long as the program goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from pymllm import __version__
from pymllm.adapters.base import CAPABILITIES
from pymllm.adapters.process.channel import Channel, ChannelError, open_channel
from pymllm.adapters.process.command_name import split_command
from pymllm.adapters.process.conversation import seconds_per_answer
from pymllm.adapters.process.messages import (
    LINE_LIMIT,
    PROTOCOL,
    Advance,
    Advanced,
    Answer,
    Audit,
    Audited,
    Bye,
    Error,
    Hello,
    Program,
    Request,
    Start,
    Started,
    Told,
    read_answer,
    word_for,
)
from pymllm.adapters.process.wire import make_line, read_line, write_operation
from pymllm.documents.programs import Exchange, Introduced, ProgramRow
from pymllm.errors import PymllmError
from pymllm.history.claims import SPECIFICATION
from pymllm.history.codec import name_of
from pymllm.history.files import Config, Header
from pymllm.history.operations import Malformed, Operation, Span
from pymllm.history.outcomes import Failed, Matched, Result, Slots, Unsupported
from pymllm.history.spans import spans_of
from pymllm.machines.examiner import find_wrong_answer
from pymllm.machines.smoke import SampleStep, find_fault, make_sample
from pymllm.oracle.judge import make_judge

_ADVICE = {
    "crashed": "run it by hand and type the lines of the conversation, which end with its standard error",
    "ended": "read until bye comes, or until standard input ends",
    "closed": "keep standard input and output open until bye comes",
    "hung": "answer every message once, and flush standard output unless the message has flush false",
    "garbled": "write one JSON object on each line of standard output and nothing else; logs go to stderr",
    "too-long": "write the line end after each message; hello says how long a line may be",
    "out-of-step": "answer in order, each operation with its own step",
    "gave-up": "an error ends the conversation; answer unsupported to what the cache cannot do",
    "foreign": f"speak protocol {PROTOCOL}",
}
_SCHEMA_ADVICE = "pymllm schema protocol has every message; look for from-program-"
_CONFIGURATION_ADVICE = "docs/protocol.md has the keys of a configuration, and which claims go with them"
_SMOKE_ADVICE = "docs/protocol.md lists the answers to each operation; claim only what the program can do"


@dataclass(frozen=True, slots=True)
class ProtocolReport:
    """The result of a conversation with a program."""

    name: str  # of the adapter: ``command:PROGRAM ARGS``
    program: Program | None  # as it introduced itself
    exchanges: tuple[Exchange, ...]  # in order; one that is wrong in several ways stands there several times
    conversation: str  # the last lines, for a file

    @property
    def answers(self) -> int:
        """The number of lines that the program wrote or should have written."""
        return len({exchange.line for exchange in self.exchanges})

    @property
    def problems(self) -> tuple[Exchange, ...]:
        """The exchanges of the conversation that show a problem."""
        return tuple(exchange for exchange in self.exchanges if exchange.problem is not None)

    def row(self, conversation: str | None) -> ProgramRow:
        """Return the program's row in a document, with the file that holds the last lines."""
        said = self.program
        introduced = None
        if said is not None:
            introduced = Introduced(*(getattr(said, name) for name in Introduced.__struct_fields__))
        return ProgramRow(
            self.name, introduced, self.answers, len(self.problems), self.exchanges, conversation
        )


class _Stop(Exception):
    """Raised to end a conversation in which the program can no longer answer."""


class _Check:
    """A conversation in progress."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.exchanges: list[Exchange] = []
        self.program: Program | None = None
        self._has_clock = False
        self._given: dict[int, Sequence[int]] = {}
        self._clocks: deque[int] = deque()
        self._clock = 0

    # -- the course ------------------------------------------------------------------------------------
    def run(self) -> None:
        """Carry out the whole conversation with the program, once."""
        try:
            program = self._ask(Hello((PROTOCOL,), f"pymllm {__version__}", LINE_LIMIT), Program)
            if program is not None:
                self._look_at_hello(program)
                for config in program.configurations:
                    self._try_configuration(config, program)
            self._part()
        except _Stop:
            pass

    def _look_at_hello(self, program: Program) -> None:
        self.program, self._has_clock = program, program.clock
        if program.protocol != PROTOCOL:
            self._blame(f"protocol is {program.protocol}; it must be {PROTOCOL}", _ADVICE["foreign"])
            raise _Stop
        self._look_at_claims(program.capabilities)

    def _look_at_claims(self, capabilities: Sequence[str]) -> None:
        for unknown in sorted(set(capabilities) - set(CAPABILITIES)):
            self._blame(f"{unknown!r} is no capability", f"there are {', '.join(CAPABILITIES)}")

    def _try_configuration(self, config: Config, program: Program) -> None:
        started = self._start(config)
        if started is None:
            return
        claimed = program.capabilities if started.capabilities is None else started.capabilities
        self._look_at_claims(started.capabilities or ())
        self._look_at_configuration(
            Header("", program.kind, dict(config), claimed, specification=SPECIFICATION)
        )
        sample = make_sample(program.kind, dict(config), frozenset(claimed))
        for number, step in sample.items():
            if self._can_name(step.operation):
                self._say_operation(number, step.operation)
                self._take_outcome(number, step.operation, step)
        self._try_unknown(max(sample) + 1)
        if program.audits:
            self._ask(Audit(), Audited)
        if self._start(config) is not None:
            self._try_batch(sample)

    def _look_at_configuration(self, header: Header) -> None:
        """Report a problem if no judge can be made for a program's configuration."""
        try:
            make_judge(header)
        except (PymllmError, KeyError, TypeError, ValueError) as error:
            self._blame(f"the configuration {header.config} cannot be judged: {error}", _CONFIGURATION_ADVICE)

    def _start(self, config: Config) -> Started | None:
        self._given, self._clock = {}, 0
        started: Started | None = self._ask(Start(dict(config), 0), Started)
        return started

    def _try_unknown(self, number: int) -> None:
        """Send an operation unknown to the program, which must reject it and go on."""
        operation = Malformed("match", "a word that nobody knows")
        self._say_operation(number, operation)
        result = self._take_outcome(number, operation)
        if not isinstance(result, Unsupported | Failed | None):
            self._blame(
                f"answered {result}", "answer unsupported where an operation or argument is not known"
            )

    def _try_batch(self, sample: dict[int, SampleStep]) -> None:
        """Send all operations that need no earlier result in one batch, flushed by the last one only."""
        batch = {number: step for number, step in sample.items() if not spans_of(step.operation)}
        for number, step in batch.items():
            self._say_operation(number, step.operation, is_last=number == max(batch))
        for number, step in batch.items():
            self._take_outcome(number, step.operation, step)

    def _part(self) -> None:
        status = self.channel.finish(make_line(Bye()))
        end = "it did not end" if status is None else f"status {status}"
        self._note("bye", end)
        if status != 0:
            self._blame(f"after bye: {end}", "end with status 0 when bye comes")

    # -- operations ------------------------------------------------------------------------------------
    def _can_name(self, operation: Operation) -> bool:
        """Tell whether earlier results contain every slot that an operation names."""
        return all(len(self._given.get(span.step, ())) >= span.stop for span in spans_of(operation))

    def _numbers(self, spans: Sequence[Span]) -> list[int]:
        return [number for span in spans for number in self._given[span.step][span.start : span.stop]]

    def _say_operation(self, number: int, operation: Operation, is_last: bool = True) -> None:
        if self._has_clock:
            self._clock += 1
            self._clocks.append(self._clock)
            self._say(Advance(1, flush=False))
        said: dict[str, Any] = {"say": "op", "step": number, "op": write_operation(operation, self._numbers)}
        self._say(said if is_last else {**said, "flush": False})

    def _take_outcome(
        self, number: int, operation: Operation, step: SampleStep | None = None
    ) -> Result | None:
        """Receive the result of an operation; return ``None`` if the program sent no outcome."""
        if self._clocks:
            clock, advanced = self._clocks.popleft(), self._take(Advanced, "advance")
            if advanced is not None and advanced.clock != clock:
                self._blame(f"the clock shows {advanced.clock}; it must show {clock}", "add the ticks")
        told: Told | None = self._take(Told, name_of(type(operation)))
        if told is None:
            return None
        if told.step != number:
            self._blame(f"step is {told.step}; it must be {number}", _ADVICE["out-of-step"])
        wrong = find_wrong_answer(operation, told.outcome)
        if wrong is None and step is not None:
            wrong = find_fault(told.outcome, step)
        if wrong is not None:
            self._blame(wrong, _SMOKE_ADVICE)
        if isinstance(told.outcome.result, Slots | Matched):
            self._given[number] = told.outcome.result.slots
        return told.outcome.result

    # -- lines -----------------------------------------------------------------------------------------
    def _ask(self, request: Request, due: type[Any]) -> Any:
        self._say(request)
        return self._take(due, word_for(type(request)))

    def _say(self, message: dict[str, Any] | Request) -> None:
        self.channel.send([make_line(message)])

    def _take(self, due: type[Any], said: str) -> Any:
        """Receive an answer; if it is not the expected one, record a problem and return ``None``."""
        try:
            line = self.channel.receive(seconds_per_answer())
        except ChannelError as error:
            self._note(said, "nothing")
            self._blame(error.message, _ADVICE[error.verdict])
            raise _Stop from None
        try:
            read_line(line)
        except (ValueError, RecursionError) as error:
            self._note(said, "not JSON")
            self._blame(str(error), _ADVICE["garbled"])
            return None
        try:
            answer: Answer = read_answer(line)
        except ValueError as error:
            self._note(said, "not a message")
            self._blame(str(error), _SCHEMA_ADVICE)
            return None
        self._note(said, _name_of(answer))
        if isinstance(answer, Error):
            self._blame(f"cannot go on: {answer.message}", _ADVICE["gave-up"])
            raise _Stop
        if isinstance(answer, due):
            return answer
        self._blame(f"the answer must be {word_for(due)}", _ADVICE["out-of-step"])
        return None

    def _note(self, said: str, answered: str) -> None:
        last = self.exchanges[-1].line if self.exchanges else 0
        self.exchanges.append(Exchange(last + 1, said, answered))

    def _blame(self, problem: str, advice: str) -> None:
        """Record a problem with the last answer, and advice on it."""
        last = self.exchanges[-1]
        if last.problem is None:
            self.exchanges.pop()
        self.exchanges.append(structs.replace(last, problem=problem, advice=advice))


def _name_of(answer: Answer) -> str:
    if isinstance(answer, Told):
        return f"outcome, {name_of(type(answer.outcome.result))}"
    return word_for(type(answer))


def check_protocol(name: str) -> ProtocolReport:
    """Have a short conversation with ``command:PROGRAM ARGS``; raise an error if it cannot be started."""
    command = split_command(name)
    check = _Check(open_channel(name, command, LINE_LIMIT))
    try:
        check.run()
    finally:
        check.channel.end()
    return ProtocolReport(name, check.program, tuple(check.exchanges), check.channel.transcript.text())
