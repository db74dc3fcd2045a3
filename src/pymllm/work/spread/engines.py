"""Engines that play shards: objects with the interface of `concurrent.futures.Executor`, by name.

Each engine is imported where it is asked for. What they do beyond an executor is told by three functions: how
many shards are played at once, and how the engine is let go of.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymllm.errors import UsageError
from pymllm.text_file import cut

FORMS = "ray, ray:ADDRESS, dask:ADDRESS, slurm, slurm:PARTITION, or module:factory"
_DASK_SECONDS = 20.0  # in which a scheduler must answer


@dataclass
class Engine:
    """An executor, with facts about it."""

    open: Callable[[], Executor]
    # how many shards are played at once, as far as the executor tells
    count: Callable[[Executor], int | None] = lambda executor: None
    # lets go of the executor: with everything that is still played, or not
    end: Callable[[Executor, bool], None] = lambda executor, at_once: executor.shutdown(
        wait=not at_once, cancel_futures=True
    )
    queues: bool = False  # whether it has a queue of its own, where shards may wait as well
    executor: Executor = field(init=False)
    _workers: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.executor = self.open()

    @property
    def workers(self) -> int | None:
        """The number of shards played at once; the last known number if the engine does not respond."""
        with suppress(Exception):  # of an engine that is about to be lost
            self._workers = self.count(self.executor)
        return self._workers

    @property
    def room(self) -> int | None:
        """The number of shards to submit at once; ``None`` for all."""
        workers = None if self.queues else self.workers
        return None if workers is None else max(1, workers)

    def restart(self) -> None:
        """Replace a broken executor by a new one; if that fails, keep the broken one."""
        with suppress(Exception, SystemExit):
            self.executor.shutdown(wait=False, cancel_futures=True)
        with suppress(Exception, SystemExit):
            self.executor = self.open()

    def close(self, *, at_once: bool = False) -> None:
        """Close the executor; ``at_once`` abandons running shards."""
        with suppress(Exception, SystemExit):  # it may be gone already
            self.end(self.executor, at_once)


def open_engine(name: str, jobs: int, folder: Path) -> Engine:
    """Open an engine named in one of the `FORMS`.

    A shard takes ``jobs`` processors. ``folder`` is where an engine may keep what it has to say. `UsageError`
    names what is missing or does not answer.
    """
    kind, _, rest = name.partition(":")
    try:
        if kind == "ray":
            return _open_ray(rest, jobs)
        if kind == "dask":
            return _open_dask(rest)
        if kind == "slurm":
            return _open_slurm(rest, jobs, folder)
    except ImportError as error:
        package = {"ray": "ray", "dask": "distributed", "slurm": "submitit"}[kind]
        raise UsageError(
            f"--executor {cut(name)} needs the package {package}, which cannot be imported ({error}); "
            f"pip install 'pymllm[{kind}]'"
        ) from None
    return _open_factory(name)


def _open_ray(address: str, jobs: int) -> Engine:
    from pymllm.work.spread.ray_executor import RayExecutor

    return Engine(
        lambda: RayExecutor(address or None, jobs),
        lambda executor: executor.workers,  # type: ignore[attr-defined]
    )


def _open_dask(address: str) -> Engine:
    from distributed import Client

    if not address:
        raise UsageError("--executor dask needs the scheduler's address, such as dask:tcp://HOST:8786")
    where = {"scheduler_file" if address.endswith(".json") else "address": address}
    try:
        client = Client(**where, timeout=_DASK_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise UsageError(
            f"--executor dask:{address}: no scheduler answers there ({cut(text, 200)})"
        ) from None

    def end(executor: Executor, at_once: bool) -> None:
        executor.shutdown(wait=not at_once)
        client.close()

    # By itself, Dask gives what a lost worker had to another one, some times.
    return Engine(
        lambda: client.get_executor(pure=False, retries=0),
        lambda executor: sum(client.nthreads().values()),
        end,
    )


def _open_slurm(partition: str, jobs: int, folder: Path) -> Engine:
    from pymllm.work.spread.slurm_executor import SlurmExecutor

    return Engine(lambda: SlurmExecutor(folder, jobs, partition or None), queues=True)


def _open_factory(name: str) -> Engine:
    module, _, factory = name.partition(":")
    if not factory:
        raise UsageError(f"--executor {cut(name)!r}; it must be one of {FORMS}")
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"--executor {cut(name)}: {module} cannot be imported ({error})") from None
    except (Exception, SystemExit) as error:  # it is somebody's code, which runs when it is imported
        raise _refusal(name, error) from error
    if not hasattr(imported, factory):
        raise UsageError(f"--executor {cut(name)}: {module} has no {factory}")

    def make() -> Executor:
        try:
            made: Any = getattr(imported, factory)()
        except UsageError:
            raise
        except (Exception, SystemExit) as error:
            raise _refusal(name, error) from error
        if not isinstance(made, Executor):
            raise UsageError(
                f"--executor {cut(name)} gave {type(made).__name__}, which is no concurrent.futures.Executor"
            )
        return made

    return Engine(make, _count_workers)


def _refusal(name: str, error: BaseException) -> UsageError:
    text = " ".join(str(error).split())
    return UsageError(f"--executor {cut(name)}: {type(error).__name__}{text and f': {cut(text, 200)}'}")


def _count_workers(executor: Executor) -> int | None:
    """Return an executor's number of workers, by the attributes of known executors."""
    for name in ("_max_workers", "num_workers"):
        count = getattr(executor, name, None)
        if isinstance(count, int) and count > 0:
            return count
    return None
