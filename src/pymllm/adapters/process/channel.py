"""A child program, and the lines exchanged with it within a time limit.

Reading and writing never block: while an answer is awaited, what is left to be said goes out, and whatever
the program writes to its standard error is taken in, so that no full pipe can stop both sides.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pymllm.adapters.process.reaper import the_reaper
from pymllm.errors import AdapterError
from pymllm.text_file import escaped

VERDICTS: Final[dict[str, str]] = {
    "crashed": "was ended by a signal, or ended with a status other than 0",
    "ended": "ended with status 0 before it answered",
    "closed": "closed its standard input or output, but went on running",
    "hung": "gave no answer in time",
    "garbled": "wrote a line that is not a message, or is the wrong message",
    "too-long": "wrote a line that is longer than the limit",
    "out-of-step": "answered a step that was not next, or answered without being asked",
    "gave-up": "reported that it cannot go on",
    "foreign": "speaks a version of the protocol that pymllm does not know",
}
"""Verdicts on a failed conversation, by the word in messages and documents."""


KEPT_LINES: Final = 50
"""The numbers of lines kept, of the conversation and of the standard error."""

_SHOWN = 2_000  # characters of one line
_ERROR_BYTES = 2**16


class Transcript:
    """The last lines to (``>``) and from (``<``) a program, and the end of its standard error.

    Cost: a reference for each line; text is made of them only where somebody asks.
    """

    def __init__(self) -> None:
        self._lines: deque[tuple[str, bytes]] = deque(maxlen=KEPT_LINES)
        self._errors = b""
        self._count = 0

    def sent(self, line: bytes) -> None:
        """Record a line sent to the program."""
        self._note(">", line)

    def received(self, line: bytes) -> None:
        """Record a line, or the beginning of one, that the program wrote."""
        self._note("<", line)

    def heard(self, data: bytes) -> None:
        """Record output on the program's standard error."""
        self._errors = (self._errors + data)[-_ERROR_BYTES:]

    def _note(self, mark: str, line: bytes) -> None:
        self._lines.append((mark, line))
        self._count += 1

    def text(self) -> str:
        """Return all kept lines."""
        left_out = self._count - len(self._lines)
        lines = [f"# {left_out:,} lines before these are left out"] if left_out else []
        lines += [f"{mark} {_readable(line)}" for mark, line in self._lines]
        errors = self._errors.splitlines()[-KEPT_LINES:]
        if errors:
            lines += ["# its standard error, at the end", *(f"! {_readable(line)}" for line in errors)]
        return "".join(f"{line}\n" for line in lines)


def _readable(line: bytes) -> str:
    text = line.rstrip(b"\n").decode("utf-8", "backslashreplace")
    text = escaped(text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ... ({len(text):,} characters)"


_CHUNK = 2**16
_SLICES = 10
"""The number of slices of a wait, so that suspending this process uses up one slice only."""
_FAREWELL = 1.0  # seconds that a program has to end by itself, or for its end to be seen


class ChannelError(Exception):
    """Raised when the program sends no line, with one of the `VERDICTS` as the reason."""

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(verdict, message)
        self.verdict = verdict
        self.message = message


class Channel:
    """A started program with its pipes and a `transcript`; `OSError` if it cannot be started."""

    def __init__(self, command: Sequence[str], line_limit: int) -> None:
        self.transcript = Transcript()
        self._line_limit = line_limit
        reaper = the_reaper()
        self._process = subprocess.Popen(
            command,
            env=reaper.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,  # it is ended with all that it has started, and Ctrl-C is not its business
            bufsize=0,
        )
        reaper.note(self._process.pid)
        self._pipes = [
            pipe
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
            if pipe is not None  # none is, says Popen's documentation, where each was asked for
        ]
        self._stdin, self._stdout, self._stderr = (pipe.fileno() for pipe in self._pipes)
        self._unsent = bytearray()
        self._lines: deque[bytes] = deque()
        self._part = bytearray()
        self._is_deaf = False  # it does not read any more
        self._is_mute = False  # it does not write any more
        self._is_closed = False
        self._poll = select.poll()
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        self._poll.register(self._stdout, select.POLLIN)
        self._poll.register(self._stderr, select.POLLIN)

    @property
    def is_closed(self) -> bool:
        """Whether this process has ended the program."""
        return self._is_closed

    # -- speaking ----------------------------------------------------------------------------------------

    def send(self, lines: Sequence[bytes]) -> None:
        """Send lines with their newlines; `receive` sends the part that does not fit into the pipe."""
        for line in lines:
            self.transcript.sent(line)
        self._unsent += b"".join(lines)
        self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._stdin, self._unsent[:_CHUNK])]
        except BlockingIOError:
            self._poll.register(self._stdin, select.POLLOUT)
            return
        except BrokenPipeError:
            self._unsent.clear()
            self._is_deaf = True
        with suppress(KeyError):
            self._poll.unregister(self._stdin)

    # -- listening ---------------------------------------------------------------------------------------

    def receive(self, seconds: float | None) -> bytes:
        """Return the next line without its newline; raise `ChannelError` after a limit of seconds."""
        if not self._lines:
            self._await_line(seconds)
        line = self._lines.popleft()
        self.transcript.received(line)
        return line

    def _await_line(self, seconds: float | None) -> None:
        slice_ = None if seconds is None else seconds / _SLICES
        waited, since = 0.0, time.monotonic()
        while not self._lines:
            patience = seconds
            if self._is_deaf:
                patience = min(_FAREWELL, seconds or _FAREWELL)
            self._take_in(slice_ if patience is seconds else _FAREWELL / _SLICES)
            if self._lines:
                return
            if self._is_mute:
                raise self._describe_end()
            now = time.monotonic()
            waited += now - since if slice_ is None else min(now - since, slice_)
            since = now
            if patience is not None and waited >= patience:
                raise self._describe_silence(seconds)

    def _take_in(self, seconds: float | None) -> None:
        for descriptor, _ in self._poll.poll(None if seconds is None else seconds * 1000):
            if descriptor == self._stdin:
                self._write()
            elif descriptor == self._stdout:
                self._read_lines()
            else:
                self._read_errors()

    def _read_lines(self) -> None:
        data = os.read(self._stdout, _CHUNK)
        if not data:
            self._is_mute = True
            self._poll.unregister(self._stdout)
            return
        first, *others = data.split(b"\n")
        self._part += first
        self._check_length()
        for other in others:
            self._lines.append(bytes(self._part))
            self._part = bytearray(other)  # no longer than what a pipe holds

    def _check_length(self) -> None:
        if len(self._part) >= self._line_limit:
            self.transcript.received(bytes(self._part))
            raise ChannelError("too-long", f"wrote a line of more than {self._line_limit:,} bytes")

    def _read_errors(self) -> None:
        data = os.read(self._stderr, _CHUNK)
        if data:
            self.transcript.heard(data)
        else:
            self._poll.unregister(self._stderr)

    # -- the end -----------------------------------------------------------------------------------------

    def _describe_end(self) -> ChannelError:
        """Return words for how the program ended, after the end of its standard output."""
        where = ""
        if self._part:
            self.transcript.received(bytes(self._part))
            where = " in the middle of a line"
        try:
            status = self._process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            return ChannelError("closed", f"closed its standard output{where}, but went on running")
        self._drain_errors()
        if status < 0:
            return ChannelError("crashed", f"was ended by {_name_of(-status)}{where} before it answered")
        verdict = "crashed" if status else "ended"
        return ChannelError(verdict, f"ended with status {status}{where} before it answered")

    def _drain_errors(self) -> None:
        """Read the rest of the program's standard error, which child processes may keep open."""
        with suppress(BlockingIOError):
            while data := os.read(self._stderr, _CHUNK):
                self.transcript.heard(data)

    def _describe_silence(self, seconds: float | None) -> ChannelError:
        if self._is_deaf:
            return ChannelError("closed", "closed its standard input, but went on running")
        said = " after half a line" if self._part else ""
        if self._part:
            self.transcript.received(bytes(self._part))
        hint = "(does it flush its output? --timeout waits longer)"
        return ChannelError("hung", f"gave no answer within {seconds or 0:g} s{said} {hint}")

    def finish(self, last_line: bytes) -> int | None:
        """Send a last line and wait for the end; return the exit status, or ``None`` after a kill."""
        self.send([last_line])
        deadline = time.monotonic() + _FAREWELL
        while self._unsent and time.monotonic() < deadline:
            self._take_in(_FAREWELL / _SLICES)
        self._pipes[0].close()
        try:
            status: int | None = self._process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            status = None
        self.end()
        return status

    def end(self) -> None:
        """End the program and all its child processes at once; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        the_reaper().forget(self._process.pid)
        self._drain_errors()
        for pipe in self._pipes:
            pipe.close()


def open_channel(name: str, command: Sequence[str], line_limit: int) -> Channel:
    """Start a program for the adapter ``name``; raise `AdapterError` if it cannot be started."""
    try:
        return Channel(command, line_limit)
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise AdapterError(name, f"{command[0]!r} cannot be started: {reason}") from None


def _name_of(number: int) -> str:
    known = {known.value: known.name for known in signal.Signals}
    return known.get(number, f"signal {number}")  # a real-time signal has no name
