"""The processes that a test starts, and their descendants: which they are, whether they run, how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


def is_running(process: int) -> bool:
    """Tell whether a process is neither gone nor a zombie, whose end its parent has not noted yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(process: int) -> set[int]:
    """Return the processes that a process has started, and all their descendants."""
    found = set()
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, task.read_text(encoding="utf-8").split()):
            found |= {child} | children_of(child)
    return found


def left_of(processes: Iterable[int], seconds: float = 30) -> list[int]:
    """Return the processes that still run after so many seconds, at once if none does."""
    deadline = time.monotonic() + seconds
    while (left := [one for one in processes if is_running(one)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The outcome of a command that got a signal, and the processes that it had started by then."""

    status: int
    out: str
    err: str
    children: set[int]


def interrupt(command: Sequence[str], sent: signal.Signals, children: int) -> Interrupted:
    """Send a signal to a command's group, as a terminal does, once it has started so many processes."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background jobs ignore SIGINT, and their children with them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        deadline = time.monotonic() + 60
        while len(found := children_of(process.pid)) < children and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        found |= children_of(process.pid)
        os.killpg(process.pid, sent)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return Interrupted(process.returncode, out, err, found)
