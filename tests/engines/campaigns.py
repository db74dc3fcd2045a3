"""A campaign that is typed as a command, some of whose shards are killed in the middle."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from pymllm.soak.ledger import CampaignHeader, read_ledger
from pymllm.soak.schedule import runs_of_shard

ROOT = Path(__file__).parents[2]
SHARDS, LOST = 9, 3
"""Shards of the campaign, and the third of them that is killed."""
_ADAPTERS = ("--adapter", "rows", "--adapter", "token-slots", "--seed", "11")
PLAYED = (*_ADAPTERS, "--operations", "240000", "--longest", "6000")
"""Some seven runs for each of nine shards, a second of play."""
SHORT = (*_ADAPTERS, "--operations", "80000", "--longest", "6000")
"""The same for three shards."""
_PATIENCE = 500.0  # seconds
_ENDING = 30.0  # seconds that a shard has to end behind its worker: a busy machine


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a node and of the command; what shards write lies in the folder."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def start(folder: Path, *words: object) -> subprocess.Popen[str]:
    """Start ``pymllm`` in a process of its own, and keep its output."""
    return subprocess.Popen(
        [sys.executable, "-m", "pymllm", *map(str, words), "--progress", "off"],
        env=environment(folder),
        cwd=ROOT,  # where this folder's engines are found
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def type_in(folder: Path, *words: object) -> None:
    """Let a command end, which must say that all is well."""
    with start(folder, *words) as process:
        output, errors = process.communicate(timeout=_PATIENCE)
    assert process.returncode == 0, output + errors


def single(folder: Path, played: Sequence[str]) -> bytes:
    """Play the campaign in one process, and return its ledger, merged alone."""
    type_in(folder, "soak", *played, "--jobs", 1, "--output", folder / "campaign")
    return merged(folder, [folder / "campaign"])


def merged(folder: Path, parts: Sequence[Path]) -> bytes:
    """Merge what was played, and return the ledger."""
    type_in(folder, "merge", *parts, "--output", folder / "merged")
    return (folder / "merged" / "ledger.jsonl").read_bytes()


def is_in_the_middle(ledger: Path) -> bool:
    """Tell whether a shard has played some of its runs, and has more than one before it."""
    try:
        lines = ledger.read_bytes().count(b"\n")
    except FileNotFoundError:
        return False
    if lines < 2:
        return False
    header = next(iter(read_ledger(ledger)))
    assert isinstance(header, CampaignHeader)
    return lines - 1 <= sum(1 for _ in runs_of_shard(header)) - 2


def runs_of(ledger: Path) -> int:
    """Count the runs of a ledger, each of which is a line behind the first."""
    return ledger.read_bytes().count(b"\n") - 1


def kill(process: psutil.Process) -> None:
    """End a process as a system without memory does; what it has started ends by itself."""
    started = process.children(recursive=True)
    process.kill()
    assert psutil.wait_procs(started, timeout=_ENDING)[1] == [], "they outlived who had started them"


class Campaign:
    """``pymllm soak --executor`` in a process of its own, which is ended with the test."""

    def __init__(self, folder: Path, *options: object, words: Sequence[str] = ()) -> None:
        self.folder = folder / "campaign"
        self.lost: dict[str, int] = {}  # by the shard's name: its runs when its worker was killed
        self._nodes = folder
        self.process = start(folder, *(words or ("soak", *options, "--output", self.folder)))

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        left = [] if self.process.poll() is not None else psutil.Process(self.process.pid).children(True)
        self.process.kill()
        for process in left:  # of a test that failed
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.communicate()

    def lose(
        self, by: Callable[[psutil.Process], bool], kill: Callable[[psutil.Process], None] = kill
    ) -> None:
        """Wait until a shard that was never lost is in the middle, and kill its worker, which one asks for.

        The worker is the engine's process that has started the shard; that ends behind it.
        """
        folder, shard, worker = self.wait_for_play(by)
        started = [shard, *shard.children(recursive=True)]
        assert not (self.folder / "shards" / folder.name).exists()
        self.lost[folder.name] = runs_of(folder / "ledger.jsonl")
        kill(worker)
        assert psutil.wait_procs(started, timeout=_ENDING)[1] == [], "a shard outlived its worker"

    def wait_for_play(
        self, by: Callable[[psutil.Process], bool]
    ) -> tuple[Path, psutil.Process, psutil.Process]:
        """Return a shard in the middle: its folder, its process, and its worker, which one asks for."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            for folder, shard in self._played():
                with suppress(psutil.NoSuchProcess):
                    worker = None if folder.name in self.lost else shard.parent()
                    if worker is not None and is_in_the_middle(folder / "ledger.jsonl") and by(worker):
                        return folder, shard, worker
            time.sleep(0.05)
        said = self.end() if self.process.poll() is not None else "it still plays"
        raise AssertionError(f"no shard was found in the middle: {said}")

    def _played(self) -> Iterator[tuple[Path, psutil.Process]]:
        """Yield the folder and the process of each shard that is played now."""
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "--shard" in words and "--output" in words[:-1]:
                folder = Path(words[words.index("--output") + 1])
                if folder.is_relative_to(self._nodes):
                    yield folder, process

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the status, and what was printed."""
        output, errors = self.process.communicate(timeout=_PATIENCE)
        return self.process.returncode, output, errors

    def end_well(self, whole: bytes) -> str:
        """Wait for an end with the ledger ``whole`` despite all losses, and return the error output."""
        status, output, errors = self.end()
        assert status == 0, output + errors
        for name, runs in self.lost.items():
            assert 0 < runs < runs_of(self.folder / "shards" / name / "ledger.jsonl")
        assert self.ledger() == whole
        return errors

    def ledger(self) -> bytes:
        """Return the merged ledger."""
        return (self.folder / "ledger.jsonl").read_bytes()


def is_below(process: psutil.Process, ancestor: int) -> bool:
    """Tell whether one process was started by another, or by one that was."""
    return any(it.pid == ancestor for it in process.parents())


def taken_over(errors: str) -> int:
    """Return how many runs of lost attempts the command says were not played again."""
    found = re.search(r"taken over from attempts that were lost: (\d+) run", errors)
    return int(found[1]) if found else 0


def tried_again(errors: str) -> set[str]:
    """Return the names of the shards that the command says it tried again."""
    found = re.search(r"tried again after a loss: \d+ attempts? of shards? ([\d, ]+);", errors)
    return {f"{number}-of-{SHARDS}" for number in found[1].split(", ")} if found else set()
