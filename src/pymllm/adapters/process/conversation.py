"""The protocol between this process and an adapter program: requests, expected replies, and errors."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from pymllm import __version__
from pymllm.adapters.process.channel import ChannelError, Transcript, open_channel
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
    Start,
    Started,
    Told,
    read_answer,
    word_for,
)
from pymllm.adapters.process.wire import make_line
from pymllm.errors import ConversationError, ProgramError
from pymllm.history.files import Config
from pymllm.history.outcomes import Outcome
from pymllm.oracle.laws import find_audit_fault
from pymllm.text_file import cut

SHARE = 0.9
"""The share of a call's time limit for one reply, so that a hanging program is found in time."""

_DEFAULT = 30.0


class _Limit:
    """The time limit of calls in this process, which has only one alarm timer."""

    seconds = _DEFAULT


@contextmanager
def answer_limit(seconds: float) -> Iterator[None]:
    """Limit the time of adapter calls in a ``with`` block, a reply to a `SHARE` of it; 0 means no limit."""
    before, _Limit.seconds = _Limit.seconds, seconds
    try:
        yield
    finally:
        _Limit.seconds = before


def seconds_per_answer() -> float | None:
    """Return the time limit for one reply; ``None`` without a limit."""
    return _Limit.seconds * SHARE or None


Kind = TypeVar("Kind")

_SAID = 400
"""The greatest number of characters of a program's own words in a message."""


class Asked(NamedTuple):
    """An operation to send, in the form of `write_operation`, and the time for a program with a clock."""

    step: int
    operation: dict[str, Any]
    clock: int | None = None


class Conversation:
    """A conversation with one program that has introduced itself; `program` is that introduction.

    One that cannot be started is an `AdapterError`. Whatever else goes wrong, here and in every method, is a
    `ConversationError`, and the program was ended.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name, self._command = name, command
        self._channel = open_channel(name, command, LINE_LIMIT)
        with self._watched("hello"):
            self.program = self._introduce()

    @property
    def is_open(self) -> bool:
        """Whether further requests can be sent to the program."""
        return not self._channel.is_closed

    def _introduce(self) -> Program:
        self._say([make_line(Hello((PROTOCOL,), f"pymllm {__version__}", LINE_LIMIT))])
        program = self._listen(Program)
        if program.protocol != PROTOCOL:
            raise ChannelError(
                "foreign", f"speaks protocol {program.protocol}; pymllm speaks protocol {PROTOCOL}"
            )
        return program

    @property
    def transcript(self) -> Transcript:
        """The last lines in both directions."""
        return self._channel.transcript

    # -- asking ------------------------------------------------------------------------------------------

    def start(self, config: Config, seed: int) -> frozenset[str]:
        """Have the program make a new implementation; return its claims."""
        with self._watched(f"start with {config}"):
            self._say([make_line(Start(dict(config), seed))])
            claimed = self._listen(Started).capabilities
        return frozenset(self.program.capabilities if claimed is None else claimed)

    def audit(self) -> Audited:
        """Have the program audit its implementation."""
        with self._watched("audit"):
            self._say([make_line(Audit())])
            audited = self._listen(Audited)
            self._check_laws(audited)
            return audited

    def _check_laws(self, audited: Audited) -> None:
        """Raise an error for an audit that names laws unknown for this kind."""
        named = (*audited.laws, *((audited.broken.law,) if audited.broken else ()))
        fault = find_audit_fault(self.program.kind, named)
        if fault is not None:
            raise ChannelError("garbled", f"its audit {fault}")

    def ask(self, batch: Sequence[Asked]) -> None:
        """Send operations, of which only the last makes the program flush its replies.

        `ProgramError` where a line would be longer than the limit: nothing was said.
        """
        lines = [
            line for place, asked in enumerate(batch, 1) for line in _lines_of(asked, place == len(batch))
        ]
        longest = max(map(len, lines))
        if longest > LINE_LIMIT:
            raise ProgramError(f"an operation takes {longest:,} bytes; a line has {LINE_LIMIT:,} at most")
        with self._watched(_what(batch[0])):
            self._say(lines)

    def outcome_of(self, asked: Asked) -> Outcome:
        """Receive the outcome of the earliest operation that has none yet."""
        try:
            return self._take_outcome(asked)
        except BaseException as error:  # no context manager: that alone would take a tenth of the time
            raise self._give_up(error, _what(asked)) from None

    def _take_outcome(self, asked: Asked) -> Outcome:
        if asked.clock is not None:
            clock = self._listen(Advanced).clock
            if clock != asked.clock:
                raise ChannelError("out-of-step", f"its clock shows {clock}; it must show {asked.clock}")
        told = self._listen(Told)
        if told.step != asked.step:
            raise ChannelError(
                "out-of-step", f"answered step {told.step}, but the next answer is of step {asked.step}"
            )
        return told.outcome

    def finish(self) -> int | None:
        """Send the last message; return the exit status, or ``None`` if the program had to be killed."""
        return self._channel.finish(make_line(Bye()))

    def end(self) -> None:
        """End the program at once."""
        self._channel.end()

    # -- lines -------------------------------------------------------------------------------------------

    def _say(self, lines: Sequence[bytes]) -> None:
        self._channel.send(lines)

    def _listen(self, kind: type[Kind]) -> Kind:
        line = self._channel.receive(seconds_per_answer())
        try:
            answer: Answer = read_answer(line)
        except ValueError as error:
            raise ChannelError("garbled", f"wrote a line that is not a message: {error}") from None
        if isinstance(answer, Error):
            raise ChannelError("gave-up", f"cannot go on: {cut(answer.message, _SAID)}")
        if not isinstance(answer, kind):
            raise ChannelError(
                "garbled", f"answered {word_for(type(answer))!r}; it must answer {word_for(kind)!r}"
            )
        return answer

    @contextmanager
    def _watched(self, what: str) -> Iterator[None]:
        """End the program if the ``with`` block raises an error, since the conversation cannot continue."""
        try:
            yield
        except BaseException as error:
            raise self._give_up(error, what) from None

    def _give_up(self, error: BaseException, what: str) -> BaseException:
        """End the program, and return the error to raise in place of another."""
        self._channel.end()
        if not isinstance(error, ChannelError):
            return error
        message = f"{error.message}; it was asked for {what}"
        return ConversationError(self._name, message, error.verdict, self._tell(error))

    def _tell(self, error: ChannelError) -> str:
        return f"# {shlex.join(self._command)}\n# {error.verdict}: {error.message}\n{self.transcript.text()}"


def _what(asked: Asked) -> str:
    return f"step {asked.step}, {asked.operation['op']}"


def _lines_of(asked: Asked, is_last: bool) -> Iterator[bytes]:
    if asked.clock is not None:
        yield make_line(Advance(1, flush=False))
    said: dict[str, Any] = {"say": "op", "step": asked.step, "op": asked.operation}
    if not is_last:
        said["flush"] = False
    yield make_line(said)
