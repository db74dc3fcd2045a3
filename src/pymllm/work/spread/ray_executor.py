"""Ray's tasks behind the interface of `concurrent.futures`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

import ray

from pymllm.errors import UsageError
from pymllm.text_file import cut

P = ParamSpec("P")
T = TypeVar("T")


class RayExecutor(Executor):
    """An executor that runs each call as a task of Ray, on any node with room.

    Parameters
    ----------
    address
        Of a cluster, as `ray.init` takes it; ``None`` for the one that ``RAY_ADDRESS`` or this machine has,
        or else a new one of this machine alone.
    cpus
        Processors of a task.

    Raises
    ------
    UsageError
        No cluster answers at the address.
    """

    def __init__(self, address: str | None, cpus: int = 1) -> None:
        self._cpus = cpus
        self._refs: dict[Future[Any], Any] = {}
        self._is_closed = False
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told of somebody's campaign
        self._is_ours = not ray.is_initialized()
        if not self._is_ours:
            return
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            text = cut(" ".join(str(error).split()), 200)
            raise UsageError(f"--executor ray:{address}: no cluster answers there ({text})") from None

    @property
    def workers(self) -> int:
        """The number of tasks that the cluster can run at once, at least 1 since it may grow."""
        return max(1, int(ray.cluster_resources().get("CPU", 0)) // self._cpus)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call to Ray, which runs it without retries, as these are the caller's decision."""
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        remote = ray.remote(num_cpus=self._cpus, max_retries=0, scheduling_strategy="SPREAD")(fn)
        ref = remote.remote(*args, **kwargs)
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # Ray tells nobody when a task begins
        self._refs[future] = ref
        ref.future().add_done_callback(lambda told: self._pass_on(told, future))
        return future

    def _pass_on(self, told: Future[T], future: Future[T]) -> None:
        self._refs.pop(future, None)
        error = told.exception()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(told.result())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; without ``wait``, cancel unfinished ones and leave the cluster."""
        self._is_closed = True
        if wait and not cancel_futures:
            for future in list(self._refs):
                future.exception()
        for ref in list(self._refs.values()):
            ray.cancel(ref, force=False)
        if self._is_ours:
            ray.shutdown()
