"""What a replay came to, before anybody decides how to print it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pymllm.cli.replay_plan import ReplayPlan

if TYPE_CHECKING:
    from pymllm.workloads.engine import EngineReport
    from pymllm.workloads.serial import SerialReport

__all__ = ["ReplayResult", "Violation"]


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
        One per cache that ran to its end.
    violation : Violation or None
        What ended the run after those.
    """

    plan: ReplayPlan
    requests: int
    versions: dict[str, str]
    runs: tuple[EngineReport | SerialReport, ...]
    violation: Violation | None = None
