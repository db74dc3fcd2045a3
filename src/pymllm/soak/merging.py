"""The merge of ledgers into one, the same whichever process played each run, in whichever order.

Of each campaign there are its header and its runs by number, each once. What was measured is different each
time, and is kept apart. Memory does not grow with what is merged: lines are sorted in parts, which go to a
file where they are too many.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO

import msgspec
from msgspec import structs

from pymllm.errors import TraceError
from pymllm.soak.ledger import FILE, CampaignHeader, RunRecord
from pymllm.soak.measured import (
    MEASURED_FILE,
    MEASURED_OPENING,
    canonical_line,
    measured_line,
    read_with_measured,
)
from pymllm.text_file import write_text_pieces
from pymllm.work.shards import Shard

BUDGET = 2**24
"""Bytes of lines that are sorted at a time; Python needs slightly more memory for them."""
_PARTS = 64  # that are open at a time
_CHUNK = 2**16
_MOST_CONFLICTS, _MOST_RANGES = 1_000, 100  # that are kept to be told
_HEADERS_LIMIT = 2**27  # bytes


class LineSorter:
    """A sorter of lines that keeps some in memory, and all others in private temporary files."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._lines: list[bytes] = []
        self._size = 0
        self._parts: list[IO[bytes]] = []
        weakref.finalize(self, _close, self._parts)

    def add(self, line: bytes) -> None:
        """Add a line, including its newline."""
        self._lines.append(line)
        self._size += len(line)
        if self._size > self._budget:
            self._spill()

    def _spill(self) -> None:
        lines = sorted(self._lines)
        self._lines, self._size = [], 0
        if len(self._parts) >= _PARTS:  # a part that is as long as all so far is rare
            lines_of_all = heapq.merge(lines, *map(_lines_of, self._parts))
            whole = _write(lines_of_all)
            _close(self._parts)
            self._parts[:] = [whole]
        else:
            self._parts.append(_write(lines))

    def __iter__(self) -> Iterator[bytes]:
        self._lines.sort()
        return heapq.merge(self._lines, *map(_lines_of, self._parts))


def _write(lines: Iterable[bytes]) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed with its sorter
    file.writelines(lines)
    file.flush()
    return file


def _close(files: list[IO[bytes]]) -> None:
    for file in files:
        file.close()


def _lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file from its beginning, independently of other readers of the file."""
    at, rest = 0, b""
    while chunk := os.pread(file.fileno(), _CHUNK, at):
        at += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in lines)


# -- one run -----------------------------------------------------------------------------------------------

_Fields = tuple[bytes, bytes, bytes]


def _encode(place: bytes, record: RunRecord) -> bytes:
    """Encode a run as a line that sorts so that the line to keep comes before the run's other lines.

    That is one that ended, and was looked at more often, with its programs. JSON has no tab.
    """
    fields = (
        place,
        b"%012d" % record.number,
        json.dumps(record.key).encode(),
        b"%d" % (not record.has_ended),
        canonical_line(record).encode(),
        b"%016d" % (10**15 - min(sum(record.audited.values()), 10**15)),
        b"%d%d" % (record.short is None, record.file is None),
        measured_line(record).encode(),
    )
    return b"\t".join(fields) + b"\n"


def _decode(line: bytes) -> RunRecord:
    *_, played, _, _, measured = line.rstrip(b"\n").split(b"\t")
    return msgspec.convert(json.loads(measured) | json.loads(played), RunRecord)


def _run_of(line: bytes) -> list[bytes]:
    return line.split(b"\t", 3)[:3]


def _key_of(line: bytes) -> bytes:
    return line.split(b"\t", 3)[2]


class Conflict:
    """Two lines of one run with different results (X3)."""

    def __init__(self, first: RunRecord, second: RunRecord) -> None:
        self.first = first
        self.second = second

    def __str__(self) -> str:
        run = f"seed {self.first.seed} of {self.first.adapter} {self.first.config}"
        return f"{run}: played {self.first.played}, and again {self.second.played}"


@dataclass(slots=True)
class Differing:
    """The runs of an adapter that had different results when repeated, each counted once."""

    conflict: Conflict  # of the first of them
    runs: int = 0


def _contradicting(first: bytes, others: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each later line of a run that contradicts its first; lines of lost processes contradict nothing.

    What several lines say is told once.
    """
    last = first.split(b"\t", 5)[3:5]
    for other in others:
        lost, played = other.split(b"\t", 5)[3:5]
        if [lost, played] != last and lost == b"0" and _decode(first).played != _decode(other).played:
            yield other
        last = [lost, played]


# -- all runs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Missing:
    """The runs that are missing from the ledgers of a campaign."""

    header: CampaignHeader  # of the campaign
    count: int  # how many
    ranges: tuple[tuple[int, int], ...]  # the first of them, by number: from, to
    shards: tuple[Shard, ...]  # without a ledger, where all others are of so many


class Merged:
    """The contents of all ledgers: headers, runs, missing runs, and runs with contradictory lines."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.conflicts: list[Conflict] = []  # the first thousand, and the first of each adapter
        self.differing: dict[str, Differing] = {}  # by adapter
        self.missing: list[Missing] = []
        self._budget = budget
        self._headers: dict[bytes, dict[str, CampaignHeader]] = {}  # by place and line
        self._places: dict[bytes, bytes] = {}  # by digest of a header
        self._size = 0  # of the lines of headers
        self._shards: dict[bytes, set[Shard]] = {}
        self._sorter = LineSorter(budget)
        self._unique: LineSorter | None = None  # of several campaigns, without what they have in common

    @property
    def headers(self) -> list[CampaignHeader]:
        """The headers of the campaigns by seed, one for each set of packages that played a campaign."""
        return [header for _, headers in self._campaigns() for header in headers]

    def __iter__(self) -> Iterator[RunRecord]:
        """Yield each run once, by campaign and number; iteration may be repeated."""
        return map(_decode, self._kept() if self._unique is None else iter(self._unique))

    def add(self, path: Path) -> None:
        """Read a ledger; raise errors as `read_with_measured`."""
        place = b""
        for record in read_with_measured(path):
            if isinstance(record, CampaignHeader):
                place = self._add_header(record, path)
            else:
                self._sorter.add(_encode(place, record))

    def _add_header(self, header: CampaignHeader, path: Path) -> bytes:
        """Return the place of a header's campaign in the order, equal for all packages that play it."""
        # Shards have the same long header, which is put into its one form once.
        digest = hashlib.sha256(msgspec.json.encode(header.campaign)).digest()
        place = self._places.get(digest)
        if place is None:
            place = self._places[digest] = self._find_place(header, path)
        if header.shard is not None:
            self._shards.setdefault(place, set()).add(Shard(*header.shard))
        return place

    def _find_place(self, header: CampaignHeader, path: Path) -> bytes:
        campaign = canonical_line(structs.replace(header, versions={}))
        digest = hashlib.sha256(campaign.encode()).hexdigest()[:16]
        place = f"{header.seed:020d} {digest}".encode()
        line = canonical_line(header)
        headers = self._headers.setdefault(place, {})
        if line not in headers:
            headers[line] = header.campaign
            self._size += len(line)
            if self._size > _HEADERS_LIMIT:
                raise TraceError(str(path), None, f"more than {_HEADERS_LIMIT:,} bytes of headers")
        return place

    def finish(self) -> None:
        """Find missing runs and contradictory lines, once all ledgers are read."""
        numbers: dict[bytes, _Gaps] = {
            place: _Gaps(next(iter(it.values())).runs) for place, it in self._headers.items()
        }
        unique = LineSorter(self._budget) if len(self._headers) > 1 else None
        for line in self._kept(notes=True):
            place, number, key, rest = line.split(b"\t", 3)
            numbers[place].take(int(number))
            if unique is not None:  # by run, and then by what counts
                unique.add(b"\t".join((key, rest.rstrip(b"\n"), place, number)) + b"\n")
        for place, headers in self._campaigns():
            ranges, count = numbers[place].finish()
            if count:
                shards = _missing_shards(self._shards.get(place, set()))
                self.missing.append(Missing(headers[0], count, ranges, shards))
        if unique is not None:
            self._unique = LineSorter(self._budget)
            for _, group in groupby(unique, lambda line: line.split(b"\t", 1)[0]):
                first, *others = (_back(line) for line in group)
                self._unique.add(first)
                self._note(first, others)

    def _campaigns(self) -> Iterator[tuple[bytes, list[CampaignHeader]]]:
        for place, headers in sorted(self._headers.items()):
            yield place, [header for _, header in sorted(headers.items())]

    def _kept(self, *, notes: bool = False) -> Iterator[bytes]:
        """Yield the line to keep of each run, and record the lines that contradict it."""
        for _, lines in groupby(self._sorter, _run_of):
            first = next(lines)
            if notes:
                self._note(first, lines)  # noqa: B031  # read once
            yield first

    def _note(self, first: bytes, others: Iterable[bytes]) -> None:
        is_first = True
        for other in _contradicting(first, others):
            conflict = Conflict(_decode(first), _decode(other))
            differing = self.differing.setdefault(conflict.first.adapter, Differing(conflict))
            if len(self.conflicts) < _MOST_CONFLICTS or not differing.runs:
                self.conflicts.append(conflict)
            differing.runs += is_first
            is_first = False

    def _written(self) -> Iterator[bytes]:
        """Yield the lines of the merged ledger: each run's kept line, before the lines that contradict it."""
        for _, lines in groupby(self._sorter, _run_of):
            first = next(lines)
            yield first
            yield from _contradicting(first, lines)  # noqa: B031  # read once

    def write(self, folder: Path) -> None:
        """Write a ledger of all campaigns, and its measurements; raise `OSError` if writing fails."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text_pieces(folder / MEASURED_FILE, self._measured_lines())
        write_text_pieces(folder / FILE, self._played_lines())

    def _played_lines(self) -> Iterator[str]:
        waiting = dict(self._campaigns())
        for place, group in groupby(self._written(), lambda line: line.split(b"\t", 1)[0]):
            for other in [it for it in waiting if it <= place]:
                yield from (f"{canonical_line(header)}\n" for header in waiting.pop(other))
            yield from (_field(line, 4) for line in group)
        for headers in waiting.values():
            yield from (f"{canonical_line(header)}\n" for header in headers)

    def _measured_lines(self) -> Iterator[str]:
        yield f"{json.dumps(MEASURED_OPENING)}\n"
        for line in self._written():
            yield _field(line, -1)


def _field(line: bytes, number: int) -> str:
    """Return a field of a ledger line as a separate line."""
    return line.rstrip(b"\n").split(b"\t")[number].decode() + "\n"


def _back(line: bytes) -> bytes:
    """Return a line with its campaign and number put in front again."""
    fields = line.rstrip(b"\n").split(b"\t")
    return b"\t".join((*fields[-2:], *fields[:-2])) + b"\n"


class _Gaps:
    """The numbers missing from an ascending series of numbers."""

    def __init__(self, stop: int | None) -> None:
        self._stop = stop
        self._next = self._count = 0
        self._ranges: list[tuple[int, int]] = []

    def take(self, number: int) -> None:
        """Take the next number of the series, which may repeat the last."""
        if self._stop is not None and self._next < min(number, self._stop):
            last = min(number, self._stop) - 1
            self._count += last - self._next + 1
            if len(self._ranges) < _MOST_RANGES:
                self._ranges.append((self._next, last))
        self._next = max(self._next, number + 1)

    def finish(self) -> tuple[tuple[tuple[int, int], ...], int]:
        """Return the first missing ranges, and the count of all missing numbers."""
        if self._stop is not None:
            self.take(self._stop)
        return tuple(self._ranges), self._count


def _missing_shards(seen: set[Shard]) -> tuple[Shard, ...]:
    counts = {it.count for it in seen}
    if len(counts) != 1:
        return ()
    (count,) = counts
    return tuple(it for number in range(1, count + 1) if (it := Shard(number, count)) not in seen)


def merge_ledgers(
    paths: Iterable[Path], budget: int = BUDGET, done: Callable[[int], None] | None = None
) -> Merged:
    """Merge ledgers, and call ``done`` with the number read so far; raise errors as `read_with_measured`."""
    merged = Merged(budget)
    for number, path in enumerate(paths, 1):
        merged.add(path)
        if done is not None:
            done(number)
    merged.finish()
    return merged
