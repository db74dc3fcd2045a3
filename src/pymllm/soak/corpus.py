"""A corpus: the runs that reached rare coverage goals, kept so that later campaigns play them first.

A run follows from its place, seed and length, so that these are all that is kept of it. Under another version
the same seed may be another program; what it reaches then, a merge tells.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from pymllm.errors import TraceError
from pymllm.history.files import Config
from pymllm.history.schema import schema_of
from pymllm.soak.ledger import KeptRun, Place, RunRecord
from pymllm.text_file import cut, read_json, read_lines, write_text_file

CORPUS_FILE = "corpus.jsonl"
"""The name of a corpus file in its folder."""
OPENING = {"format": "pymllm-soak-corpus", "schema": 1}
"""The first line of a corpus."""
_FEW_RUNS, _FEW_SHARE = 3, 0.01
_LIMITS = range(1, 1_000_001)


class CorpusRun(Struct, frozen=True, forbid_unknown_fields=True):
    """A run that reached rare coverage goals.

    - ``adapter``, ``config``, ``machine``, ``seed``, ``limit``: As of `RunRecord`.
    - ``operations``: That it played.
    - ``goals``: For which it is kept.
    - ``version``: That played it.
    """

    adapter: str
    config: Config
    machine: str
    seed: int
    limit: int
    operations: int
    goals: tuple[str, ...]
    version: str


def corpus_schema() -> dict[str, object]:
    """Return the JSON schema of a line of a corpus, the first or any other."""
    opening = {name: {"const": value} for name, value in OPENING.items()}
    first = {"type": "object", "properties": opening, "required": [*opening], "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a corpus of pymllm soak",
        "oneOf": [first, schema_of(CorpusRun)],
    }


class RareRuns:
    """The shortest run for each coverage goal in a merge, with the number of runs that reached the goal."""

    def __init__(self) -> None:
        self._runs: Counter[str] = Counter()
        self._reached: Counter[tuple[str, str]] = Counter()
        self._shortest: dict[tuple[str, str], RunRecord] = {}

    def add(self, record: RunRecord) -> None:
        """Add a run of the merge."""
        self._runs[record.adapter] += 1
        if record.failure is not None:
            return  # what it found is kept as a finding
        for goal in record.reached:
            goal_of = record.adapter, goal
            self._reached[goal_of] += 1
            best = self._shortest.get(goal_of)
            if best is None or (record.operations, record.seed) < (best.operations, best.seed):
                self._shortest[goal_of] = record

    def settle(self, known: Iterable[CorpusRun] = ()) -> tuple[CorpusRun, ...]:
        """Return the runs to keep: the shortest for each goal, among new runs and those kept before."""
        best: dict[tuple[str, str], CorpusRun] = {}
        for run in known:
            for goal in run.goals:
                _keep(best, run, goal)
        for (adapter, goal), record in self._shortest.items():
            reached = self._reached[adapter, goal]
            if reached <= max(_FEW_RUNS, _FEW_SHARE * self._runs[adapter]):
                _keep(best, _kept(record), goal)
        goals: dict[str, list[str]] = {}
        runs: dict[str, CorpusRun] = {}
        for (_, goal), run in sorted(best.items(), key=lambda it: it[0]):
            key = _key_of(run)
            runs.setdefault(key, run)
            goals.setdefault(key, []).append(goal)
        kept = (msgspec.structs.replace(run, goals=tuple(goals[key])) for key, run in sorted(runs.items()))
        return tuple(kept)


def _keep(best: dict[tuple[str, str], CorpusRun], run: CorpusRun, goal: str) -> None:
    there = best.get((run.adapter, goal))
    if there is None or (run.operations, run.seed) < (there.operations, there.seed):
        best[run.adapter, goal] = run


def _kept(it: RunRecord) -> CorpusRun:
    where = it.adapter, it.config, it.machine
    return CorpusRun(*where, it.seed, it.limit, it.operations, (), it.version)


def _key_of(run: CorpusRun) -> str:
    return json.dumps([run.adapter, run.config, run.machine, run.seed, run.limit], sort_keys=True)


def choose_runs(corpus: Iterable[CorpusRun], places: tuple[Place, ...]) -> tuple[KeptRun, ...]:
    """Return the runs of a corpus that can be played at some places, in order."""
    numbers = {_where(it.adapter, it.config, it.machine): number for number, it in enumerate(places)}
    found = ((numbers.get(_where(it.adapter, it.config, it.machine)), it) for it in corpus)
    return tuple(KeptRun(number, it.seed, it.limit) for number, it in found if number is not None)


def _where(adapter: str, config: Config, machine: str) -> str:
    return json.dumps([adapter, config, machine], sort_keys=True)


def read_corpus(folder: Path) -> tuple[CorpusRun, ...]:
    """Read a corpus, empty if the file is missing; raise `TraceError` for an invalid line."""
    path = folder / CORPUS_FILE
    return tuple(_read(path)) if path.exists() else ()


def _read(path: Path) -> Iterator[CorpusRun]:
    number = 0
    for number, line in read_lines(path):
        try:
            plain = read_json(line)
            if number == 1:
                if plain != OPENING:
                    raise ValueError(f"it begins with {cut(line.strip())}; this version reads {OPENING}")
                continue
            run = msgspec.convert(plain, CorpusRun)
            if run.limit not in _LIMITS or not 0 <= run.seed < 2**63:
                raise ValueError(f"limit {run.limit}, seed {run.seed}: must be in 1..10^6, and in 0..2^63-1")
            yield run
        except (ValueError, msgspec.ValidationError) as error:
            raise TraceError(str(path), number, str(error)) from None
    if not number:
        raise TraceError(str(path), None, "empty; a corpus begins with its format")


def write_corpus(runs: Iterable[CorpusRun], folder: Path) -> None:
    """Write a corpus, in place of an existing one."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(it) for it in (OPENING, *map(msgspec.to_builtins, runs)))
    write_text_file(folder / CORPUS_FILE, "".join(f"{line}\n" for line in lines))
