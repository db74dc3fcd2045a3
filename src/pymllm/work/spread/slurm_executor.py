"""Jobs of Slurm behind the interface of `concurrent.futures`, by submitit.

Calls that come shortly after each other are submitted as one array: a scheduler has few places for single
jobs, and none likes a thousand calls of ``sbatch``. A thread looks after the jobs; submitit itself asks Slurm
once a minute at most.
"""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import submitit

from pymllm.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")

_LOOK = 1.0  # seconds between two looks at all jobs
_PATIENCE = 15.0  # seconds that a result may take to be seen here after its job has ended
_ARRAY_MAX = 1_000  # jobs of an array: what Slurm takes by default is one more
_MINUTES = 24 * 60
"""The default minutes of a job, which ``SBATCH_TIMELIMIT`` overrides."""

_Call = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class SlurmExecutor(Executor):
    """An executor that runs each call as a job of Slurm.

    Parameters
    ----------
    folder
        For what submitit and the jobs write; every node must see it under this name. Results are pickles, and
        a campaign's folder may be somebody's: each executor takes a new folder in it, with nothing to read.
    cpus
        Processors of a job.
    partition
        Of the cluster; ``None`` for its default.
    cluster
        As submitit names it; ``local`` runs processes of this machine.

    Raises
    ------
    UsageError
        There is no Slurm here.
    """

    def __init__(
        self, folder: Path, cpus: int = 1, partition: str | None = None, cluster: str = "slurm"
    ) -> None:
        if cluster == "slurm" and shutil.which("srun") is None:
            raise UsageError(
                "--executor slurm: there is no srun here; type it on a machine that submits jobs to Slurm"
            )
        self._submitit = submitit.AutoExecutor(
            folder=folder.absolute() / secrets.token_hex(8), cluster=cluster
        )
        self._submitit.update_parameters(
            name="pymllm-soak",
            timeout_min=_MINUTES,
            cpus_per_task=cpus,
            **({} if partition is None else {"slurm_partition": partition}),
        )
        self._lock = threading.Condition()
        self._calls: list[_Call] = []
        self._jobs: dict[Future[Any], submitit.Job[Any]] = {}
        self._ended: dict[Future[Any], float] = {}  # when a job was seen to have ended without a result
        self._is_closed = False
        self._thread = threading.Thread(target=self._look_after, name="slurm", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call, together with all others made within a second."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._calls.append((future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; without ``wait`` cancel all jobs, with ``cancel_futures`` waiting ones."""
        with self._lock:
            self._is_closed = True
            futures = [*(call[0] for call in self._calls), *self._jobs]
            for future in futures if cancel_futures else ():
                future.cancel()
            if not wait:
                for job in self._jobs.values():
                    _cancel(job)
                self._calls.clear()
                self._jobs.clear()
            self._lock.notify()
        if wait:
            self._thread.join()

    # -- the thread ----------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        while True:
            with self._lock:
                self._lock.wait(_LOOK)
                calls, self._calls = self._calls[:_ARRAY_MAX], self._calls[_ARRAY_MAX:]
                jobs = list(self._jobs.items())
                if self._is_closed and not calls and not jobs:
                    return
            self._submit_all([call for call in calls if not call[0].cancelled()])
            for future, job in jobs:
                self._look_at(future, job)

    def _submit_all(self, calls: list[_Call]) -> None:
        """Submit calls as one array."""
        if not calls:
            return
        try:
            with self._submitit.batch():
                jobs = [self._submitit.submit(fn, *args, **kwargs) for _, fn, args, kwargs in calls]
            for job in jobs:
                _ = job.job_id
        except Exception as error:  # of submitit, or of sbatch
            for future, *_ in calls:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            return
        with self._lock:
            self._jobs |= {call[0]: job for call, job in zip(calls, jobs, strict=True)}

    def _look_at(self, future: Future[Any], job: submitit.Job[Any]) -> None:
        """Report a job's state to its future: running, cancelled or finished."""
        if future.cancelled():
            _cancel(job)
        elif not job.done():
            if not future.running() and job.state.upper() == "RUNNING":
                future.set_running_or_notify_cancel()
            return
        elif not job.paths.result_pickle.exists() and not self._is_late(future):
            return
        elif future.running() or future.set_running_or_notify_cancel():
            try:
                future.set_result(_result_of(job))
            except Exception as error:  # of the job, or what submitit knows of its end
                future.set_exception(error)
        with self._lock:
            self._jobs.pop(future, None)

    def _is_late(self, future: Future[Any]) -> bool:
        """Tell whether the result of an ended job is overdue, as file systems may be slow."""
        return time.monotonic() - self._ended.setdefault(future, time.monotonic()) > _PATIENCE


def _result_of(job: submitit.Job[Any]) -> Any:
    """Return the result of a job, without letting submitit wait for a missing one."""
    if job.paths.result_pickle.exists():
        return job.result()
    said = (job.stderr() or "").strip().splitlines()[-1:]
    raise RuntimeError(f"job {job.job_id} ended as {job.state} and left no result {' '.join(said)}".rstrip())


def _cancel(job: submitit.Job[Any]) -> None:
    with suppress(Exception):  # it may have ended meanwhile
        job.cancel()
