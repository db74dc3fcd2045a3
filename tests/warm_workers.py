"""Worker processes, forked from one that has imported what they need: torch takes each two seconds."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from pymllm.work import workers

START_COLD = workers._start
_TESTS = os.getpid()
PRELOADED = (
    *("torch", "hypothesis.stateful", "pymllm.search.runner"),
    *("pymllm.adapters.own_blocks", "pymllm.adapters.own_caches", "pymllm.adapters.own_requests"),
)
"""Without `pymllm.soak.player`, which names the process when it is imported."""


class WarmProcess:
    """A forked process with the few words of `subprocess.Popen` that `WorkerProcess` says."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a warm process", timeout or 0.0)
        return self.returncode


def start_warm(descriptor: int) -> WarmProcess | subprocess.Popen[bytes]:
    """Stand in for `pymllm.work.workers._start`; the first call starts the process to fork from.

    A copy of the tests' process, which has limits of its own, hands them on to a new interpreter.
    """
    if os.getpid() != _TESTS:
        return START_COLD(descriptor)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    ready, begun = context.Pipe(duplex=False)
    # What a new interpreter gets: a link, standard error, and the environment. Only connections travel.
    with Connection(os.dup(descriptor)) as link, Connection(os.dup(2)) as errors, begun:
        process = context.Process(target=_begin, args=(link, errors, begun, dict(os.environ)))
        process.start()
    with ready:
        ready.poll(60)  # until it has a group, by which it is ended
    return WarmProcess(process)


def _begin(link: Connection, errors: Connection, begun: Connection, environment: dict[str, str]) -> None:
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    for descriptor in (1, 2):
        os.dup2(errors.fileno(), descriptor)
    errors.close()
    begun.close()
    workers.serve(link.fileno())


def stop_warm() -> None:
    """End the process to fork from and its resource tracker; the next `start_warm` starts both again."""
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()
