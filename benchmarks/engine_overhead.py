"""``python -m benchmarks.engine_overhead``: what Ray, Dask and a pool add to a campaign in shards.

One campaign, cut into shards of equal weight, is played again and again: by bare processes, of which each
plays one shard after the other (``pymllm soak --shard I/N``, and at the end ``pymllm merge``), and by
``pymllm soak --executor``, which does the same on an engine. Rounds go through the engines forwards and
backwards, and the best of them counts: least wall-clock and least processor time. Every merged ledger must
have the same bytes.

Processor time is that of all processes, daemons of a cluster and what they do while nobody plays included.
`start` and `end` of a cluster are counted apart: a cluster is there before somebody asks it for something.
Bare processes and a pool have none. Wall-clock time is worth something only where nothing else runs.

The document of ``--json``: ``machine``, what was ``asked``, ``runs`` and ``operations`` of the campaign,
and ``rounds`` in their order, each with its ``engine``; ``wall`` and ``cpu`` from the command's start to its
end, ``shard_cpu`` the part of ``cpu`` that the processes of the shards took; ``start_wall``, ``start_cpu`` of
the cluster, ``end_wall``, ``end_cpu`` of its end. All in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.engine_cluster import CLUSTERS, OPENING, WORKERS
from benchmarks.process_meter import ProcessMeter

__all__ = ["ENGINES", "Round", "main", "make_table", "measure_round"]

ROOT = Path(__file__).parents[1]
ENGINES = ("bare", "processes", "dask", "ray")
NEEDS = {"dask": "distributed", "ray": "ray"}
BARE = ENGINES[0]

CONFIG = {"page_size": 4, "window": None, "pool": "token", "slots": 48, "swa_slots": 36}
LENGTH = 2_000  # of every run: a shorter one is not drawn
CAMPAIGN = (
    *("--adapter", "radix", "--config", json.dumps(CONFIG), "--machine", "PrefixMachine"),
    *("--longest", str(LENGTH), "--seed", "6"),
)
"""Runs of one length, at one place: shards of equally many take equally long."""
SAMPLE = 8  # runs by which the speed is found


@dataclass(frozen=True, slots=True)
class Round:
    """The times of a campaign and of its cluster."""

    engine: str
    wall: float  # wall, cpu: from the start of the command to its end
    cpu: float
    shard_cpu: float  # of it, by the processes of the shards
    start_wall: float  # start, end: of the cluster
    start_cpu: float
    end_wall: float
    end_cpu: float

    @property
    def whole_wall(self) -> float:
        """With start and end of the cluster."""
        return self.start_wall + self.wall + self.end_wall

    @property
    def whole_cpu(self) -> float:
        """With start and end of the cluster."""
        return self.start_cpu + self.cpu + self.end_cpu


@dataclass(frozen=True, slots=True)
class Asked:
    """The size of a measured campaign: its shards, workers and runs."""

    shards: int
    workers: int
    runs: int  # of the campaign

    @property
    def words(self) -> tuple[str, ...]:
        """The campaign's."""
        return *CAMPAIGN, "--operations", str(self.runs * LENGTH)


class Failed(Exception):
    """A command did not end as it must."""


# -- what is measured --------------------------------------------------------------------------------------


def measure_round(engine: str, asked: Asked, folder: Path) -> tuple[Round, bytes]:
    """Play the campaign once; return what it took, and the merged ledger."""
    with ProcessMeter(lambda words: "--shard" in words) as meter:
        meter.environment |= {
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "TMPDIR": str(folder),
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            WORKERS: str(asked.workers),
        }
        clock = _Clock(meter)
        with _cluster(engine, asked, meter, clock) as address:
            start_wall, start_cpu, _ = clock.lap()
            if address is None:
                _play_bare(asked, folder, meter)
            else:
                output = ("--output", str(folder / "merged"))
                _run(meter, "soak", *asked.words, "--executor", f"{address},shards={asked.shards}", *output)
            wall, cpu, shard_cpu = clock.lap()
        end_wall, end_cpu, _ = clock.lap()
    taken = wall, cpu, shard_cpu, start_wall, start_cpu, end_wall, end_cpu
    return Round(engine, *taken), (folder / "merged" / "ledger.jsonl").read_bytes()


class _Clock:
    """Seconds since it was asked before: wall-clock, processor, and of it that of shards."""

    def __init__(self, meter: ProcessMeter) -> None:
        self._meter = meter
        self._last = time.monotonic(), *meter.seconds()

    def lap(self) -> tuple[float, float, float]:
        now = time.monotonic(), *self._meter.seconds()
        last, self._last = self._last, now
        wall, cpu, part = (after - before for after, before in zip(now, last, strict=True))
        return wall, cpu, part


@contextmanager
def _cluster(engine: str, asked: Asked, meter: ProcessMeter, clock: _Clock) -> Iterator[str | None]:
    """Yield what ``--executor`` is given; ``None`` without an engine."""
    if engine not in CLUSTERS:
        yield None if engine == BARE else "benchmarks.engine_cluster:processes"
        return
    words = [sys.executable, "-m", "benchmarks.engine_cluster", engine, str(asked.workers)]
    with tempfile.TemporaryDirectory(
        prefix="ray-", ignore_cleanup_errors=True
    ) as place:  # its sockets have short names
        holder = subprocess.Popen(
            words,
            env=meter.environment | {"RAY_TMPDIR": place},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        with holder:
            assert holder.stdout is not None
            address = next((it for it in holder.stdout if it.startswith(OPENING)), None)
            if address is None:
                raise Failed(f"{' '.join(words[1:])} ended with status {holder.wait()}, and held no cluster")
            yield address.removeprefix(OPENING).strip()
            # Closes its standard input, and waits.
            holder.communicate()


def _play_bare(asked: Asked, folder: Path, meter: ProcessMeter) -> None:
    """Play all shards, so many at a time, and merge them."""
    places = [folder / f"shard-{number}" for number in range(1, asked.shards + 1)]

    def play(number: int) -> None:
        shard = ("--shard", f"{number}/{asked.shards}", "--jobs", "1")
        _run(meter, "soak", *asked.words, *shard, "--output", str(places[number - 1]), "--json")

    with ThreadPoolExecutor(asked.workers) as lanes:
        list(lanes.map(play, range(1, asked.shards + 1)))
    _run(meter, "merge", *map(str, places), "--output", str(folder / "merged"), "--shrink", "1")


def _run(meter: ProcessMeter, *words: str) -> str:
    """Type a command; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pymllm", *words, "--progress", "off"],
        env=meter.environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(f"pymllm {' '.join(words)} ended with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def find_speed() -> float:
    """Return operations per second of processor time, as runs of the campaign have it."""
    with tempfile.TemporaryDirectory() as folder, ProcessMeter() as meter:
        output = ("--jobs", "1", "--output", str(Path(folder) / "sample"), "--json")
        document = json.loads(_run(meter, "soak", *Asked(1, 1, SAMPLE).words, *output))
        return float(document["operations"] / document["cpu_seconds"])


def measure(asked: Asked, engines: Sequence[str], rounds: int, say: Callable[[str], None]) -> list[Round]:
    """Play the campaign on each engine in each round, and see that all played the same."""
    made: list[Round] = []
    ledgers = set[bytes]()
    for number in range(rounds):
        for engine in engines[:: 1 if number % 2 == 0 else -1]:
            say(f"round {number + 1} of {rounds}: {engine}")
            with tempfile.TemporaryDirectory() as name:
                taken, ledger = measure_round(engine, asked, Path(name))
            made.append(taken)
            ledgers.add(ledger)
            if len(ledgers) > 1:
                raise Failed(f"round {number + 1}: the merged ledger of {engine} has other bytes")
    return made


# -- how it is told ----------------------------------------------------------------------------------------

COLUMNS = ("wall", "cpu", "shard_cpu", "whole_wall", "whole_cpu")
HEADS = ("wall s", "CPU s", "of shards", "wall s", "CPU s")


def best_of(rounds: Sequence[Round]) -> dict[str, dict[str, float]]:
    """Return the least of each column, by engine."""
    engines = dict.fromkeys(it.engine for it in rounds)
    return {
        engine: {name: min(getattr(it, name) for it in rounds if it.engine == engine) for name in COLUMNS}
        for engine in engines
    }


def make_table(rounds: Sequence[Round]) -> str:
    """Write the best of each engine, and its ratios to bare processes where these were played."""
    best = best_of(rounds)
    bare = best.get(BARE)
    heads = [f"{head:>{9 if head != 'of shards' else 11}}" for head in HEADS]
    lines = [
        f"{'':10}{'the command':^41}{'with start and end of a cluster':>36}",
        f"{'engine':10}" + "".join(heads[:3]) + f"{'/ bare':>12}" + "".join(heads[3:]) + f"{'/ bare':>18}",
    ]
    for engine, it in best.items():
        cells = [f"{engine:10}", f"{it['wall']:9.1f}{it['cpu']:9.1f}{it['shard_cpu']:11.1f}"]
        cells += [_ratios(it, bare, "wall", "cpu"), f"{it['whole_wall']:9.1f}{it['whole_cpu']:9.1f}"]
        cells += [f"{_ratios(it, bare, 'whole_wall', 'whole_cpu'):>18}"]
        lines.append("".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _ratios(it: dict[str, float], bare: dict[str, float] | None, *names: str) -> str:
    return "" if bare is None else " ".join(f"{it[name] / bare[name]:.3f}" for name in names).rjust(12)


def beyond(rounds: Sequence[Round], percent: float) -> list[str]:
    """Name the engines that take more than so many percent above bare processes, a cluster's start aside."""
    best = best_of(rounds)
    bare = best[BARE]
    bound = 1 + percent / 100
    return [it for it, of in best.items() if any(of[name] > bound * bare[name] for name in ("wall", "cpu"))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; exit status 0, 1 beyond ``--most``, 3 where something could not be played."""
    parser = argparse.ArgumentParser(prog="engine_overhead", description=(__doc__ or "").partition("\n")[0])
    there = [it for it in ENGINES if it not in NEEDS or find_spec(NEEDS[it])]
    parser.add_argument("--engine", choices=ENGINES, action="append", help="only this; may be repeated")
    parser.add_argument("--seconds", type=_positive, default=60.0, metavar="S", help="of a shard (60)")
    parser.add_argument("--runs", type=_whole, metavar="N", help="of a shard, instead of --seconds")
    parser.add_argument("--shards", type=_whole, default=4, metavar="N", help="of the campaign (4)")
    parser.add_argument("--workers", type=_whole, default=2, metavar="N", help="shards at a time (2)")
    parser.add_argument("--rounds", type=_whole, default=2, metavar="N", help="of which the best counts (2)")
    parser.add_argument("--most", type=_positive, metavar="PERCENT", help="more above bare is status 1")
    parser.add_argument("--json", metavar="FILE", help="write every round into this file")
    asked = parser.parse_args(arguments)
    engines = list(dict.fromkeys(asked.engine or there))
    for engine in engines:
        if engine not in there:
            parser.error(f"--engine {engine} needs {NEEDS[engine]}; pip install 'pymllm[{engine}]'")
    if asked.most is not None and BARE not in engines:
        parser.error(f"--most {asked.most:g} is above bare processes; add --engine {BARE}")
    if asked.json and not os.access(folder := Path(asked.json).absolute().parent, os.W_OK):
        parser.error(f"--json {asked.json}: {folder} is no folder that can be written to; name another one")
    load = os.getloadavg()[0]
    if load > 0.5:
        _say(f"other work has a load of {load:.1f} here: wall-clock times will be of it, too")
    try:
        runs = asked.shards * (asked.runs or max(1, round(asked.seconds * find_speed() / LENGTH)))
        plan = Asked(asked.shards, asked.workers, runs)
        rounds = measure(plan, engines, asked.rounds, _say)
    except Failed as error:
        _say(str(error))
        return 3
    print(
        f"{asked.shards} shards of {runs // asked.shards} runs, {runs * LENGTH:,} operations in all; "
        f"{asked.workers} at a time; best of {asked.rounds}\n"
    )
    print(make_table(rounds), end="")
    if asked.json:
        _write(Path(asked.json), vars(asked) | {"engine": engines}, runs, rounds)
    slow = [] if asked.most is None else beyond(rounds, asked.most)
    if slow:
        _say(f"more than {asked.most:g} % above bare processes: {', '.join(slow)}")
    return int(bool(slow))


def _write(path: Path, asked: dict[str, object], runs: int, rounds: Sequence[Round]) -> None:
    from benchmarks.machine import machine_facts

    document = {
        "machine": machine_facts(),
        "asked": asked,
        "runs": runs,
        "operations": runs * LENGTH,
        "rounds": [asdict(it) for it in rounds],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _say(line: str) -> None:
    print(f"engine_overhead: {line}", file=sys.stderr, flush=True)


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no number above 0 and below a million")
    return number


def _whole(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 10_000:
        raise argparse.ArgumentTypeError(f"{text} is no number in 1..10,000")
    return number


if __name__ == "__main__":
    sys.exit(main())
