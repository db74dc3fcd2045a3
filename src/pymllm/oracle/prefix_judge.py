"""The judge of prefix caches: laws K, H, R, S and M, and what they share with every class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    Alloc,
    AllocTrack,
    Evict,
    Fault,
    Free,
    FreeSWA,
    FreeTrack,
    Hash,
    Insert,
    Inspect,
    Lock,
    Malformed,
    Match,
    MoveSWA,
    Operation,
    ReadHalves,
    ReadStates,
    Reset,
    Unlock,
    WriteState,
)
from pymllm.history.outcomes import Done, Hashes, Inspected, Matched, Outcome
from pymllm.oracle.coverage.noticed import note_match
from pymllm.oracle.models.cold_runs import hash_pages
from pymllm.oracle.models.prefix_model import Found, Path, PrefixModel
from pymllm.oracle.models.slot_ledger import SlotLedger
from pymllm.oracle.node_book import NodeBook
from pymllm.oracle.pool_judge import PoolJudge
from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.prefix_evictions import EvictionJudge, StateEvictionJudge
from pymllm.oracle.prefix_holds import HoldJudge
from pymllm.oracle.prefix_inserts import InsertJudge
from pymllm.oracle.prefix_pools import PoolPart, StatePart, look_at_states
from pymllm.oracle.seen_effects import sort_effects

_WHOLE = frozenset({"X1", "X2", "X4", "X7"})
"""Laws about everything at once: after such an operation a wrong size breaks them, whichever it is."""


class PrefixJudge(PoolJudge):
    """Follows a prefix cache page by page, and the pool below it slot by slot.

    What the specification determines is predicted and compared; which pages an eviction takes is judged by
    relation and followed.
    """

    KIND: ClassVar[str] = "prefix"
    SIZES_LAW: ClassVar[str] = "R7"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.books = PrefixBooks(header, self.evidence)
        self._sizes_by_law: dict[str, list[tuple[str, str]]] = {}
        pool = PoolPart(self.books)
        self._holds = HoldJudge(self.books)
        tracks = self.books.tracks
        self._states = None if tracks is None else StatePart(self.books, tracks)
        evictions = EvictionJudge(self.books) if tracks is None else StateEvictionJudge(self.books, tracks)
        self._methods |= {
            Insert: InsertJudge(self.books, self._holds, self._states).judge,
            Evict: evictions.judge,
            Lock: self._holds.judge_lock,
            Unlock: self._holds.judge_unlock,
            Alloc: pool.judge_alloc,
            Free: pool.judge_free,
            FreeSWA: pool.judge_free_swa,
            MoveSWA: pool.judge_move_swa,
            ReadHalves: pool.judge_read_halves,
        }
        if self._states is not None:
            self._methods |= {
                AllocTrack: self._states.judge_alloc,
                FreeTrack: self._states.judge_free,
                WriteState: self._states.judge_write,
                ReadStates: self._states.judge_read,
            }

    @property
    def model(self) -> PrefixModel:
        """What is cached and held."""
        return self.books.model

    @property
    def ledger(self) -> SlotLedger:
        """Who owns which slot, and how slots are named."""
        return self.books.ledger

    @property
    def nodes(self) -> NodeBook:
        """What is known of nodes, where they are shown."""
        return self.books.nodes

    @property
    def can_follow_evictions(self) -> bool:
        """Whether an `Evict` can be judged; where not, one has no meaning in a program."""
        return self.books.can_follow_evictions

    def judge(self, step: int, operation: Operation, outcome: Outcome) -> None:
        """Judge one step and follow it; a fault that was armed before is forgotten after it."""
        super().judge(step, operation, outcome)
        if not isinstance(operation, Fault):
            self.books.fault = None

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the cache and of its pool."""
        return self.books.sizes()

    # -- match and hash ------------------------------------------------------------------------------------

    def _judge_match(self, step: int, operation: Match, outcome: Outcome) -> str:
        books, key = self.books, self.books.path_of(operation.key)
        found = self.model.find(key)
        books.forbid("R2", "effects of a match", outcome.effects)
        result = books.answer(Matched, "R2", "match", outcome)
        is_elsewhere = not found.stored and books.meets_another(key, books.page_size)
        self.require_shape("R2", "dtype of a match's indices", "int64", result.dtype)
        law = self._law_of_match(key, found, result, is_elsewhere)
        books.expect(law, f"slots that match {key.tokens}", len(found.slots), len(result.slots))
        self._check_content(found, result)
        books.expect("R2", f"slots that match {key.tokens}", found.slots, result.slots)
        books.expect("R2", "prefix_len of a match", len(result.slots), result.prefix_len)
        if self._states is not None:
            self._states.judge_match(found, result)
        if result.node_len is not None:
            books.expect("R2", "length of last_node's path", len(found.path.tokens), result.node_len)
        note_match(books, key, found, is_elsewhere)
        books.count("R1", len(key.tokens) % books.page_size)
        books.count("K1", operation.key.form != "list" and (found.slots or not books.retains))
        self.model.commit_match(found.path)
        # Others look for what they cannot return, and split a node where that ends.
        is_lean = "lean_matches" in books.claims
        self.nodes.may_split([found.path] if is_lean else [found.path, key.upto(found.stored)])
        self.ledger.record(step, result.slots)
        self._holds.give(step, found.path)
        return "R7"

    def _law_of_match(self, key: Path, found: Found, result: Matched, is_elsewhere: bool) -> str:
        """Return the law that says why the match is as long as it is."""
        if len(result.slots) % self.books.page_size:
            return "R1"
        if is_elsewhere or self._is_from_elsewhere(key, found, result):
            return "K1"
        if found.stored == len(found.slots):
            return "R2"
        return "S1" if self._states is None else "M2"

    def _is_from_elsewhere(self, key: Path, found: Found, result: Matched) -> bool:
        """Tell whether a match is longer than what its own space has, and as long as another's."""
        length = len(result.slots)
        return length > found.stored and self.books.meets_another(key, length)

    def _check_content(self, found: Found, result: Matched) -> None:
        """Test that a cold run would have written what the matched slots hold, whoever owns them (E1)."""
        content = self.ledger.content
        if not result.slots or not content.is_known(result.slots):
            return
        window = self.books.window if self.books.has_halves else None
        wrong = content.first_wrong(found.path, result.slots, window)
        what, expected = "KV of a match", "what a cold run would have written"
        self.books.demand("E1", wrong is None, what, expected, lambda: wrong)

    def _judge_hash(self, step: int, operation: Hash, outcome: Outcome) -> str:
        books, handle = self.books, self._holds.handle(operation.of)
        if "H2" not in books.laws:
            raise ProgramError("hashes are not claimed")
        if self._holds.is_stale(handle):
            return self._holds.refuse_stale(handle, outcome)
        books.forbid("R4", "effects of a hash", outcome.effects)
        expected = hash_pages(handle.path, books.page_size)
        found = books.answer(Hashes, "H2", "hash", outcome).digests
        is_seeded = handle.path.space.extra_key is not None and "H3" in books.laws
        law = "H3" if is_seeded and found[:1] != expected[:1] else "H2"
        books.expect(law, f"page hashes of {handle.path.tokens}", expected, found)
        books.count("H3", is_seeded and expected)
        books.evidence.meet("pages of a namespace are hashed", is_seeded and expected)
        return "R7"

    # -- reset ---------------------------------------------------------------------------------------------

    def _judge_reset(self, step: int, operation: Reset, outcome: Outcome) -> str:
        """Judge a `Reset`: every slot and state goes back, once, whatever is held (X7)."""
        books, seen = self.books, sort_effects(outcome.effects)
        self.evidence.meet("a reset with holds outstanding", self.model.holds)
        dead = any(not page.alive for page in self.model.pages.values())
        self.evidence.meet("a reset with tombstones", dead)
        protected = self.model.sizes().get("mamba_protected_size", 0)
        self.evidence.meet("a reset with states held", protected)
        tracked = [] if self.model.states is None else list(self.model.states.slots.values())
        cached = self.model.reset()
        everything = cached if books.has_pool else []
        books.forbid("X7", "callbacks of a reset", seen.callbacks)
        if books.is_struck(outcome, "free"):
            foreign = _rest(seen.freed, everything)
            books.forbid("X7", "slots that a reset frees twice, or that are not its own", foreign)
            books.evidence.meet("the pool refuses a reset")
        else:
            books.expect_strike("free", everything)
            if not books.is_struck(outcome, "free_state"):
                books.expect("X7", "reset", Done(), outcome.result)
            books.expect("X7", "slots that a reset frees", sorted(everything), sorted(seen.freed))
        if self._states is not None:
            self._states.judge_reset(tracked, seen, books.is_struck(outcome, "free_state"))
        self.ledger.give_back(seen.freed)
        self.ledger.disown(_rest(everything, seen.freed))
        self._holds.reset()
        return "X7"

    def _judge_tracking(self, step: int, operation: Operation, outcome: Outcome) -> str:
        raise ProgramError("states are not claimed")

    _judge_alloc_track = _judge_free_track = _judge_write_state = _judge_read_states = _judge_tracking

    # -- the rest ------------------------------------------------------------------------------------------

    def _judge_fault(self, step: int, operation: Fault, outcome: Outcome) -> str:
        if "faults" not in self.books.claims:
            raise ProgramError("faults are not claimed")
        if operation.nth < 1:
            raise ProgramError(f"{operation}: the calls of the next operation are counted from 1")
        self.books.fault = operation
        return "R7"

    def _judge_malformed(self, step: int, operation: Malformed, outcome: Outcome) -> str:
        self.evidence.meet("a node of another cache is used", operation.wrong == "a node of another cache")
        return super()._judge_malformed(step, operation, outcome)

    def _judge_inspect(self, step: int, operation: Inspect, outcome: Outcome) -> str:
        if "inspect" not in self.books.claims:
            raise ProgramError("nodes to look at are not claimed")
        shown = self.books.answer(Inspected, "R9", "inspect", outcome)
        known = self.nodes.ends
        long = [node.id for node in shown.nodes if len(node.tokens) > self.books.page_size]
        if long and not self.books.splits:
            raise ProgramError(f"nodes {long} have several pages, and the configuration's splits is false")
        self.nodes.look(shown.nodes, self._holds.tokens)
        if self.model.states is not None:
            look_at_states(self.books, self.model.states, shown, known)
        return "R7"

    def _test_sizes(
        self, law: str, before: dict[str, int], now: dict[str, int], found: dict[str, int]
    ) -> None:
        """Test every size that is told; the law of a wrong one depends on its name and on what was done."""
        counts_all = law in _WHOLE or not self.books.retains
        if found == now == before and not counts_all:
            return  # as after every second operation: nothing is wrong, and nothing could have become so
        tested = set()
        for name, blamed in self._laws_of_sizes(law, now):
            if name not in found:
                continue
            if found[name] != now[name]:
                self.evidence.refuse(blamed, f"{name} afterwards", now[name], found[name])
            if counts_all or now[name] != before[name]:
                tested.add(blamed)
        self.evidence.count(*tested)

    def _laws_of_sizes(self, law: str, sizes: Iterable[str]) -> list[tuple[str, str]]:
        """Return each size that may be tested, which are always the same, with the law of a wrong one."""
        if law not in self._sizes_by_law:
            named = [(name, _law_of_size(law, name, "A7" in self.books.laws)) for name in sizes]
            self._sizes_by_law[law] = [(name, blamed) for name, blamed in named if blamed in self.books.laws]
        return self._sizes_by_law[law]


def _law_of_size(law: str, name: str, has_halves_law: bool) -> str:
    """Return the law that a wrong size breaks, after an operation whose own law this is."""
    if law in _WHOLE:
        return law
    if name.endswith("available_size"):
        return "A7" if name.startswith("swa") and has_halves_law else "A2"
    if name == "available_track_slots":
        return "M7"
    if name.startswith("mamba"):
        return "M4" if law == "R6" else "M6"
    if name.startswith("swa"):
        return "S6"
    return "R6" if law == "R6" else "R7"


def _rest(slots: Iterable[int], without: Iterable[int]) -> list[int]:
    return sorted((Counter(slots) - Counter(without)).elements())
