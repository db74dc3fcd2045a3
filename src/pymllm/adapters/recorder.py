"""Stackable wrappers with the interface of an adapter, one of which records a history."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pymllm.adapters.base import Adapter, header_of
from pymllm.errors import ProgramError
from pymllm.history.codec import write_json
from pymllm.history.files import Config, Step, dump_header, dump_step
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Outcome

_INTERFACE = ("name", "kind", "config", "capabilities", "apply", "audit", "close")
_SAID = ("name", "kind", "config", "capabilities", "limits")


class AdapterWrapper:
    """A wrapper that passes all calls to an inner adapter; subclasses override `apply`."""

    name: str
    kind: str
    config: Config
    capabilities: frozenset[str]
    limits: Mapping[str, str]

    def __init__(self, adapter: Adapter) -> None:
        missing = [name for name in _INTERFACE if not hasattr(adapter, name)]
        if missing:
            raise TypeError(
                f"adapter must have {', '.join(missing)}, got {adapter!r}; "
                "make_adapter of pymllm.adapters.registry makes one of a name"
            )
        self.adapter = adapter

    def __getattr__(self, name: str) -> Any:
        """Return the adapter's present value of an attribute, so that changes show (X9)."""
        if name not in _SAID:
            raise AttributeError(name)
        return getattr(self.adapter, name)

    def apply(self, step: int, operation: Operation) -> Outcome:
        """Have the adapter carry out an operation."""
        return self.adapter.apply(step, operation)

    def audit(self) -> Sequence[str]:
        """Have the adapter audit its implementation."""
        return self.adapter.audit()

    def close(self) -> None:
        """Close the adapter."""
        self.adapter.close()


def layers(adapter: Adapter) -> Iterator[Adapter]:
    """Yield stacked wrappers, from the outermost to the adapter itself."""
    yield adapter
    while isinstance(adapter, AdapterWrapper):
        adapter = adapter.adapter
        yield adapter


_STEP_ENDS = b"}\n"
"""The text that replaces the end of a step once it has an outcome."""


class Recorder(AdapterWrapper):
    """A wrapper that writes a history step by step, for ``pymllm judge`` and ``pymllm rerun``.

    An operation stands in the file before it is carried out, and its outcome as soon as there is one. So a
    process that is killed leaves everything until there, the operation that it died in as the last step,
    without an outcome; a loss of power is another matter. ``seed``, ``versions`` and ``note`` are for the
    header. A file that cannot be written, or is a pipe, is an `OSError`. Cost: two small writes an operation
    (`docs/instruments.md`); nothing is kept in memory.
    """

    def __init__(
        self,
        adapter: Adapter,
        path: Path,
        *,
        seed: int | None = None,
        versions: Mapping[str, str] | None = None,
        note: str = "",
    ) -> None:
        super().__init__(adapter)
        self.path = path
        self._last = 0
        self._end = 0  # of what is finished; behind it there may be a step without its outcome
        header = replace(header_of(adapter, seed, versions), note=note)
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            self._end = self._write(dump_header(header), 0)
        except BaseException:
            self._let_go()
            raise

    def apply(self, step: int, operation: Operation) -> Outcome:
        """Have the adapter carry out an operation, and record it; raise `ProgramError` unless numbers rise.

        With an `OSError`, as on a full disk, the operation was not carried out, or its outcome is lost and
        this is closed.
        """
        if self._file is None:
            raise ProgramError(f"step {step} comes after the close of the recorder of {self.path}")
        if step <= self._last:
            raise ProgramError(f"step is {step}; it must be above {self._last}, the last one recorded")
        after = self._write(dump_step(Step(step, operation)), self._end)
        self._last = step
        try:
            outcome = self.adapter.apply(step, operation)
        except ProgramError:  # it made no sense, so nothing was carried out
            os.ftruncate(self._file, self._end)
            raise
        except BaseException:
            self._end = after
            raise
        try:
            rest = f', "outcome": {write_json(outcome)}}}'  # in the place of the step's last brace
            self._end = self._write(rest, after - len(_STEP_ENDS), keep=after)
        except OSError:  # whatever came now would stand behind a step whose outcome is lost
            with suppress(OSError):
                os.pwrite(self._file, _STEP_ENDS, after - len(_STEP_ENDS))
            self._let_go()
            raise
        return outcome

    def close(self) -> None:
        """Close the adapter and the file; a second call leaves the file unchanged."""
        try:
            super().close()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, text: str, place: int, keep: int | None = None) -> int:
        """Write text, and return the position after it; after an error, cut the file to a given length."""
        assert self._file is not None  # the callers have looked
        rest = memoryview(f"{text}\n".encode())
        try:
            while rest:
                written = os.pwrite(self._file, rest, place)
                rest, place = rest[written:], place + written
        except OSError:
            with suppress(OSError):  # what cannot be written may be no file that can be cut
                os.ftruncate(self._file, self._end if keep is None else keep)
            raise
        return place
