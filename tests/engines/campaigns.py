"""A campaign as somebody types it, beside an engine of which something is killed in the middle."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
PLAYED = (
    *("--adapter", "rows", "--adapter", "token-slots"),
    *("--operations", "60000", "--longest", "3000", "--seed", "11"),
)
"""Of some thirty runs; a shard takes seconds."""
_PATIENCE = 500.0  # seconds


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a node and of the command; what shards write lies in the folder."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


class Campaign:
    """``pymllm soak`` in a process of its own, which is ended with the test."""

    def __init__(self, folder: Path, *options: object, words: Sequence[str] = ()) -> None:
        self.folder = folder / "campaign"
        self._nodes = folder
        words = words or ("soak", *PLAYED, "--output", str(self.folder), *map(str, options))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pymllm", *words, "--progress", "off"],
            env=environment(folder),
            cwd=ROOT,  # where this folder's engine is found
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_for_play(self, by: Callable[[psutil.Process], bool]) -> psutil.Process:
        """Wait until a shard has runs in its ledger, whose process one asks for; return that process."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            for ledger in self._nodes.glob("pymllm-*/*-of-*/ledger.jsonl"):
                for shard in _processes_with(str(ledger.parent)):
                    if ledger.exists() and ledger.read_bytes().count(b"\n") > 1 and by(shard):
                        return shard
            time.sleep(0.1)
        raise AssertionError(f"no shard was played: {self.process.poll()}")

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the status, and what was printed."""
        output, errors = self.process.communicate(timeout=_PATIENCE)
        return self.process.returncode, output, errors

    def ledger(self) -> bytes:
        """Return the merged ledger."""
        return (self.folder / "ledger.jsonl").read_bytes()


def single(folder: Path) -> bytes:
    """Play the campaign in one process, and return its ledger, merged alone."""
    folder.mkdir()
    words = ("soak", *PLAYED, "--jobs", "1", "--output", str(folder / "campaign"))
    merge = ("soak", "merge", str(folder / "campaign"), "--output", str(folder / "merged"))
    for command in (words, merge):
        done = subprocess.run(
            [sys.executable, "-m", "pymllm", *command],
            env=environment(folder),
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "merged" / "ledger.jsonl").read_bytes()


def _processes_with(word: str) -> Sequence[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if word in (process.info["cmdline"] or ()):
            found.append(process)
    return found


def is_below(process: psutil.Process, ancestor: int) -> bool:
    """Tell whether one process was started by another, or by one that was."""
    try:
        return any(it.pid == ancestor for it in process.parents())
    except psutil.NoSuchProcess:
        return False


def taken_over(errors: str) -> int:
    """Return how many runs of lost attempts the command says were not played again."""
    found = re.search(r"taken over from attempts that were lost: (\d+) run", errors)
    return int(found[1]) if found else 0


def retried(errors: str) -> int:
    """Return how many attempts the command says were made again."""
    found = re.search(r"tried again after a loss: (\d+) attempt", errors)
    return int(found[1]) if found else 0
