"""The results of mutants, in a file that many runs may share: the noticing test, or the sources of none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

from pymllm.work.task_file import append_line, begin_keeping, read_records, refusing_to_keep


class Results:
    """Results in a file of JSON lines, one for each mutant that was tried.

    Who was noticed stays noticed, under whatever tests. That nobody noticed counts for the same sources only.
    """

    def __init__(self, path: Path, sources: str) -> None:
        self._path = path
        self._sources = sources
        self.reload()

    def reload(self) -> None:
        """Read what other processes have kept, too."""
        begin_keeping(self._path, (b'{"mutant": ',), "result of a mutant")
        self.known: dict[str, str] = {}
        with refusing_to_keep(self._path):
            records = [record for _, record in read_records(self._path)]
        for record in records:
            match record:
                case {"mutant": str(name), "by": str(by)} if by:
                    self.known[name] = by
                case {"mutant": str(name), "by": "", "sources": self._sources}:
                    self.known.setdefault(name, "")

    def keep(self, name: str, by: str) -> None:
        """Write down at once the result of a mutant; ``by`` is empty if no test noticed the mutant."""
        self.known[name] = by
        record = {"mutant": name, "by": by} | ({} if by else {"sources": self._sources})
        with refusing_to_keep(self._path, "; those before stay there"):
            append_line(self._path, json.dumps(record))


def digest_sources(root: Path, without: Collection[Path] = ()) -> str:
    """Return a digest of the package and of all tests: of the names and the bytes of their files."""
    whole = hashlib.sha256()
    paths = [path for folder in ("src/pymllm", "tests") for path in (root / folder).rglob("*")]
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in paths):
        is_left_behind = any(part == "__pycache__" or part[0] == "." for part in name.split("/"))
        if path.is_file() and path not in without and not is_left_behind:
            content = path.read_bytes()
            whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()
