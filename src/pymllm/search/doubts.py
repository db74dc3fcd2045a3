"""Doubts whether a violation is a mistake of the adapter rather than of the implementation.

What only an adapter can have done is its fault, and told before anything is judged
(`pymllm.machines.rehearsal`). What a bug of the cache explains as well is a violation, and here are the
words for the other half. They follow "the adapter".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from pymllm.adapters.process.command_name import PREFIX
from pymllm.errors import InvariantViolation
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.codec import name_of
from pymllm.history.files import History
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Outcome
from pymllm.history.spans import resolve_spans

_OF_SLOTS = frozenset(["A2", "R4", "R5", "R9", "X7"])
"""Laws about the slots that go back to a pool, and about their owners."""


def find_doubt(history: History, violation: InvariantViolation, broken: Collection[str] = ()) -> str:
    """Return words for a mistake of the adapter that would explain a violation; empty if none is known.

    Parameters
    ----------
    history : History
        A program that breaks a law at its last step.
    violation : InvariantViolation
        The law, and what was looked at.
    broken : collection of str
        All laws that programs of the same search break: one mistake may be behind several of them.
    """
    if ":" not in history.header.adapter or not history.steps:
        return ""
    last = history.steps[-1]
    if last.outcome is None:
        return ""
    seen = _Seen(history, last.operation, last.outcome, violation, broken)
    return next((words for ask in _DOUBTS if (words := ask(seen))), "")


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last step of a program, and the law that it breaks."""

    history: History
    operation: Operation
    outcome: Outcome
    violation: InvariantViolation
    broken: Collection[str]

    @property
    def law(self) -> str:
        return self.violation.law

    @property
    def looked(self) -> str:
        return self.violation.message

    @property
    def page(self) -> int:
        page = self.history.header.config.get("page_size")
        return page if type(page) is int else 0

    @property
    def told(self) -> int:
        """The number of slots that effects report as freed."""
        return sum(len(effect.slots) for effect in self.outcome.effects if effect.call == "free")

    @property
    def is_told_twice(self) -> bool:
        """Whether effects name a slot twice, although the sizes show that it was freed once."""
        slots = {slot for effect in self.outcome.effects if effect.call == "free" for slot in effect.slots}
        return self.told > len(slots) and self.rise in (None, len(slots))

    @property
    def rise(self) -> int | None:
        """The increase in free slots in the last step, or ``None`` if sizes do not show it."""
        steps, header = self.history.steps, self.history.header
        earlier = steps[-2].outcome if len(steps) > 1 else None
        before = earlier.sizes.get("available_size") if earlier else None
        if len(steps) == 1 and header.kind == "prefix":
            before = int(header.config.get("slots") or 0)
        after = self.outcome.sizes.get("available_size")
        return None if before is None or after is None else after - before

    @property
    def surplus(self) -> int:
        """The observed number minus the required number; 0 if these are not numbers."""
        with suppress(TypeError, ValueError):
            return int(self.violation.observed or "") - int((self.violation.expected or "").lstrip(">= "))
        return 0

    @property
    def is_of_half_pages(self) -> bool:
        """Whether the observed size is not a multiple of the page size."""
        with suppress(TypeError, ValueError):
            return self.page > 1 and int(self.violation.observed or "") % self.page > 0
        return False

    @property
    def tell(self) -> str:
        """Advice on how an adapter of this form reports freed slots."""
        if self.history.header.adapter.startswith(PREFIX):
            return "add an effect free with the slots"
        return 'call self.gave_back(slots) there, or let self.calls.watch(pool, "free") see it'


# -- parts of pages ------------------------------------------------------------------------------------------
_WHOLE_ALLOC = (
    "passes on to alloc what is no whole page, or rounds it down: round up, and return the first slots"
)
_WHOLE_FREE = (
    "passes parts of pages on to free, where the class takes whole ones: self.slots_of(self.pages_of(slots))"
)


def _of_parts(seen: _Seen) -> str:
    """Explain wrong results for part of a page: the class may take whole pages only."""
    operation, result, page = seen.operation, seen.outcome.result, seen.page
    if page < 2 or seen.law not in ("A2", "A3"):
        return ""
    if isinstance(operation, ops.Free):
        is_less = isinstance(result, out.Failed) or (seen.looked == "available_size" and seen.surplus < 0)
        return _WHOLE_FREE if is_less and _names_a_part(seen) else ""
    if not isinstance(operation, ops.Alloc):
        return ""
    if operation.tokens % page:
        is_size = seen.looked == "available_size"
        return _WHOLE_ALLOC if seen.law == "A3" or (is_size and seen.surplus > 0) else ""
    earlier = [it.operation for it in seen.history.steps[:-1]]
    is_late = any(isinstance(it, ops.Alloc) and it.tokens % page for it in earlier)
    is_wrong = isinstance(result, out.Slots) and (seen.law == "A3" or seen.looked == "pages of an allocation")
    return _WHOLE_ALLOC if is_late and is_wrong else ""


def _names_a_part(seen: _Seen) -> bool:
    """Tell whether the last step frees some slots of a page but not all."""
    results = {it.number: it.outcome.result for it in seen.history.steps if it.outcome}
    given = {step: it.slots for step, it in results.items() if isinstance(it, out.Slots | out.Matched)}
    assert isinstance(seen.operation, ops.Free)
    slots = {*resolve_spans(seen.operation.slots, given)}
    return any(count < seen.page for count in Counter(slot // seen.page for slot in slots).values())


# -- what an operation raised --------------------------------------------------------------------------------
def _of_errors(seen: _Seen) -> str:
    """Explain a wrong error: the class raises another error, or the adapter passes wrong arguments."""
    operation, result = seen.operation, seen.outcome.result
    if not isinstance(result, out.Failed):
        return ""
    expected = seen.violation.expected or ""
    if expected.isidentifier() and expected.endswith("Error"):
        return (
            f"does not name the class's error: REFUSALS = {{{result.error}: {expected!r}}}, or no such claim"
        )
    if isinstance(operation, ops.Lock | ops.Unlock):
        return (
            "passes lock or unlock what the class does not hold: insert and match must return the same kind"
            " of node (insert None where it has none), and unlock takes (node, token)"
        )
    if isinstance(operation, ops.Free):
        if not any(span.stop > span.start for span in operation.slots):
            return "passes no slots on as another type; with a dtype, torch.tensor(slots, dtype=torch.int64)"
        return "passes slots on in free otherwise than the class takes them, or did not in an earlier step"
    return ""


def _of_raised(seen: _Seen) -> str:
    """Explain an error in a legal call: the adapter raises it, or calls the class wrongly."""
    result = seen.outcome.result
    if not isinstance(result, out.Failed) or (seen.violation.expected or "").endswith("Error"):
        return ""
    name = name_of(type(seen.operation))
    where = ", where the error says" if "(line " in result.message else ""
    return f"raises this itself in {name}{where}, or calls the class there as it must not be called"


# -- allocations ---------------------------------------------------------------------------------------------
def _of_first_slots(seen: _Seen) -> str:
    """Explain slots that no caller may get: the class may number its slots differently."""
    if seen.law != "A1":
        return ""
    result = seen.outcome.result
    least = min(result.slots, default=0) if isinstance(result, out.Slots) else 0
    if 0 < least < seen.page:
        return _no_such_page(seen.page)
    if least:
        return "adds a page to slots that need none, or builds a larger pool than the configuration says"
    return "must add a page to each slot of a class that counts from 0 (docs/verify.md#slot-0-and-page-0)"


def _no_such_page(page: int) -> str:
    return f"has configurations of page_size {page}, which its class knows nothing of"


def _of_allocations(seen: _Seen) -> str:
    """Explain a wrong result of an allocation: the class may report a lack of room in its own way."""
    operation, result = seen.operation, seen.outcome.result
    if not isinstance(operation, ops.Alloc | ops.AllocBlocks):
        return ""
    asked = operation.tokens if isinstance(operation, ops.Alloc) else 0
    if isinstance(result, out.Failed) or (isinstance(result, out.Slots) and not result.slots):
        return "lets alloc raise, or return an empty list, where it must return None for too little room"
    if isinstance(result, out.Slots) and seen.law == "A2" and seen.looked == "pages of an allocation":
        return "hands out in alloc what is cached: alloc takes free pages alone, and the caller evicts"
    if not isinstance(result, out.Slots) or seen.law not in ("X4", "A3"):
        return ""
    if len(result.slots) < asked:
        return "hands out in alloc what there is, where it must return None for too little room"
    if seen.law == "X4" and "NoRoom" in (seen.violation.expected or ""):
        return (
            "makes room in alloc by itself, where it must return None: the caller evicts. Or its pool is"
            " larger than the configuration says"
        )
    return ""


def _of_frees(seen: _Seen) -> str:
    """Explain a wrong number of freed slots: the adapter may pass slots as pages, or not at all."""
    operation = seen.operation
    if seen.law != "A2" or not isinstance(operation, ops.Free) or seen.looked != "available_size":
        return ""
    named = sum(span.stop - span.start for span in operation.slots)
    if seen.surplus < 0:
        return "passes no slot on in free, or not all of them"
    is_page_each = seen.page > 1 and named >= seen.page and seen.rise == named * seen.page
    return "passes slots on where the class takes pages: self.pages_of(slots)" if is_page_each else ""


# -- what goes back ------------------------------------------------------------------------------------------
def _of_repeats(seen: _Seen) -> str:
    """Explain slots freed twice in one call: the adapter may report them twice."""
    if seen.law not in _OF_SLOTS or not isinstance(seen.operation, ops.Evict | ops.Reset):
        return ""
    if not seen.is_told_twice:
        return ""
    return "tells of the same slot twice: in a callback or by a watch, and again where the call returns"


def _of_evictions(seen: _Seen) -> str:
    """Compare the count that an eviction returns with the slots in its effects and the tokens requested."""
    operation, result, told, rise = seen.operation, seen.outcome.result, seen.told, seen.rise
    if not isinstance(operation, ops.Evict) or not isinstance(result, out.Evicted):
        return ""
    count, page = result.full, seen.page
    if seen.law in _OF_SLOTS and "pool" in seen.history.header.capabilities:
        words = _compare(count, told, rise, seen.tell)
        if words and count > told and _is_prolonged(seen.history):
            words += f". Or it {_NEW_ONLY}"
        if words and not told and _is_reset(seen.history):
            words += ". Or it makes a new pool in reset, which a watch does not see"
        if words:
            return words
    if seen.law != "R5":
        return ""
    words = ""
    is_of_pages = operation.tokens + page <= count <= operation.tokens * page
    if page > 1 and (seen.surplus < 0 or is_of_pages):
        words = _IN_PAGES
    may_be_held = any(isinstance(it.operation, ops.Unlock | ops.Match) for it in seen.history.steps)
    if seen.surplus < 0 and not count and may_be_held:
        held = f"releases nothing in unlock, or another node than lock took; or {_ELSEWHERE}"
        words = f"{held}. Or it {words}" if words else held
    return words


_IN_PAGES = (
    "does not ask the class in evict for so many pages as the tokens need: -(-tokens // self.page_size)"
)


def _compare(count: int, told: int, rise: int | None, tell: str) -> str:
    """Describe how an eviction's count, the slots in its effects and the rise of a size disagree."""
    if not told and count > 0 and rise == 0:
        return f"counts otherwise than its class in evict: it returned {count}, and no slot went back"
    if not told and (count > 0 or (rise or 0) > 0):
        return f"tells of no slot that evict gives back: {tell}"
    if told and not count and not rise:
        return "reports in evict slots that did not go now; or its cache is not new with each adapter"
    if rise is not None and rise < told:
        return "never frees the slots that it tells of in evict: an effect only tells"
    if rise is not None and rise > told:
        return "makes a new pool in evict, or does not report all slots that it gives back"
    if count != told:
        return f"counts otherwise than its effects: {count} and {told}; the count is of the slots told"
    return ""


_NEW_ONLY = "passes only the new slots on in insert, where the class wants one for each token of the key"


def _is_prolonged(history: History) -> bool:
    """Tell whether any insert extended a key that was partly cached."""
    results = [step.outcome.result for step in history.steps if step.outcome]
    return any(isinstance(it, out.Inserted) and it.prefix_len and it.adopted for it in results)


def _of_resets(seen: _Seen) -> str:
    """Compare the slots that a reset freed with the slots in its effects."""
    told, rise = seen.told, seen.rise
    if seen.law not in _OF_SLOTS or "pool" not in seen.history.header.capabilities:
        return ""
    if isinstance(seen.operation, ops.Clear):
        return "empties nothing in clear, or another pool than it allocates from" if seen.surplus < 0 else ""
    if not isinstance(seen.operation, ops.Reset) or isinstance(seen.outcome.result, out.Failed):
        return ""
    if rise is not None and rise > told:
        return (
            "makes a new pool in reset, which takes the callers' slots from them; or does not report all"
            " slots that it gives back"
        )
    if rise is not None and rise < told:
        return "never frees the slots that it tells of in reset: an effect only tells"
    if seen.violation.expected == "[]":
        return "frees in reset what callers have, who free it"
    kept = "leaves in the cache what a reset must take: everything, whatever is held"
    return kept if rise is not None or told else f"{kept}. Or it tells of no slot: {seen.tell}"


def _of_inserts(seen: _Seen) -> str:
    """Explain wrong slots freed by an insert: they may have been the caller's."""
    result = seen.outcome.result
    if not isinstance(result, out.Inserted) or seen.law not in _OF_SLOTS | {"R7"}:
        return ""
    if seen.looked == "adopted ranges":
        return "tells another form of what is adopted: pairs [start, stop], from prefix_len on"
    if seen.looked == "available_size" and (seen.rise or 0) > 0 and not result.prefix_len and not seen.told:
        if not result.adopted:
            return "frees in insert what is not cached, such as half a page at the end: it stays the caller's"
        return "counts what is cached in available_size, which is of free slots only"
    if seen.told or (seen.rise or 0) > 0:
        return "frees slots in insert that stay the caller's, who frees them"
    return ""


def _of_known(seen: _Seen) -> str:
    """Explain an insert that reports a page too few as cached: it may leave out the last token."""
    if seen.law != "R3" or seen.looked != "prefix_len of an insert" or seen.surplus != -(seen.page or 1):
        return ""
    return (
        "leaves the last page out of what insert returns, such as for a token that the model computes again"
    )


# -- keys and holds ------------------------------------------------------------------------------------------
def _of_keys(seen: _Seen) -> str:
    """Explain keys that share an entry: the adapter may drop namespaces, unless a reset left the entry."""
    if seen.law != "K1" or not _has_namespaces(seen) or _is_reset(seen.history):
        return ""
    return "claims extra_key, and does not pass key.extra_key on in match and insert"


def _of_namespaces(seen: _Seen) -> str:
    """Explain keys that are not found or not held: the adapter may drop namespaces, if K1 is broken too."""
    if "K1" not in seen.broken or seen.law not in ("R2", "R3", "R6", "R7") or not _has_namespaces(seen):
        return ""
    return "drops key.extra_key somewhere in match or insert, which breaks K1 as well: fix that first"


def _has_namespaces(seen: _Seen) -> bool:
    operations = [step.operation for step in seen.history.steps]
    return any(it.key.extra_key is not None for it in operations if isinstance(it, ops.Match | ops.Insert))


def _is_reset(history: History) -> bool:
    return any(isinstance(step.operation, ops.Reset) for step in history.steps)


_ORDER = "changes the order of slots in match or insert, or leaves some out: one for each token, in order"


def _of_matches(seen: _Seen) -> str:
    """Explain a key that is not found, or found in other slots: arguments may be passed wrongly."""
    if seen.law == "R1" and seen.page > 1 and isinstance(seen.operation, ops.Match | ops.Insert):
        return _no_such_page(seen.page)
    if seen.law == "R9" and isinstance(seen.operation, ops.Evict):
        return (
            f"{_ORDER}. Or what insert finds cached stays older than the rest of the key, or unlock releases"
            " the end of a path alone"
        )
    if seen.law not in ("R2", "E1") or not isinstance(seen.operation, ops.Match):
        return ""
    if seen.looked.startswith("length of last_node"):
        return "tells of the last node alone in node_len, which is as long as the whole path to it"
    if seen.law == "R2" and seen.surplus < 0:
        return (
            "cuts the tokens in match or insert, or passes only the new slots on in insert: it takes all of"
            " key.tokens, and one slot for each"
        )
    if seen.surplus > 0:
        return ""
    return _ORDER


_ELSEWHERE = "takes a hold elsewhere than in lock"
_HELD = "removed pages with a hold at or below"


def _of_holds(seen: _Seen) -> str:
    """Explain a wrong number of holds: some calls may not reach the class."""
    operation, is_size = seen.operation, seen.looked in ("evictable_size", "protected_size")
    if seen.law not in ("R6", "R7") or (not is_size and seen.looked != _HELD):
        return ""
    is_held_too_much = is_size and (seen.surplus < 0) == (seen.looked == "evictable_size")
    if is_held_too_much and isinstance(operation, ops.Unlock):
        words = f"releases nothing in unlock, or another node than lock took; or {_ELSEWHERE}"
    elif is_held_too_much and isinstance(operation, ops.Insert) and _is_prolonged(seen.history):
        words = f"{_NEW_ONLY}; or {_ELSEWHERE}"
    elif is_held_too_much and isinstance(operation, ops.Lock | ops.Match | ops.Insert):
        words = f"{_ELSEWHERE}, such as in match or insert, or more than one there"
    elif isinstance(operation, ops.Unlock):
        words = "releases more than lock took, or another node, in unlock"
    elif isinstance(operation, ops.Lock) or seen.looked == _HELD:
        words = (
            "holds nothing in lock, or not the node and all above it; or insert and match return another node"
            " than the end of what they found"
        )
    elif isinstance(operation, ops.Match | ops.Insert) and seen.is_of_half_pages:
        words = _no_such_page(seen.page)
    elif isinstance(operation, ops.Insert):
        words = "gives up in insert slots that it does not take, which others hold"
    else:
        return ""
    return words if not is_size else f"{words}. Or it counts {seen.looked} otherwise than the class does"


# -- sizes, and what is told to observers --------------------------------------------------------------------
def _of_first_size(seen: _Seen) -> str:
    """Explain a size that is wrong from the first step: it may have other units, or be another pool's."""
    if seen.law != "A2" or len(seen.history.steps) > 1 or seen.looked not in seen.outcome.sizes:
        return ""
    return (
        "counts otherwise in sizes: available_size is of slots, not pages, without padding (page 0), in a"
        " pool that is new with each adapter, as large as the configuration says; after the operation"
    )


def _of_callbacks(seen: _Seen) -> str:
    """Explain blocks missing from all effects: the observer may never be set."""
    if seen.history.header.kind != "blocks" or "callbacks" not in seen.history.header.capabilities:
        return ""
    if any(step.outcome and step.outcome.effects for step in seen.history.steps):
        return ""
    return "never tells of blocks that lose their hashes or become free: call self.lost(blocks, hashes)"


def _of_count(seen: _Seen) -> str:
    """Explain a wrong size of the cache: the adapter may count it in its own way."""
    if seen.looked == "available_size" or seen.looked not in seen.outcome.sizes:
        return ""
    return (
        f"counts {seen.looked} otherwise than the class does; leave out of sizes what the class cannot tell"
    )


def _of_containers(seen: _Seen) -> str:
    """Explain changed numbers: the adapter may change a list that it returned or received."""
    if seen.law != "X5" or not seen.looked.startswith("numbers that"):
        return ""
    return "changes a list of its own that it returned, or the one that it was passed: let it use a copy"


_DOUBTS: tuple[Callable[[_Seen], str], ...] = (
    _of_namespaces,
    _of_errors,
    _of_first_slots,
    _of_first_size,
    _of_parts,
    _of_allocations,
    _of_frees,
    _of_repeats,
    _of_evictions,
    _of_resets,
    _of_inserts,
    _of_known,
    _of_keys,
    _of_matches,
    _of_holds,
    _of_callbacks,
    _of_count,
    _of_containers,
    _of_raised,
)
