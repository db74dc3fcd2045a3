"""The result of a probe."""

from __future__ import annotations

from dataclasses import dataclass, field

from pymllm.probing.judge import Judgement
from pymllm.probing.programs import requests_of
from pymllm.probing.records import History


@dataclass(slots=True)
class Probed:
    """The result of a probe: the history, its judgement, and the cause of any early end."""

    history: History
    judgement: Judgement
    failure: str | None = None
    interruption: KeyboardInterrupt | None = None
    smallest: History | None = None
    unshrunk: str | None = None
    tries: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """The number of requests made, without cold repetitions."""
        return requests_of(self.history.program)
