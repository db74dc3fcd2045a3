"""The JSON document of a replay. Its fields are promised: docs/replay.md lists them.

The version counts up when a field goes away or changes its meaning; a new field does not change it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pymllm.cli.replay_result import ReplayGrid, ReplayResult

__all__ = ["SCHEMA", "VERSION", "make_document", "make_grid_document"]

SCHEMA = "pymllm.replay"
VERSION = 1


def make_document(result: ReplayResult) -> dict[str, Any]:
    """Put a result into plain data.

    Parameters
    ----------
    result : ReplayResult
        Of a finished, broken-off or interrupted replay.

    Returns
    -------
    dict
        Nothing but dicts, lists, strings, numbers, bools and ``None``; names a schema and a version.
    """
    plan = result.plan
    workload = {
        "name": plan.workload,
        "kind": "named" if plan.is_named else "trace",
        "requests": result.requests,
        "seed": plan.seed,
        "block_tokens": None if plan.is_named else plan.block_tokens,
    }
    asked = {"capacity": plan.capacity, "swa_capacity": plan.swa_capacity}
    document: dict[str, Any] = msgspec.to_builtins(
        {
            "schema": SCHEMA,
            "version": VERSION,
            "versions": result.versions,
            "workload": workload,
            "mode": plan.mode,
            "asked": asked,
            "runs": list(result.runs),
            "violation": result.violation,
            "interrupted": result.interruption is not None,
        }
    )
    return document


def make_grid_document(grid: ReplayGrid) -> dict[str, Any]:
    """Put several results into one document: that of the first, with the runs of all.

    Parameters
    ----------
    grid : ReplayGrid
        At least one result.

    Returns
    -------
    dict
        As `make_document`, and ``asked.capacities``, ``asked.page_sizes`` and ``ceilings``.
    """
    first = grid.results[0]
    document = make_document(first)
    document["workload"]["requests"] = max(one.requests for one in grid.results)
    document["asked"]["capacities"] = list(dict.fromkeys(one.plan.capacity for one in grid.results))
    document["asked"]["page_sizes"] = list(dict.fromkeys(one.plan.page_size for one in grid.results))
    document["runs"] = [run for one in grid.results for run in make_document(one)["runs"]]
    document["ceilings"] = msgspec.to_builtins(list(grid.ceilings))
    document["violation"] = msgspec.to_builtins(grid.violation)
    document["interrupted"] = grid.interruption is not None
    return document
