"""What a replay came to, before anybody decides how to print it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pymllm.cli.replay_plan import ReplayPlan

if TYPE_CHECKING:
    from pymllm.workloads.engine import EngineReport
    from pymllm.workloads.serial import SerialReport

__all__ = ["Ceiling", "ReplayGrid", "ReplayResult", "Violation"]


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that a run found broken.

    Parameters
    ----------
    cache : str
        Name of the cache that ran.
    law : str
        Id of the law.
    message : str
        What was expected and what was found.
    """

    cache: str
    law: str
    message: str


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Everything that is printed.

    Parameters
    ----------
    plan : ReplayPlan
        Settled: no default is open any more.
    requests : int
        Requests of the workload.
    versions : dict
        Of whatever the numbers depend on, by name.
    runs : tuple of EngineReport or SerialReport
        One per cache that ran to its end, and, where an interrupt ended one, that one as far as it came.
    violation : Violation or None
        What ended the run after those.
    interruption : KeyboardInterrupt or None
        What ended the last of them early.
    """

    plan: ReplayPlan
    requests: int
    versions: dict[str, str]
    runs: tuple[EngineReport | SerialReport, ...]
    violation: Violation | None = None
    interruption: KeyboardInterrupt | None = None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What caches of one size could hit at most, over the requests that are replayed with it.

    Parameters
    ----------
    page_size, capacity : int
        As used: the capacity rounded down to whole pages.
    prompt_tokens : int
        Of these requests.
    unlimited_hit_rate : float
        Of a cache that never forgets.
    belady_hit_rate : float or None
        Of the best choice that knows the future; ``None`` for an engine, which does not serve requests in
        order.
    """

    page_size: int
    capacity: int
    prompt_tokens: int
    unlimited_hit_rate: float
    belady_hit_rate: float | None


@dataclass(frozen=True, slots=True)
class ReplayGrid:
    """Every cache with every page size and capacity.

    Parameters
    ----------
    results : tuple of ReplayResult
        One for each cache at each point of the grid, of one run each; after an interrupt those that were
        done.
    ceilings : tuple of Ceiling
        One for each point; after an interrupt those that were known.
    interruption : KeyboardInterrupt or None
        What ended it early.
    """

    results: tuple[ReplayResult, ...]
    ceilings: tuple[Ceiling, ...]
    interruption: KeyboardInterrupt | None = None

    @property
    def violation(self) -> Violation | None:
        """The first violation of all, if there is any."""
        return next((one.violation for one in self.results if one.violation is not None), None)
