"""Clusters on this machine for `benchmarks.engine_overhead`: a cluster is held until its caller ends it.

``python -m benchmarks.engine_cluster ray 2`` starts two nodes, says where they are, and ends them when its
standard input ends.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager

__all__ = ["CLUSTERS", "OPENING", "WORKERS", "processes"]

OPENING = "held: "
"""What the line begins with that says how ``--executor`` names a cluster."""
WORKERS = "PYMLLM_BENCH_WORKERS"
"""The variable that says `processes` how many there are."""


def processes() -> ProcessPoolExecutor:
    """Return Python's own executor, as ``--executor module:factory`` calls for it."""
    return ProcessPoolExecutor(int(os.environ[WORKERS]))


@contextmanager
def _hold_ray(workers: int) -> Iterator[str]:
    """A node with one processor for each worker."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for _ in range(workers):
            cluster.add_node(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False)
        cluster.wait_for_nodes()
        yield f"ray:{cluster.address}"
    finally:
        cluster.shutdown()


@contextmanager
def _hold_dask(workers: int) -> Iterator[str]:
    """A process with one thread for each worker."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        host="127.0.0.1",
        memory_limit=0,
    ) as cluster:
        yield f"dask:{cluster.scheduler_address}"


CLUSTERS: Mapping[str, Callable[[int], AbstractContextManager[str]]] = {"ray": _hold_ray, "dask": _hold_dask}
"""Engines that have a cluster, by the name of their package or of what is made of it."""


def main(arguments: Sequence[str]) -> int:
    """Hold a cluster; exit status 0."""
    name, workers = arguments
    warnings.simplefilter("ignore")
    with CLUSTERS[name](int(workers)) as address:
        print(f"{OPENING}{address}", flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
