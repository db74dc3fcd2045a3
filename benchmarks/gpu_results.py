"""The results of GPU benchmarks on a device: a file for each device, and a table."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_timing import Sampled, Work, cache_bytes, measure
from pymllm import __version__
from pymllm.instrument.nvml import NvmlTracker
from pymllm.instrument.nvml_device import device_index, find_device
from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.reading import Unreadable
from pymllm.text_file import write_text_file
from tests.stress.card import Card

__all__ = ["Goal", "GpuResults", "Measured", "result_lines", "write_results"]

ROOT = Path(__file__).parents[1]
_CLOCKS = ("SM", "MEM")


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for the ratio of two times.

    Parameters
    ----------
    what : str
        In words.
    value : float
        Found.
    bound : float
        What it should be, at least or at most.
    is_least : bool
        Which of both.
    """

    what: str
    value: float
    bound: float
    is_least: bool

    @property
    def is_met(self) -> bool:
        """Return whether the value meets the bound."""
        return self.value >= self.bound if self.is_least else self.value <= self.bound


@dataclass(frozen=True, slots=True)
class Measured:
    """One case: what was done, how long it took, and how long that with which it is compared.

    Parameters
    ----------
    name : str
        What is done.
    case : dict
        Sizes and types.
    mode : str
        ``"graph"``: replayed, or ``"launches"``: one call after the other.
    moved : int
        Bytes that are read and written, together, for each time.
    sets : int
        Of data that took turns.
    times : dict of str to Sampled
        By contender; the first is ours.
    goals : tuple of Goal
        Of this case.
    """

    name: str
    case: Mapping[str, int | str]
    mode: str
    moved: int
    sets: int
    times: Mapping[str, Sampled]
    goals: tuple[Goal, ...] = ()


@dataclass
class GpuResults:
    """Collects cases of one run on one device.

    Parameters
    ----------
    card : Card
        Where.
    """

    card: Card
    cases: list[Measured] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tracker = NvmlTracker()  # of CUDA's current device
        self._clocks_before = read_clocks()
        self._tracker.__enter__()

    def measure(
        self,
        name: str,
        case: Mapping[str, int | str],
        contenders: Mapping[str, Work],
        *,
        moved: int,
        sets: int,
        in_graph: bool,
    ) -> Measured:
        """Time a case, while nothing samples the device, and keep it.

        Parameters
        ----------
        name, case, moved, sets
            As of `Measured`.
        contenders : dict of str to callable
            As `measure` takes them; ours is the first.
        in_graph : bool
            Whether a graph is replayed.
        """
        with self._tracker.paused():
            times = measure(self.card, contenders, sets, in_graph=in_graph)
        mode = "graph" if in_graph else "launches"
        self.cases.append(Measured(name, dict(case), mode, moved, sets, times))
        return self.cases[-1]

    def judge(self, what: str, one: str, other: str, *, at_least: float = 0, at_most: float = 0) -> None:
        """Say of the last case how the times of two contenders should compare; nothing fails by it."""
        case = self.cases[-1]
        value = case.times[other].median_us / case.times[one].median_us
        if not at_least:
            value = 1 / value
        goal = Goal(what, value, at_least or at_most, bool(at_least))
        self.cases[-1] = replace(case, goals=(*case.goals, goal))

    def end(self) -> dict[str, Any]:
        """Return everything as one document."""
        self._tracker.__exit__(None, None, None)
        return {
            "schema": "pymllm.gpu-benchmarks",
            "version": 1,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": find_commit(),
            "pymllm": f"{__version__}+{source_digest(ROOT / 'src')}",
            "benchmarks": source_digest(ROOT / "benchmarks"),
            "machine": self._machine(),
            "clocks": {"before": self._clocks_before, "after": read_clocks()},
            "health": self._health(),
            "results": [_plain(case) for case in self.cases],
        }

    def _machine(self) -> dict[str, Any]:
        facts = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": _version("triton"),
        }
        record = self._tracker.summary()
        if not self.card.is_cuda:
            return {
                **facts,
                "device": platform.processor() or platform.machine(),
                "cuda": None,
                "driver": None,
            }
        found = torch.cuda.get_device_properties(self.card.device)
        return {
            **facts,
            "device": found.name,
            "cuda": torch.version.cuda,
            "driver": None if record.device is None else record.device.driver,
            "memory_bytes": found.total_memory,
            "cache_bytes": cache_bytes(self.card),
            "multiprocessors": found.multi_processor_count,
        }

    def _health(self) -> dict[str, Any]:
        record = self._tracker.summary()
        return {
            "is_valid": record.is_valid,
            "invalid": list(record.invalid),
            "unwatched": list(record.unwatched) if record.reason is None else [record.reason],
        }


def _plain(case: Measured) -> dict[str, Any]:
    goals = [{**asdict(goal), "is_met": goal.is_met} for goal in case.goals]
    ours = next(iter(case.times.values()))
    return {**asdict(case), "gigabytes_per_second": case.moved / ours.median_us / 1e3, "goals": goals}


def read_clocks() -> dict[str, int | str]:
    """Megahertz of each clock now, or why they cannot be read."""
    library = NvmlLibrary()
    try:
        with library:
            handle = find_device(library, device_index(None)).handle  # of CUDA's current device
            return {
                name.lower(): int(
                    library.call("nvmlDeviceGetClockInfo", handle, library.constant(f"NVML_CLOCK_{name}"))
                )
                for name in _CLOCKS
            }
    except Unreadable as reason:
        return {"reason": str(reason)}


def find_commit() -> str | None:
    """The commit that is measured: ``PYMLLM_COMMIT`` where the tree has no history, else git's."""
    named = os.environ.get("PYMLLM_COMMIT")
    if named:
        return named
    try:
        done = subprocess.run(
            ["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def source_digest(folder: Path) -> str:
    """Tell two states of some source apart, with or without a history."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def file_name(device: str) -> str:
    """Return a device's name as that of a file."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + ".json"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_results(document: Mapping[str, Any], folder: Path) -> Path:
    """Write a document into its device's file, in place of the results that were there before."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(str(document["machine"]["device"]))
    write_text_file(path, json.dumps(document, indent=1) + "\n")
    return path


def result_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the table of a document: times in microseconds, and goals that are met or not."""
    lines = [f"{document['machine']['device']}; microseconds, median of samples"]
    for result in document["results"]:
        case = " ".join(f"{name}={value}" for name, value in result["case"].items())
        times = "  ".join(f"{name} {found['median_us']:.2f}" for name, found in result["times"].items())
        lines.append(f"{result['name']} [{case}] {result['mode']}: {times}")
        for goal in result["goals"] if document["machine"]["cuda"] is not None else ():
            bound = f"{'at least' if goal['is_least'] else 'at most'} {goal['bound']:g}"
            lines.append(
                f"    {'met' if goal['is_met'] else 'MISSED'}: {goal['what']} {goal['value']:.3f}, {bound}"
            )
    return lines
