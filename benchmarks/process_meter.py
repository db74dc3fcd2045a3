"""The processor time of a command and of all processes that it starts, daemons included that leave it.

What belongs together has a mark in its environment, or was started by what has; so nothing gets lost that
starts a session of its own, or whose parent is gone. A process is asked every tenth of a second, and what it
takes between the last answer and its end is missed: some 0.05 s for each process, whoever is measured.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

__all__ = ["ProcessMeter"]

EVERY = 0.1  # Seconds between two looks.
YOUNG = 2.0  # Seconds in which a process may still have words and environment of its parent.


class ProcessMeter:
    """Counts processor seconds from `__enter__` to `__exit__`, which ends what is left.

    ``environment`` is what those must be started with that count. ``is_part`` tells by its command line
    whether a process is of the part that is counted apart, with all that it starts.
    """

    def __init__(self, is_part: Callable[[list[str]], bool] = lambda words: False) -> None:
        self._name, self._mark = "PYMLLM_METER", secrets.token_hex(8)
        self.environment = {**os.environ, self._name: self._mark}
        self._is_part = is_part
        self._found: dict[psutil.Process, float] = {}  # processor seconds
        self._part: set[psutil.Process] = set()
        self._strangers: set[psutil.Process] = set()
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)

    def __enter__(self) -> ProcessMeter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        left = self.running()
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)

    def running(self) -> list[psutil.Process]:
        """Return the counted processes that have not ended."""
        self._look()
        return [it for it in self._found if it.is_running() and it.status() != psutil.STATUS_ZOMBIE]

    def seconds(self) -> tuple[float, float]:
        """Return processor seconds so far: of all, and of the part."""
        self._look()
        with self._lock:
            return sum(self._found.values()), sum(self._found[it] for it in self._part)

    def _watch(self) -> None:
        while not self._ends.wait(EVERY):
            self._look()

    def _look(self) -> None:
        with self._lock:
            there = {it.pid: it for it in psutil.process_iter()}
            for process in there.values():
                with suppress(psutil.Error):
                    if self._counts(process, there):
                        times = process.cpu_times()
                        self._found[process] = times.user + times.system

    def _counts(self, process: psutil.Process, there: dict[int, psutil.Process]) -> bool:
        """Tell whether a process counts, and note whether it is of the part."""
        if process in self._strangers:
            return False
        parent = there.get(process.ppid())
        if process not in self._found and parent not in self._found and not self._has_mark(process):
            if time.time() - process.create_time() > YOUNG:
                self._strangers.add(process)
            return False
        if process not in self._part and (parent in self._part or self._is_part(process.cmdline())):
            self._part.add(process)
        return True

    def _has_mark(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(self._name) == self._mark
        except psutil.Error:  # of somebody else
            return False
