"""What the parts of the prefix judge share: model, ledger, what is known of nodes, and what is claimed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from pymllm.errors import ProgramError
from pymllm.history.codec import name_of
from pymllm.history.config_limits import read_number
from pymllm.history.files import Header
from pymllm.history.operations import Fault, Key
from pymllm.history.outcomes import INJECTED, Failed, Outcome
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.laws import laws_of
from pymllm.oracle.models.prefix_model import Path, PrefixModel, StateEnds, path_of_key
from pymllm.oracle.models.slot_ledger import SlotLedger, TrackLedger
from pymllm.oracle.node_book import NodeBook

R = TypeVar("R")


class PrefixBooks:
    """The state of one judgement of a prefix cache; `ProgramError` where configuration and claims disagree.

    Of the configuration it reads ``page_size``; ``window``; ``pool`` (``none``, ``token`` or ``swa``),
    ``slots`` and ``swa_slots``; ``retains``, false for a cache that keeps nothing; ``track_slots`` where
    states are kept; ``splits``, false for a cache whose every node is one page.
    """

    def __init__(self, header: Header, evidence: Evidence) -> None:
        self.evidence = evidence
        self.claims = frozenset(header.capabilities)
        self.laws = frozenset(law.id for law in laws_of("prefix") if law.is_claimed_by(self.claims))
        self.config = header.config
        self.page_size = read_number(self.config, "page_size")
        self.window = None if header.config.get("window") is None else read_number(self.config, "window")
        self.pool = str(header.config.get("pool", "none"))
        self.splits = header.config.get("splits", True) is not False
        self.retains = header.config.get("retains", True) is not False
        self._check_claims()
        self.has_pool, self.has_halves = self.pool != "none", self.pool == "swa"
        states = StateEnds() if "mamba" in self.claims else None
        self.tracks = None if states is None else TrackLedger(read_number(self.config, "track_slots"), states)
        self.model = PrefixModel(
            self.page_size, self.window, has_pool=self.has_pool, can_move=self.has_halves, states=states
        )
        slots = self._whole_pages("slots") if self.has_pool else 0
        swa_slots = self._whole_pages("swa_slots") if self.has_halves else 0
        self.ledger = SlotLedger(self.pool, self.page_size, slots, swa_slots)
        self.nodes = NodeBook(self.model, evidence, self.laws)
        self.fault: Fault | None = None  # what the next operation, or the one in progress, is to meet

    def _whole_pages(self, key: str) -> int:
        """Return the size of a pool, of which no part of a page is left over (A1)."""
        value = read_number(self.config, key)
        if value % self.page_size:
            raise ProgramError(
                f"the configuration's {key} is {value}; it must be a multiple of page_size, {self.page_size}"
            )
        return value

    def _check_claims(self) -> None:
        if self.pool not in ("none", "token", "swa"):
            raise ProgramError(f"the configuration's pool is {self.pool!r}; it must be none, token or swa")
        if self.window is not None and "swa" not in self.claims:
            raise ProgramError("a cache with a window claims swa")
        if "mamba" in self.claims and (self.window is not None or self.pool == "swa"):
            raise ProgramError("a cache that keeps states has no window, and no slots with SWA halves")
        if ("pool" in self.claims) != (self.pool != "none"):
            claimed = "claimed" if "pool" in self.claims else "not claimed"
            raise ProgramError(f"the configuration's pool is {self.pool}, and pool is {claimed}")

    def sizes(self) -> dict[str, int]:
        """Return every size of the cache and of its pools."""
        if self.tracks is None:
            return {**self.model.sizes(), **self.ledger.sizes()}
        return {**self.model.sizes(), **self.ledger.sizes(), **self.tracks.sizes()}

    @property
    def can_follow_evictions(self) -> bool:
        """Whether it can be told what an eviction took: by its order, or by what the pool sees."""
        tells_victims = self.pool == "swa" or (self.pool == "token" and self.window is None)
        return tells_victims or "exact_lru" in self.claims or not self.retains

    def path_of(self, key: Key) -> Path:
        """Return the path of a key; `ProgramError` where the adapter does not claim such keys."""
        path = path_of_key(key)
        if key.extra_key is not None and "extra_key" not in self.claims:
            raise ProgramError("namespaces are not claimed")
        if path.tokens and isinstance(path.tokens[0], tuple) and "bigrams" not in self.claims:
            raise ProgramError("tuples as tokens are not claimed")
        return path

    def meets_another(self, key: Path, length: int) -> bool:
        """Tell whether so many tokens of a key are cached in another space (K1)."""
        tokens = key.tokens[:length]
        is_whole = len(tokens) == length
        return is_whole and any(one.tokens == tokens and one.space != key.space for one in self.model.pages)

    def count(self, law: str, tested: object = True) -> None:
        """Count a test of a law, if it was one and the law is claimed."""
        if tested and law in self.laws:
            self.evidence.count(law)

    def expect(self, law: str, what: str, expected: object, observed: object) -> None:
        """Test that two values are equal, where the law is claimed."""
        if law in self.laws:
            self.evidence.expect(law, what, expected, observed)

    def demand(
        self, law: str, truth: object, what: str, expected: str, observed: Callable[[], object]
    ) -> None:
        """Test that something is true, where the law is claimed."""
        if law in self.laws:
            self.evidence.demand(law, truth, what, expected, observed)

    def forbid(self, law: str, what: str, observed: object) -> None:
        """Refuse anything at all; that there is nothing counts as no test."""
        if observed and law in self.laws:
            self.evidence.refuse(law, what, "none", observed)

    # -- answers -------------------------------------------------------------------------------------------

    def answer(self, kind: type[R], law: str, what: str, outcome: Outcome) -> R:
        """Return the result, which must be of a kind; otherwise ``law`` is broken."""
        if not isinstance(outcome.result, kind):
            self.evidence.refuse(law, what, name_of(kind), outcome.result)
        return outcome.result

    def expect_refusal(self, law: str, what: str, outcome: Outcome, *errors: str) -> str:
        """Judge an operation that must be refused, without a pool call; return the law of its traces (X1)."""
        if "refusals" not in self.claims:
            raise ProgramError(f"{what} must be refused, and the adapter does not claim to refuse misuse")
        self.evidence.expect_error(law, what, outcome, *errors)
        self.expect("X1", f"effects of {what}", (), outcome.effects)
        return "X1"

    # -- faults --------------------------------------------------------------------------------------------

    def is_struck(self, outcome: Outcome, *calls: str) -> bool:
        """Tell whether the operation failed because a fault was armed for one of these calls."""
        result = outcome.result
        if not isinstance(result, Failed) or result.error != INJECTED:
            return False
        return self.fault is not None and self.fault.call in calls

    def law_of_error(self, otherwise: str) -> str:
        """Return the law of an error that is not the right one: X2 where a call was let fail."""
        return otherwise if self.fault is None else "X2"

    def may_hide(self, call: str, calls: Sequence[str]) -> bool:
        """Tell whether a pool's call may have been let fail, and that been hidden, in what told no error.

        The calls are those that the pool has taken, which do not have the failing one.
        """
        fault = self.fault
        return fault is not None and fault.call == call and calls.count(call) >= fault.nth - 1

    def expect_strike(self, call: str, made: object) -> None:
        """Refuse an operation that went well although a call that it must make was let fail (X2)."""
        fault = self.fault
        if made and fault is not None and (fault.call, fault.nth) == (call, 1) and "X2" in self.laws:
            self.refuse_hidden()

    def refuse_hidden(self) -> NoReturn:
        """Say that an operation has swallowed the error of a call that was let fail (X2)."""
        self.evidence.refuse("X2", "what a failing call raises", INJECTED, "no error")
