"""What the parts of the judge of whole requests share: the model, the evidence, and what was let fail."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import Fault
from pymllm.history.outcomes import INJECTED, Failed, Outcome
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.request_model import RequestModel, ServedRequest

__all__ = ["RequestBooks"]


class RequestBooks:
    """The model of one context, and tests that more than one operation needs.

    Parameters
    ----------
    header : Header
        Of the history.
    evidence : Evidence
        Takes what was tested.

    Attributes
    ----------
    model : RequestModel
        What the context must be like.
    fault : Fault or None
        The call that the operation at hand was told to let fail.
    has_states : bool
        Whether states are cached at all.
    """

    def __init__(self, header: Header, evidence: Evidence) -> None:
        self.evidence = evidence
        self.model = RequestModel(header.config)
        self.claims = frozenset(header.capabilities)
        self.fault: Fault | None = None
        self.has_states = self.model.slots.count > 0
        if self.has_states != ("mamba" in self.claims):
            raise ProgramError("an adapter with slots for states claims mamba, and no other does")

    def find(self, step: int, act: str) -> ServedRequest | None:
        """Return the request of a step, which must be able to do something; ``None`` once it was released.

        Raises
        ------
        ProgramError
            The step added no request, or the request was in a step that failed and can only leave.
        """
        if step in self.model.gone:
            return None
        if step not in self.model.served:
            raise ProgramError(f"step {step} added no request that could {act}")
        request = self.model.served[step]
        if request.is_spoiled and act != "leave":
            raise ProgramError(
                f"the request of step {step} was in a step that failed; it can only be released"
            )
        return request

    def is_struck(self, outcome: Outcome, *calls: str) -> bool:
        """Tell whether an operation failed because one of these calls was told to."""
        result = outcome.result
        if not isinstance(result, Failed) or result.error != INJECTED:
            return False
        return self.is_armed(*calls)

    def is_armed(self, *calls: str) -> bool:
        """Tell whether one of these calls was told to fail."""
        return self.fault is not None and self.fault.call in calls

    def demand_strike(self, what: str, outcome: Outcome, *calls: str, made: int = 1) -> None:
        """Refuse an outcome of an operation in which a call was to fail, if as many were made for sure."""
        if self.is_armed(*calls) and self.fault is not None and self.fault.nth <= made:
            self.evidence.refuse("X2", f"{what} whose {self.fault.call} fails", INJECTED, outcome.result)

    def survive(self, what: str, outcome: Outcome | None = None) -> str:
        """Count a failure that has left no trace, and return the law of its traces."""
        if outcome is not None:
            self.check_effects("X2", "what failed", (), outcome)
        if "faults" in self.claims:
            self.evidence.count("X2")
        self.evidence.meet(what)
        return "X2"

    def check_effects(self, law: str, what: str, expected: Collection[int], outcome: Outcome) -> None:
        """Test which blocks were told to be deregistered or free, each once, whatever the order."""
        others = [effect.call for effect in outcome.effects if effect.call != "callback"]
        if others:
            self.evidence.refuse(law, f"effects of {what}", "callbacks alone", others)
        told = sorted(block for effect in outcome.effects for block in effect.slots)
        if expected or told:
            self.evidence.expect(law, f"blocks that {what} gives up", sorted(expected), told)

    def check_new(self, request: ServedRequest, blocks: Sequence[int], missing: int) -> list[int]:
        """Test the row of a request that has got ``missing`` new blocks; return those.

        Parameters
        ----------
        request : ServedRequest
            With the blocks that it had before.
        blocks : sequence of int
            Its row now.
        missing : int
            How many it needed; what was evicted for that is already free in the model.
        """
        had, evidence = len(request.blocks), self.evidence
        if had:
            evidence.expect(
                "E2", f"first blocks of request {request.step}", tuple(request.blocks), tuple(blocks[:had])
            )
        new = [*blocks[had:]]
        evidence.expect("E2", f"blocks of request {request.step}", had + missing, len(blocks))
        wrong = [block for block in new if not self.model.blocks.is_free(block)]
        if new:
            distinct = len({*new}) == len(new)
            evidence.demand(
                "C1", distinct and not wrong, "blocks handed out", "free ones, each once", lambda: new
            )
        return new
