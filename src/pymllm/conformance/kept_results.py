"""What became of faults, kept in a file as soon as it is known: a run that dies goes on where it was."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from pymllm.conformance.detection import FaultResult, HuntTask
from pymllm.conformance.documents import Detection
from pymllm.conformance.foreign_source import digest_adapter, digest_modules
from pymllm.errors import TraceError, UsageError
from pymllm.instrument.provenance import build_version
from pymllm.text_file import read_json, read_lines


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    id: str
    detections: tuple[Detection, ...]
    problems: tuple[str, ...]
    seconds: float


_BEGINNING = b'{"key": '
_LOOKED_AT = 65_536


class KeptResults:
    """A file of JSON lines, one for each fault that was looked for; it is made where there is none.

    A line counts only for the same fault, looked for in the same way, by the same source: after a change of
    the package everything is looked for again, and after one of somebody's adapter or class his faults are.
    `UsageError`: the file cannot be read or written, or has something else in it, which stays as it is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = build_version()
        self._lines: dict[str, _Line] = {}
        _refuse_another(path)
        try:
            last = ""
            for _, last in read_lines(path) if path.exists() else ():
                line = _read(last)
                if line is not None:
                    self._lines[line.key] = line
            with path.open("a", encoding="utf-8") as file:
                file.write("\n" if last and not last.endswith("\n") else "")
        except TraceError as error:
            raise UsageError(f"results cannot be kept in {error}") from None
        except OSError as error:
            raise UsageError(f"results cannot be kept in {path}: {error}") from error

    def find(self, task: HuntTask) -> FaultResult | None:
        """Return what became of a fault, if that is known."""
        line = self._lines.get(self._key_of(task))
        if line is None:
            return None
        return FaultResult(task.fault, line.detections, line.problems, line.seconds)

    def keep(self, task: HuntTask, result: FaultResult) -> None:
        """Write down what became of a fault."""
        line = _Line(self._key_of(task), task.fault.id, result.detections, result.problems, result.seconds)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(msgspec.to_builtins(line)) + "\n")

    def _key_of(self, task: HuntTask) -> str:
        edited = digest_modules([module for edit in task.fault.edits for module in edit.modules])
        sources = [edited, *map(digest_adapter, task.fault.adapters)]
        return hashlib.sha256(f"{self._version} {sources} {task!r}".encode()).hexdigest()


def _read(text: str) -> _Line | None:
    """Read a line; ``None`` for one that whoever wrote it did not finish."""
    try:
        return msgspec.convert(read_json(text), _Line)
    except ValueError:
        return None


def _refuse_another(path: Path) -> None:
    """Refuse a file that is somebody's: a name that was mistyped would have lines put behind it."""
    if not path.is_file():
        if path.exists() and not path.is_dir():  # of which the system tells
            raise UsageError(f"results cannot be kept in {path}: it is no regular file")
        return
    whole: list[bytes] = []
    with suppress(OSError), path.open("rb") as file:
        whole = file.read(_LOOKED_AT).split(b"\n")[:-1]  # whoever wrote the last line may have died
    if whole and not any(line.startswith(_BEGINNING) for line in whole):
        raise UsageError(f"{path}: no line of it is a result of faults; name another file to keep them in")
