"""Results kept as lines of JSON, each written as soon as it is known: what was done is not done again.

Files of several machines are put together by ``cat``, in any order and any of them twice. A line that nobody
finished takes none with it, whatever was put behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pymllm.errors import TraceError, UsageError
from pymllm.text_file import read_json, read_lines

_LOOKED_AT = 65_536


class KeptLines:
    """A file of records, of which ``field`` is the first in each; it is made where there is none.

    ``of`` says of what it has results. `UsageError`: the file cannot be read or written, or has something
    else in it, which stays as it is.
    """

    def __init__(self, path: Path, field: str, of: str) -> None:
        self._path = path
        self._beginning = f'{{"{field}": '
        self._refuse_another(of)
        try:
            last = ""
            self._records: list[dict[str, Any]] = []
            for _, last in read_lines(path) if path.exists() else ():
                self._records += self._read(last)
            with path.open("a", encoding="utf-8") as file:
                file.write("\n" if last and not last.endswith("\n") else "")
        except TraceError as error:
            raise UsageError(f"results cannot be kept in {error}") from None
        except OSError as error:
            raise UsageError(f"results cannot be kept in {path}: {error}") from error

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._records)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record down."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _read(self, line: str) -> Iterator[dict[str, Any]]:
        """Yield the records of a line: more than one where a file ended in the middle of its last line."""
        for rest in line.split(self._beginning)[1:]:  # a text that has it in it has it with escapes
            with suppress(ValueError):
                yield read_json(self._beginning + rest)

    def _refuse_another(self, of: str) -> None:
        """Refuse a file that is somebody's: a name that was mistyped would have lines put behind it."""
        path, beginning = self._path, self._beginning.encode()
        if not path.is_file():
            if path.exists() and not path.is_dir():  # of which the system tells
                raise UsageError(f"results cannot be kept in {path}: it is no regular file")
            return
        whole: list[bytes] = []
        with suppress(OSError), path.open("rb") as file:
            whole = file.read(_LOOKED_AT).split(b"\n")[:-1]  # whoever wrote the last line may have died
        if whole and not any(line.startswith(beginning) for line in whole):
            raise UsageError(f"{path}: no line of it is a result of {of}; name another file to keep them in")
