"""A cell of a grid of replays: one run, or one upper bound of hits, with the key of its stored result."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy
import torch

from pymllm import __version__
from pymllm.documents.replays import CeilingRow, ReplayDocument, column_of
from pymllm.documents.runs import read_as
from pymllm.replay.plan import ReplayPlan, SettledPlan
from pymllm.search.foreign_source import digest_modules
from pymllm.work.kept import KeptResults, Work
from pymllm.workloads.request import Request


@dataclass(frozen=True, slots=True)
class Replayed:
    """A finished, stopped or interrupted replay, with all defaults of its plan filled in.

    An interrupt leaves the run that it ended as far as it came. ``kept`` of its runs were in a file before.
    """

    plan: ReplayPlan
    document: ReplayDocument
    interruption: KeyboardInterrupt | None = None
    kept: int = 0


@dataclass(frozen=True, eq=False)
class Cell:
    """A cache with a policy at one point of a grid; or, without a cache, the upper bound of hits there.

    A trace was read once, into ``requests``; a named workload is made where it is
    played. ``content`` and ``source`` are digests of the requests and of a stranger's policy; nobody needs
    them who keeps no results.
    """

    plan: SettledPlan
    requests: list[Request] | None = field(default=None, repr=False)
    content: str = ""
    source: str = ""

    @property
    def is_ceiling(self) -> bool:
        """Whether the cell computes the upper bound of hits, and has no cache."""
        return not self.plan.caches

    @property
    def title(self) -> str:
        """The title of the cell, unique among the cells of its workload."""
        name = "ceiling" if self.is_ceiling else column_of(*self.plan.columns[0])
        return f"{name} (page size {self.plan.page_size}, capacity {self.plan.capacity})"

    @property
    def weight(self) -> int:
        """The approximate duration, relative to other cells of its mode.

        Of processor time over the head of a recorded trace, an engine takes some 200 times what its ceiling
        does, and with blocks four to seven times more; a serial replay's ceiling, with Belady's, takes a half
        of what the replay does.
        """
        if self.is_ceiling:
            return 1
        if self.plan.mode == "serial":
            return 2
        return 500 if self.plan.has_blocks else 100


Result = Replayed | CeilingRow
KeptReplays = KeptResults[Cell, Result]


def versions_of_run() -> dict[str, str]:
    """Return the versions of packages that may change a replay's numbers."""
    return {
        "pymllm": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
    }


def keep_replays(path: Path) -> KeptReplays:
    """Open a file that keeps runs and bounds for equal requests, options and policy sources."""
    return KeptResults(path, _WORK, versions_of_run())


def digest_content(plan: ReplayPlan, requests: Sequence[Request]) -> str:
    """Return a digest of a settled plan's requests, whatever the name of their file.

    Those that were read count, so that the options of reading need not. A named workload's are made by this
    package, and follow from its name, number, seed and capacity.
    """
    if plan.is_named:
        return f"{plan.workload}, {plan.requests} requests, seed {plan.seed}"
    digest, encoder = hashlib.sha256(), msgspec.msgpack.Encoder()
    for request in requests:
        digest.update(encoder.encode(request))
    return digest.hexdigest()


def digest_policies(plan: ReplayPlan) -> dict[str, str]:
    """Return a digest of the source of each policy outside this package."""
    named = {policy: policy.partition(":")[0] for policy in plan.eviction_policies if ":" in policy}
    return {policy: digest_modules([module]) for policy, module in named.items()}


_OF_REQUESTS = frozenset(
    (
        "workload",
        "requests",
        "format",
        "block_tokens",
        "tokenizer",
        "nested_times",
        "conversations",
        "turns",
        "lenient",
    )
)  # they say which requests there are, and those count
_OF_CEILING = ("mode", "page_size", "capacity")


def _key_of(cell: Cell) -> str:
    plan = asdict(cell.plan)
    matters = _OF_CEILING if cell.is_ceiling else [name for name in plan if name not in _OF_REQUESTS]
    return f"{cell.content} {cell.source} { ({name: plan[name] for name in matters})!r}"


def _pack(result: Result) -> Any:
    return result.document.plain() if isinstance(result, Replayed) else msgspec.to_builtins(result)


def _unpack(cell: Cell, plain: Any) -> Result:
    if cell.is_ceiling:
        return msgspec.convert(plain, CeilingRow)
    document = read_as(ReplayDocument, plain)
    if len(document.runs) + (document.violation is not None) != 1:
        raise ValueError("it is not of one run")
    workload = msgspec.structs.replace(document.workload, name=cell.plan.workload)  # it may have been moved
    return Replayed(cell.plan, msgspec.structs.replace(document, workload=workload))


_WORK: Work[Cell, Result] = Work(
    "replay",
    _key_of,
    lambda cell: f"{cell.plan.workload} {cell.title}",
    _pack,
    _unpack,
    lambda cell, result: not (isinstance(result, Replayed) and result.interruption),
)
