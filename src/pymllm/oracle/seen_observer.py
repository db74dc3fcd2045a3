"""What the observer of a block allocator was told, saw, raised and met (C6, X2, X6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pymllm.history.operations import Fault
from pymllm.history.outcomes import INJECTED, Effect, Failed, Outcome
from pymllm.oracle.evidence import Evidence

__all__ = ["SeenObserver"]


class SeenObserver:
    """The calls of the observer in one outcome.

    Parameters
    ----------
    evidence : Evidence
        Of the judge.
    outcome : Outcome
        What is judged.
    fault : Fault or None
        What was to happen in it.
    """

    def __init__(self, evidence: Evidence, outcome: Outcome, fault: Fault | None) -> None:
        self._evidence = evidence
        self._outcome = outcome
        self._fault = fault
        self._calls = [effect for effect in outcome.effects if effect.call == "callback"]

    @property
    def blocks(self) -> list[int]:
        """Every block that it was told of, in order."""
        return [block for call in self._calls for block in call.slots]

    @property
    def _struck(self) -> Effect | None:
        """The call in which the fault happened."""
        fault = self._fault
        return None if fault is None or len(self._calls) < fault.nth else self._calls[fault.nth - 1]

    @property
    def raised(self) -> bool:
        """Whether it was let raise."""
        return self._struck is not None and self._fault is not None and self._fault.call == "callback"

    def check_quiet(self, law: str) -> None:
        """Test that nobody was told anything; ``law`` is broken otherwise."""
        if self._outcome.effects:
            self._evidence.refuse(law, "what the observer was told", "nothing", self._outcome.effects)

    def check(self, law: str, blocks: Collection[int], hash_of: Mapping[int, int]) -> None:
        """Test that it was told of exactly these blocks, once each, and in each call of their hashes."""
        if sorted(self.blocks) != sorted(blocks):
            self._evidence.refuse(law, "blocks that the observer is told of", sorted(blocks), self.blocks)
        for call in self._calls:
            hashes = sorted(hash_of[block] for block in call.slots if block in hash_of)
            if [*call.target] != hashes:
                self._evidence.refuse(law, "hashes that the observer is told of", hashes, [*call.target])
        others = [call for call in self._outcome.effects if call.call != "callback" or not call.slots]
        if others:
            self._evidence.refuse(law, "effects that tell nobody of a block", "none", others)
        if blocks:
            self._evidence.count(law)

    def check_inside(self, sizes: Mapping[str, int], after: Mapping[str, int] | None = None) -> None:
        """Test what it saw of the books, and what became of its fault.

        Parameters
        ----------
        sizes : mapping of str to int
            What they are once the blocks are gone, as far as the last call must see them.
        after : mapping of str to int, optional
            What they are told to be at the end, where nothing changes them any more: if it saw just that, the
            books were written, and whatever is wrong with them is no fault of the order (C1, not X6).
        """
        seen: Sequence[Effect] = self._calls[-1:]
        for call in seen:
            told = {name: call.sizes[name] for name in sizes if name in call.sizes}
            wanted = {name: sizes[name] for name in told}
            # An error of its own may have kept them from being written.
            is_written = (
                after is not None and not self.raised and told == {name: after.get(name) for name in told}
            )
            law = "C1" if is_written and told != wanted else "X6"
            self._evidence.expect(law, "sizes inside the observer", wanted, told)
        struck = self._struck
        if self.raised:
            error = self._outcome.result.error if isinstance(self._outcome.result, Failed) else None
            self._evidence.demand(
                "X2", error == INJECTED, "the observer's error", "raised", lambda: self._outcome.result
            )
            self._evidence.meet("an observer raises")
        for call in self._calls:
            if call.note and (call is not struck or self.raised):
                self._evidence.refuse("X6", "calls from inside the observer", "none", call.note)
        if struck is not None and not self.raised:
            self._evidence.expect("X6", "calls from inside the observer", "RuntimeError", struck.note)
            self._evidence.meet("an observer calls the allocator")
