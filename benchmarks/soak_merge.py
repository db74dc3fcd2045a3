"""``python -m benchmarks.soak_merge``: what a merge of many shards takes, and how large ledgers are.

A short campaign over each of our own adapters is played, as `pymllm soak` plays it. Its lines, with other
numbers, seeds and processes, become the ledgers of a campaign in many shards: what a merge reads is real,
but for that a line stands in it more than once. Each merge runs in a process of its own, which tells its
processor seconds, the most memory that it had, above what it had before it began, and how many files were
open at once. What was merged is then read again; with ``--groups`` the shards are also merged in two stages,
to the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import operator
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import reduce
from multiprocessing import get_context
from pathlib import Path

from msgspec import structs

# Before torch is loaded: the tensors are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pymllm.adapters.registry import OWN
from pymllm.oracle.verdicts import Verdict
from pymllm.soak.campaign import SoakPlan, soak
from pymllm.soak.ledger import (
    FILE,
    CampaignHeader,
    Memory,
    RunRecord,
    read_ledger,
    write_line,
)
from pymllm.soak.measured import MEASURED_FILE
from pymllm.soak.merged_campaigns import MergePlan, merge_campaigns

__all__ = ["Merge", "main", "measure_merge", "measure_stages", "play_sample", "write_shards"]

SEED, LONGEST = 6, 50_000


@dataclass(frozen=True, slots=True)
class Merge:
    """The cost of a merge, or of several merges, one after the other."""

    ledgers: int
    runs: int
    operations: int
    ledger_bytes: int  # of all that was read, and what was measured beside it
    merged_bytes: int  # of the ledger that was written, without what was measured
    cpu_seconds: float
    peak_bytes: int  # more than before
    files: int  # that were open at once, at most, more than before

    def cells(self, what: str) -> Iterator[str]:
        """Yield its line of the table."""
        millions = self.operations / 1e6
        yield what
        yield f"{self.ledgers:,}"
        yield f"{self.runs:,}"
        yield f"{millions:,.0f}"
        yield f"{self.ledger_bytes / 2**20:,.1f}"
        yield f"{self.ledger_bytes / millions / 1000:,.1f}"
        yield f"{self.merged_bytes / millions / 1000:,.1f}" if self.merged_bytes else "-"
        yield f"{self.cpu_seconds:,.1f}"
        yield f"{self.peak_bytes / 2**20:,.0f}"
        yield f"{self.files:,}"

    def __add__(self, other: Merge) -> Merge:
        """Return what both took, one after the other."""
        pairs = list(zip(astuple(self), astuple(other), strict=True))
        return Merge(*(one + two for one, two in pairs[:-2]), *(max(pair) for pair in pairs[-2:]))


HEAD = ("merged", "ledgers", "runs", "M ops", "MiB", "kB/M ops", "of merged", "CPU s", "peak MiB", "files")


def play_sample(folder: Path, operations: int, longest: int) -> tuple[CampaignHeader, list[RunRecord]]:
    """Play the campaign whose lines are used."""
    soak(SoakPlan(OWN, seed=SEED, operations=operations, longest=longest, jobs=1), folder)
    header, *runs = read_ledger(folder / FILE)
    assert isinstance(header, CampaignHeader)
    return header, [run for run in runs if isinstance(run, RunRecord)]


def write_shards(
    folder: Path, header: CampaignHeader, sample: Sequence[RunRecord], shards: int, runs: int
) -> list[Path]:
    """Write the ledgers of a campaign in shards of so many runs each, and return their folders."""
    total = shards * runs
    operations = sum(sample[number % len(sample)].limit for number in range(total))
    made = []
    for shard in range(1, shards + 1):
        place = folder / f"shard-{shard}"
        place.mkdir(parents=True)
        with open(place / FILE, "w", encoding="utf-8") as file:
            part = structs.replace(header, runs=total, operations=operations, shard=(shard, shards))
            file.write(f"{write_line(part)}\n")
            spent = 0
            for number in range(shard - 1, total, shards):
                run = sample[number % len(sample)]
                spent += run.operations
                memory = structs.replace(run.memory, process=f"{shard}/1/1.0", operations=spent)
                file.write(f"{write_line(_renumbered(run, number, memory))}\n")
        made.append(place)
    return made


def _renumbered(run: RunRecord, number: int, memory: Memory) -> RunRecord:
    return structs.replace(run, number=number, seed=run.seed + number, memory=memory)


def measure_merge(folders: Sequence[Path], output: Path | None) -> Merge:
    """Merge ledgers in a process of its own; without ``output`` what is in them is only summed up."""
    with get_context("spawn").Pool(1) as pool:  # a fork would have the memory of this one
        return pool.apply(_merge, (list(folders), output))


def _merge(folders: list[Path], output: Path | None) -> Merge:
    files = _count_files()
    most = files

    @contextmanager
    def watch(label: str, total: int) -> Iterator[Callable[[int], None]]:
        def look(done: int) -> None:
            nonlocal most
            most = max(most, _count_files())

        yield look

    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    report = merge_campaigns(folders, MergePlan(output, progress=watch))
    seconds = time.process_time() - begun
    assert report.verdict() is (Verdict.UNKNOWN if report.missing_runs else Verdict.HOLDS), report.verdict()
    read = (folder / name for folder in folders for name in (FILE, MEASURED_FILE))
    return Merge(
        len(folders),
        report.totals.runs,
        report.totals.operations,
        sum(path.stat().st_size for path in read if path.exists()),
        0 if output is None else (output / FILE).stat().st_size,
        seconds,
        1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before),
        most - files,
    )


def _count_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def measure_stages(folders: Sequence[Path], output: Path, groups: int) -> tuple[Merge, Merge]:
    """Merge ledgers in so many groups, and then what came of these."""
    parts = [output.with_name(f"{output.name}-{group}") for group in range(min(groups, len(folders)))]
    first = [measure_merge(folders[group :: len(parts)], part) for group, part in enumerate(parts)]
    return reduce(operator.add, first), measure_merge(parts, output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of merges; exit status 0."""
    parser = argparse.ArgumentParser(prog="soak_merge", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shards", type=_positive, nargs="+", default=[10, 100, 1_000], metavar="N")
    parser.add_argument("--runs", type=_positive, default=60, metavar="N", help="of a shard")
    parser.add_argument("--groups", type=_positive, metavar="N", help="also merge in groups, and then these")
    parser.add_argument("--operations", type=_positive, default=1_000_000, metavar="N", help="of the sample")
    parser.add_argument("--longest", type=_positive, default=LONGEST, metavar="N", help="of a run")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        header, sample = play_sample(Path(name) / "sample", asked.operations, asked.longest)
        print("".join(f"{cell:>12}" for cell in HEAD))
        for count in asked.shards:
            folder = Path(name) / f"{count}"
            folders = write_shards(folder, header, sample, count, asked.runs)
            _tell(measure_merge(folders, folder / "all"), "shards")
            _tell(measure_merge([folder / "all"], None), "again")
            if asked.groups:
                bytes_of_all = _digest(folder / "all" / FILE)
                shutil.rmtree(folder / "all")
                groups, all = measure_stages(folders, folder / "all", asked.groups)
                _tell(groups, "in groups")
                _tell(all, "groups")
                assert _digest(folder / "all" / FILE) == bytes_of_all
            shutil.rmtree(folder)
    return 0


def _tell(merge: Merge, what: str) -> None:
    print("".join(f"{cell:>12}" for cell in merge.cells(what)), flush=True)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
