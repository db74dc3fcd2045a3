"""The ledger of a campaign: the file of work (`pymllm.work.task_file`) whose tasks are runs.

Its head says what the campaign is. The line of a run that ended has two halves. What was *played* follows
from version, adapter, configuration, machine, seed and length, wherever it is played; two lines of one `key`
with other contents mean that something is not deterministic (X3). What was *measured* (time, memory, walks
from inside, files) is different each time, and a merge keeps it apart (`pymllm.soak.measured`).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta, Struct, field, structs

from pymllm.documents.campaigns import Failure
from pymllm.errors import TraceError, UsageError
from pymllm.history.files import Config, Deviation
from pymllm.history.operations import KINDS
from pymllm.history.schema import schema_of
from pymllm.text_file import cut, read_json
from pymllm.work.shards import MOST
from pymllm.work.task_file import append_line, length_of_lines, read_records

FORMAT = "pymllm-soak"
SCHEMA = 1
"""The version of the format; a reader refuses any other."""


Count = Annotated[int, Meta(ge=0)]
"""A name with a number of occurrences."""


class Place(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A place where runs are played: a machine on a configuration of an adapter that claims something.

    ``size`` is one of `pymllm.soak.schedule.SIZES`, ``source`` a digest of an adapter that is not
    of this package (`pymllm.search.foreign_source`).
    """

    adapter: str
    kind: str
    config: Config
    machine: str
    size: str = "tiny"
    capabilities: tuple[str, ...] = ()
    source: str = ""


class KeptRun(Struct, frozen=True, forbid_unknown_fields=True):
    """A run of a corpus: the number of its place, counted from 0, its seed and its length."""

    place: int
    seed: int
    limit: int


class CampaignHeader(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The definition of a campaign: with it, the number of a run determines the run.

    - ``version``: As of `pymllm.instrument.provenance.build_version`.
    - ``versions``: Of the packages involved.
    - ``seed``: Of every choice.
    - ``operations``: After so many operations it ends; ``None`` where time decides.
    - ``longest``: Most operations of one run, but for the act that it ends with.
    - ``audit``: A walk from inside after so many operations; 0 for none.
    - ``places``: In the order of adapters, configurations, machines and sizes.
    - ``deviations``: What is known to differ, and is passed over.
    - ``runs``: How many there are; ``None`` where time decides, and in ledgers of older versions.
    - ``corpus``: Runs that are played first, beside those of ``operations``.
    - ``shard``: Which part of them this ledger is to have: the third of eight is ``[3, 8]``; ``None`` for
      all.
    """

    version: str
    versions: dict[str, str]
    seed: int
    operations: int | None
    longest: int
    audit: int
    places: tuple[Place, ...]
    deviations: tuple[Deviation, ...] = ()
    runs: int | None = None
    corpus: tuple[KeptRun, ...] = ()
    shard: tuple[int, int] | None = None

    @property
    def campaign(self) -> CampaignHeader:
        """Return the header of the whole campaign, whether this one is the campaign's or a shard's."""
        return self if self.shard is None else structs.replace(self, shard=None)

    def known_at(self, place: Place) -> tuple[Deviation, ...]:
        """Return the known deviations of an adapter in a configuration."""
        return tuple(it for it in self.deviations if it.is_of(place.adapter, place.config))

    def version_at(self, place: Place) -> str:
        """Return the version of runs at a place: the package's, with all that changes what runs play.

        That is the source of an adapter from elsewhere, and what is known to differ, each as a digest.
        """
        known = self.known_at(place)
        digest = hashlib.sha256(msgspec.json.encode(known)).hexdigest()[:8] if known else ""
        return ".".join(filter(None, (self.version, place.source, digest and f"known-{digest}")))


class Shares(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """CPU seconds of a run by activity, estimated from every `clocks.EVERY`-th operation.

    - ``adapter``: Carrying operations out.
    - ``judge``: Judging them.
    - ``walks``: Walking the implementation from inside.
    - ``again``: The end of a run: emptying everything, and playing parts of the program a second time.
    - ``driver``: The rest: choosing acts, deriving operations, writing them down; and the simulated
      engine.
    """

    adapter: float = 0.0
    judge: float = 0.0
    walks: float = 0.0
    again: float = 0.0
    driver: float = 0.0


class Memory(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The memory of a process between two runs, when the last run has given up its memory.

    - ``process``: Tells processes apart, also those of other machines.
    - ``operations``: It has carried out so far.
    - ``rss``, ``uss``: Resident memory, and that which it shares with nobody, in bytes.
    - ``blocks``: Blocks of memory that Python objects are in.
    - ``is_first``: Whether the run was the first of its process at its place, so that modules and classes
      came with it.
    - ``malloc``: Bytes that the C library has handed out, in which are tensors, arrays and long lists; 0
      where it cannot be asked.
    """

    process: str = ""
    operations: int = 0
    rss: int = 0
    uss: int = 0
    blocks: int = 0
    is_first: bool = False
    malloc: int = 0


class RunRecord(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One run that ended.

    - ``number``: Of the run in its campaign.
    - ``version``, ``adapter``, ``kind``, ``config``, ``machine``, ``size``: As of
      `CampaignHeader.version_at` and `Place`.
    - ``seed``, ``limit``: Of the run: from these two everything in it follows.
    - ``acts``, ``operations``: Played; operations go beyond the limit by an act and the end.
    - ``off``: Acts that were switched off.
    - ``exercised``, ``reached``: Tests by law, and coverage goals by how often they were met.
    - ``sizes``: What the adapter told at the end.
    - ``digest``: Of everything above and of a sample of the outcomes.
    - ``failure``: How it failed, if it did.
    - ``known``: Programs that met a deviation and ended there, or went on behind it, by its name.
    - ``not_done``, ``done``: Steps that were not done, by operation and reason, and steps of such operations
      that were (X9).
    - ``audited``: Walks by law; measured, as is all below.
    - ``seconds``, ``cpu``: Wall-clock and processor time.
    - ``shares``: Of the processor time.
    - ``memory``: After it.
    - ``file``, ``short``: The program as it was played, and made small; relative to the campaign's
      folder.
    """

    number: Count
    version: str
    adapter: str
    kind: str
    config: Config
    machine: str
    size: str
    seed: int
    limit: Count
    acts: Count
    operations: Count
    off: tuple[str, ...]
    exercised: dict[str, Count]
    reached: dict[str, Count]
    sizes: dict[str, int]
    digest: str
    failure: Failure | None = None
    known: dict[str, Count] = field(default_factory=dict)
    not_done: dict[str, Count] = field(default_factory=dict)
    done: dict[str, Count] = field(default_factory=dict)
    audited: dict[str, Count] = field(default_factory=dict)
    seconds: float = 0.0
    cpu: float = 0.0
    shares: Shares = field(default_factory=Shares)
    memory: Memory = field(default_factory=Memory)
    file: str | None = None
    short: str | None = None

    @property
    def key(self) -> str:
        """Return the key of a run, unique among all campaigns."""
        config = json.dumps(self.config, sort_keys=True)
        return "|".join((self.version, self.adapter, config, self.machine, str(self.seed), str(self.limit)))

    @property
    def has_ended(self) -> bool:
        """Whether the run ended or failed; if not, its process died or hung."""
        return bool(self.digest)

    @property
    def played(self) -> tuple[str, Failure | None]:
        """Return the results that must be equal each time this run is played."""
        return self.digest, self.failure


OPENING = {"format": FORMAT, "schema": SCHEMA}
"""The beginning of the header line."""


def write_line(record: CampaignHeader | RunRecord) -> str:
    """Return a record as a line of a ledger, without the newline."""
    opening = OPENING if isinstance(record, CampaignHeader) else {}
    return json.dumps({**opening, **msgspec.to_builtins(record)})


def read_line(line: str) -> CampaignHeader | RunRecord:
    """Read a line of a ledger; raise `ValueError` for an invalid line."""
    return _record_of(read_json(line))


def _record_of(plain: Any) -> CampaignHeader | RunRecord:
    if isinstance(plain, ValueError):
        raise plain
    if not isinstance(plain, dict):
        raise ValueError("a line of a ledger is an object")
    is_header = "format" in plain
    named, version = plain.pop("format", FORMAT), plain.pop("schema", SCHEMA)
    if (named, version) != (FORMAT, SCHEMA):
        found = f"format {cut(repr(named))}, schema {cut(repr(version))}"
        raise ValueError(f"{found}; this version reads {FORMAT!r}, {SCHEMA}")
    try:
        record = msgspec.convert(plain, CampaignHeader) if is_header else msgspec.convert(plain, RunRecord)
    except msgspec.ValidationError as error:
        raise ValueError(f"{'header' if is_header else 'run'}: {error}") from None
    for place in record.places if isinstance(record, CampaignHeader) else ():
        if place.kind not in KINDS:
            raise ValueError(f"header: kind is {cut(repr(place.kind))}; it must be one of {', '.join(KINDS)}")
    if isinstance(record, CampaignHeader) and record.shard is not None:
        number, count = record.shard
        if not 1 <= number <= count <= MOST:
            raise ValueError(
                f"header: shard is [{number}, {count}]; it must be [I, N] with I in 1..N and N in 1..{MOST:,}"
            )
    return record


def ledger_schema() -> dict[str, Any]:
    """Return the JSON schema of a line of a ledger, header or run."""
    header = schema_of(CampaignHeader)
    opening = {"format": {"const": FORMAT}, "schema": {"const": SCHEMA}}
    header["properties"] = {**opening, **header["properties"]}
    header["required"] = [*opening, *header["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of the ledger of pymllm soak",
        "oneOf": [header, schema_of(RunRecord)],
    }


FILE = "ledger.jsonl"
"""The name of a ledger file in the folder of its campaign."""
LIMIT = 2**36
"""The greatest size of a ledger in bytes, which no reader holds in memory at once."""


class Ledger:
    """The ledger file of a campaign, locked against other writers; an unfinished last line is cut off.

    `UsageError`: another campaign writes it, or, where it ``is_new``, there is one in it that would be mixed
    up with it. `OSError`: it cannot be written.
    """

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = open(path, "ab")  # noqa: SIM115  # closed by __exit__
        try:
            self._lock()
            end = length_of_lines(path)
            if end and is_new:
                raise UsageError(f"{path.parent}: there is a campaign already; choose another folder")
            self._file.truncate(end)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        """Lock the file against other writers until it is closed, where the system supports locks."""
        with suppress(OSError):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = "another campaign is being played there; wait for its end, or choose another folder"
                raise UsageError(f"{self.path.parent}: {text}") from None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, record: CampaignHeader | RunRecord) -> None:
        """Append a line; raise errors as `append_line`."""
        append_line(self.path, write_line(record))


def has_lines(path: Path) -> bool:
    """Tell whether a ledger exists with at least one finished line."""
    return path.is_file() and length_of_lines(path) > 0


def read_ledger(path: Path) -> Iterator[CampaignHeader | RunRecord]:
    """Read a ledger line by line, leaving out an unfinished line.

    `TraceError` says which line is none of a ledger, and why, or that there is none at all.
    """
    is_empty = True
    for number, plain in read_records(path, errors="replace", limit=LIMIT):
        try:
            record = _record_of(plain)
        except ValueError as error:
            raise TraceError(str(path), number, str(error)) from None
        if is_empty and isinstance(record, RunRecord):
            raise TraceError(str(path), number, "a ledger begins with the header of its campaign")
        is_empty = False
        yield record
    if is_empty:
        raise TraceError(str(path), None, "empty; a ledger begins with the header of its campaign")
