"""A campaign without an engine: the same command in nine processes, of which three are killed."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.engines.campaigns import LOST, PLAYED, SHARDS, is_in_the_middle, merged, runs_of, start, type_in


def play(folder: Path, number: int) -> subprocess.Popen[str]:
    """Start a shard."""
    return start(folder, *words(folder, number))


def words(folder: Path, number: int) -> tuple[object, ...]:
    """Return the command of a shard, whether it begins or goes on."""
    shard = ("--shard", f"{number}/{SHARDS}", "--jobs", 1, "--output", folder / f"shard-{number}")
    return "soak", *PLAYED, *shard


def kill_in_the_middle(process: subprocess.Popen[str], ledger: Path) -> None:
    """Kill a shard that has played some of its runs, and assert that its child processes end, too."""
    while not is_in_the_middle(ledger):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert psutil.wait_procs(started, timeout=30)[1] == []


@pytest.mark.slow
def test_a_third_of_the_shards_is_killed_and_started_again(tmp_path: Path, whole: bytes) -> None:
    """Three at a time play, one of which is killed; the same command goes on with it."""
    numbers = random.Random(4).sample(range(1, SHARDS + 1), SHARDS)
    killed = dict[int, int]()
    while numbers:
        group = [numbers.pop() for _ in range(SHARDS // LOST)]
        playing = [play(tmp_path, number) for number in group]
        ledger = tmp_path / f"shard-{group[0]}" / "ledger.jsonl"
        kill_in_the_middle(playing[0], ledger)
        killed[group[0]] = runs_of(ledger)
        for process in playing[1:]:
            output, errors = process.communicate(timeout=500)
            assert process.returncode == 0, output + errors
    assert len(killed) == LOST
    for number, runs in killed.items():
        type_in(tmp_path, *words(tmp_path, number))
        assert runs_of(tmp_path / f"shard-{number}" / "ledger.jsonl") > runs > 0
    folders = [tmp_path / f"shard-{number}" for number in range(1, SHARDS + 1)]
    random.Random(8).shuffle(folders)
    assert merged(tmp_path, folders) == whole
