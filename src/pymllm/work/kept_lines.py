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
from pymllm.text_file import LINE_LIMIT, read_json, read_lines

_LOOKED_AT = 65_536
_DECODER = json.JSONDecoder()


class KeptLines:
    """A file of records, of which ``field`` is the first in each; it is made where there is none.

    ``what`` is what each of them is. `UsageError`: the file cannot be read or written, or has something
    else in it, which stays as it is.
    """

    def __init__(self, path: Path, field: str, what: str) -> None:
        self.path = path
        self._beginning = f'{{"{field}": '
        self._refuse_another(what)
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
        """Write a record down; `UsageError` where the file takes no more.

        One that is longer than a line may be is left out: nobody could read the file.
        """
        text = json.dumps(record) + "\n"
        if len(text) > LINE_LIMIT:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(
                f"results cannot be kept in {self.path}: {error}; those before stay there"
            ) from error

    def _read(self, line: str) -> Iterator[dict[str, Any]]:
        """Yield the records of a line: what is behind the half of one, too, where a file ended in a line."""
        place = line.find(self._beginning)
        while place >= 0:
            after = place + 1
            with suppress(ValueError):
                _, after = _DECODER.raw_decode(line, place)
                yield read_json(line[place:after])
            place = line.find(self._beginning, after)

    def _refuse_another(self, what: str) -> None:
        """Refuse a file that is somebody's: a name that was mistyped would have lines put behind it."""
        path, beginning = self.path, self._beginning.encode()
        if not path.is_file():
            if path.exists() and not path.is_dir():  # of which the system tells
                raise UsageError(f"results cannot be kept in {path}: it is no regular file")
            return
        whole: list[bytes] = []
        with suppress(OSError), path.open("rb") as file:
            whole = file.read(_LOOKED_AT).split(b"\n")[:-1]  # whoever wrote the last line may have died
        if whole and not any(line.startswith(beginning) for line in whole):
            raise UsageError(f"{path}: no line of it is a {what}; name another file to keep them in")
