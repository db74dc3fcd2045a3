"""Base classes for short adapters: methods for your class, with operations, steps and effects handled.

`SlotAdapter`, `PrefixAdapter` and `BlockAdapter` carry the operations of their kind out by a few methods,
which take and return plain numbers. An operation whose method is not overridden is unsupported; an error that
a method raises is the result. What can do more (windows, states, a look at nodes) adds the ``do_...`` of that
operation, as in any `pymllm.adapters.base.BaseAdapter`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any, ClassVar, SupportsIndex

from pymllm.adapters.base import BaseAdapter, UnsupportedError, place_of
from pymllm.adapters.kept_numbers import KeptNumbers
from pymllm.errors import AdapterError, ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.operations import Key
from pymllm.history.outcomes import BlockBooks, Effect
from pymllm.text_file import cut, shown


def plain_numbers(numbers: Any) -> tuple[int, ...]:
    """Return the integers of a list, array or tensor, or a single one, as a tuple; or raise `TypeError`."""
    listed = numbers.tolist() if hasattr(numbers, "tolist") else numbers
    return (listed,) if isinstance(listed, int) else tuple(map(index, listed))


def _told(adapter: BaseAdapter, method: str, answer: Any, form: str, read: Callable[[Any], Any]) -> Any:
    """Return the result of an adapter's method, converted; raise `AdapterError` for another form."""
    try:
        return read(answer)
    except (TypeError, ValueError):
        said = f"{method} returned {shown(answer)}; it must return {form}{place_of(adapter, method)}"
        raise AdapterError(adapter.name, said) from None


def _slots_of(adapter: BaseAdapter, method: str, answer: Any, more: str = "") -> tuple[int, ...]:
    """Return the slots or blocks in the result of an adapter's method."""
    form = f"integers in a list, array or tensor{more}"
    slots: tuple[int, ...] = _told(adapter, method, answer, form, _listed)
    return slots


def _listed(answer: Any) -> tuple[int, ...]:
    """Return the integers of a result, which may not be a single one, as a count would be."""
    if isinstance(answer, SupportsIndex) and not getattr(answer, "shape", ()):
        raise TypeError("no list of integers")
    return plain_numbers(answer)


def _count(answer: Any) -> int:
    if isinstance(answer, bool):
        raise TypeError("no count")
    return index(answer)


def _pair(answer: Any) -> tuple[Any, Any]:
    first, second = answer
    return first, second


def _known_and_node(answer: Any) -> tuple[int, Any]:
    known, node = answer
    return _count(known), node


_LATELY = 16
"""The number of kept calls of `PrefixAdapter.gave_back`, more than a rehearsal needs."""
_NO_NODE = object()
"""The node of an insert that returned none, since ``None`` may be a node in some caches."""


class CallRecorder:
    """A recorder of the slots that a cache gives back to its pools by itself.

    The methods of a pool are replaced on the object, so that a cache which looks for its type finds it. What
    a call makes of further calls is part of it, and is not told again.

    Parameters
    ----------
    record : callable
        Called with the `Effect` of each call, once the pool has taken it.
    lend : callable, optional
        Called before a call that is the caller's own, with the method, the argument and its numbers.
    """

    def __init__(
        self,
        record: Callable[[Effect], None],
        lend: Callable[[str, Any, tuple[int, ...]], None] = lambda method, container, numbers: None,
    ) -> None:
        self._record = record
        self._lend = lend
        self._depth = 0
        self.is_watching = False  # whether any method was named so far

    def watch(
        self,
        owner: Any,
        method: str,
        call: str = "free",
        read: Callable[[Any], tuple[int, ...]] = plain_numbers,
    ) -> None:
        """Record each call of a method from now on; calls made by `SlotCalls.free` must pass its argument on.

        Parameters
        ----------
        owner : object
            The pool.
        method : str
            Name of its method; the first argument is what goes back: numbers, a tensor, or one number.
        call : str
            What this is to the specification: ``free``, ``free_swa``, ``free_state``, or ``move_swa``,
            whose second argument is where the halves go.
        read : callable, optional
            Returns the numbers of an argument; by default those that are in it.
        """
        inner = getattr(owner, method)

        def watched(numbers: Any, *more: Any, **keywords: Any) -> Any:
            named = read(numbers)  # before the pool may change them
            target = read(more[0]) if call == "move_swa" else ()
            if self._depth == 1:  # the caller's call, and none that the pool makes of others
                self._lend(method, numbers, named)
            with self.unrecorded():
                answer = inner(numbers, *more, **keywords)
            if named and not self._depth:
                self._record(Effect(call, named, target))
            return answer

        try:
            setattr(owner, method, watched)
        except AttributeError:
            raise AttributeError(
                f"calls.watch cannot replace {method} of a {type(owner).__name__}; watch a method of a Python"
                " class, or compare the free list before and after, and call self.gave_back(slots)"
            ) from None
        self.is_watching = True

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Record nothing inside a ``with`` block, in which the caller frees its own slots."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1


class SlotCalls(BaseAdapter):
    """The common part of adapters of caches over slots and of slot allocators: the caller's pool calls."""

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self._kept_numbers = KeptNumbers()
        self.calls = CallRecorder(lambda effect: self.effects.append(effect), self._kept_numbers.lend)
        self.times_told = 0  # how often it said itself what was given back, be it nothing
        self.told_lately: deque[tuple[str, tuple[int, ...]]] = deque(maxlen=_LATELY)  # from which line, what

    @property
    def can_tell(self) -> bool:
        """Whether freed slots are reported, by `CallRecorder.watch` or by the adapter."""
        return self.calls.is_watching or self.times_told > 0

    @property
    def page_size(self) -> int:
        """The number of slots per page, from the configuration."""
        return self.number("page_size")

    def pages_of(self, slots: Iterable[int]) -> list[int]:
        """Return the page of each slot, in order of first appearance.

        Each page once; with pages of one token as often as its slot is named, since that is misuse.
        """
        size = self.page_size
        return [*slots] if size == 1 else [*dict.fromkeys(slot // size for slot in slots)]

    def slots_of(self, pages: Iterable[int]) -> list[int]:
        """Return all slots of pages, page by page."""
        size = self.page_size
        return [slot for page in pages for slot in range(page * size, (page + 1) * size)]

    def alloc(self, tokens: int) -> Any:
        """Allocate whole pages for so many tokens, rounded up if the class does not do that.

        Returns
        -------
        sequence of int, tensor or None
            The first ``tokens`` slots of these pages, in order; ``None`` where there are too few.
        """
        raise UnsupportedError("alloc")

    def free(self, slots: list[int]) -> None:
        """Free the pages of which any slots are named, perhaps only the last."""
        raise UnsupportedError("free")

    def halves(self, slots: Sequence[int]) -> Sequence[int]:
        """Return the SWA slot of each slot, or nothing without SWA halves."""
        return ()

    def do_alloc(self, step: int, operation: ops.Alloc) -> out.Result:
        found = self.alloc(operation.tokens)
        if found is None:
            return out.NoRoom()
        slots = _slots_of(self, "alloc", found)
        self._kept_numbers.answered(f"alloc of step {step}", found, slots)
        return out.Slots(slots, plain_numbers(self.halves(slots)))

    def do_free(self, step: int, operation: ops.Free) -> out.Result:
        slots = self.numbers(operation.slots)
        with self.calls.unrecorded(), self._kept_numbers.lending():
            self._kept_numbers.lend("free", slots, (*slots,))
            self.free(slots)
        return out.Done()

    def audit(self) -> Sequence[str]:
        """Check the numbers that the class recently returned or received (X5)."""
        return self._kept_numbers.look()


class SlotAdapter(SlotCalls):
    """The adapter of an allocator of slots or pages, kind ``slots``.

    `alloc`, `free`, `clear` and ``sizes``.
    """

    KIND: ClassVar[str] = "slots"

    def clear(self) -> None:
        """Free all slots, held or not."""
        raise UnsupportedError("clear")

    def do_clear(self, step: int, operation: ops.Clear) -> out.Result:
        self.clear()
        return out.Done()


class PrefixAdapter(SlotCalls):
    """The adapter of a prefix cache, kind ``prefix``.

    `match`, `insert`, `evict`, `lock`, `unlock`, `reset` and ``sizes``; with a pool also `alloc` and `free`.
    A *node* is whatever the cache takes a hold of: an object of its own, or the tokens where it has none.
    What it gives back to the pool by itself is an effect: either the pool's method is watched,
    ``self.calls.watch(pool, "free")``, or the adapter says so (`gave_back`).
    """

    KIND: ClassVar[str] = "prefix"

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self._nodes: dict[int, Any] = {}
        self._holds: dict[int, tuple[Any, Any]] = {}

    # -- what the cache does -------------------------------------------------------------------------------

    def match(self, key: Key) -> tuple[Any, Any]:
        """Return the longest cached prefix of a key.

        Parameters
        ----------
        key : Key
            ``key.tokens``, of whole pages or not, and ``key.extra_key`` where that is claimed.

        Returns
        -------
        slots : sequence of int or tensor
            One for each token that was found.
        node : object
            What `lock` takes to hold them; for nothing found too.
        """
        raise UnsupportedError("match")

    def insert(self, key: Key, slots: list[int]) -> tuple[int, Any]:
        """Add a key to the cache.

        Parameters
        ----------
        key : Key
            As of `match`.
        slots : list of int
            One for each token; the cache keeps those of the whole pages that it did not have.

        Returns
        -------
        known : int
            How many tokens it had. All behind them, as far as pages are whole, it has adopted.
        node : object
            What `lock` takes to hold the whole pages of the key; ``None`` where only a match gives one.
        """
        raise UnsupportedError("insert")

    def evict(self, tokens: int) -> int:
        """Evict ``tokens`` unheld tokens, and return the number evicted; 0 or less evicts none."""
        raise UnsupportedError("evict")

    def lock(self, node: Any) -> Any:
        """Protect a node and all its ancestors from eviction.

        Returns
        -------
        object
            What `unlock` is to get back, if anything.
        """
        raise UnsupportedError("lock")

    def unlock(self, node: Any, token: Any) -> None:
        """Release one hold on a node; the token is the one that `lock` returned."""
        raise UnsupportedError("unlock")

    def reset(self) -> None:
        """Empty the cache, held or not, and give its slots back; callers keep their own slots."""
        raise UnsupportedError("reset")

    def gave_back(self, slots: Any) -> int:
        """Report slots that the cache gave back to its pool by itself; return their number.

        `AdapterError` where these are no slots in a list, an array or a tensor, and where the pool's method,
        which is watched, has just told of the same slots.
        """
        caller = sys._getframe(1)
        line = f"line {caller.f_lineno} of {caller.f_code.co_filename}"
        try:
            freed = _listed(slots)
        except (TypeError, ValueError):
            raise AdapterError(
                self.name,
                f"gave_back({shown(slots)}): slots are asked for, in a list or a tensor; their count is what"
                f" it returns ({line})",
            ) from None
        self.times_told += 1
        self.told_lately.append((line, freed))
        if freed and self.calls.is_watching and Effect("free", freed) in self.effects:
            raise AdapterError(
                self.name,
                f"gave_back({cut(str([*freed]))}) says what calls.watch has seen already; leave one of the"
                f" two away ({line})",
            )
        self.effects += [Effect("free", freed)] if freed else []
        return len(freed)

    def whole(self, tokens: int) -> int:
        """Return the number of tokens, out of so many, that are in whole pages."""
        return tokens // self.page_size * self.page_size

    # -- operations ----------------------------------------------------------------------------------------

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        answer = self.match(operation.key)
        form = "slots and a node; for nothing found, no slots and the root: ([], root)"
        found, self._nodes[step] = _told(self, "match", answer, form, _pair)
        slots = _slots_of(self, "match", found, ", one for each token that was found, and a node")
        self._kept_numbers.answered(f"match of step {step}", found, slots)
        return out.Matched(slots, len(slots), len(slots))

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        slots = self.numbers(operation.slots or ())
        with self._kept_numbers.lending():
            self._kept_numbers.lend("insert", slots, (*slots,))
            answer = self.insert(operation.key, slots)
        form = "how many tokens it had, and a node, or None for no node: (2, node)"
        known, node = _told(self, "insert", answer, form, _known_and_node)
        self._nodes[step] = _NO_NODE if node is None else node
        length = self.whole(len(operation.key.tokens))
        adopted = ((known, length),) if known < length else ()
        return out.Inserted(known, adopted, None if node is None else length)

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        form = "how many tokens went, as gave_back(slots) does"
        return out.Evicted(_told(self, "evict", self.evict(operation.tokens), form, _count))

    def do_reset(self, step: int, operation: ops.Reset) -> out.Result:
        self.reset()
        return out.Done()

    def do_lock(self, step: int, operation: ops.Lock) -> out.Result:
        node = self.node_of(operation.of)
        if node is _NO_NODE:
            raise UnsupportedError("no node to hold")
        token = self.lock(node)
        self.keep_hold(step, node, token)
        return out.Locked(self.shown_token(token))

    def do_unlock(self, step: int, operation: ops.Unlock) -> out.Result:
        self.unlock(*self.named_by(operation))
        return out.Done()

    # -- nodes by step -------------------------------------------------------------------------------------

    def node_of(self, step: int) -> Any:
        """Return the node that a step returned or locked; raise `ProgramError` if it did neither."""
        if step in self._nodes:
            return self._nodes[step]
        if step in self._holds:
            return self._holds[step][0]
        raise ProgramError(f"step {step} gave no node")

    def token_of(self, step: int) -> Any:
        """Return the token of a step's hold; raise `ProgramError` if it took no hold."""
        if step not in self._holds:
            raise ProgramError(f"step {step} took no hold")
        return self._holds[step][1]

    def keep_hold(self, step: int, node: Any, token: Any) -> None:
        """Store the node and the token of a step's hold."""
        self._holds[step] = (node, token)

    def named_by(self, operation: ops.Unlock) -> tuple[Any, Any]:
        """Return the node and the token for an `Unlock`."""
        token = self.token_of(operation.lock)
        if operation.token is not None:
            token = self.token_of(operation.token) if operation.token else None
        return self.node_of(operation.lock if operation.at is None else operation.at), token

    def shown_token(self, token: Any) -> int | str | None:
        """Return the form of a hold's token in a history: a number or a text."""
        return token if isinstance(token, int | str) else None


class BlockAdapter(BaseAdapter):
    """The adapter of a pool of blocks with reference counts and hashes, kind ``blocks``.

    `alloc`, `retain`, `release`, `register`, `stamp`, `set_clock`, `reset`, `books`, ``sizes``; and `lost`,
    which the allocator, or the adapter for it, calls for blocks that are gone. `claim` ``callbacks``.
    """

    KIND: ClassVar[str] = "blocks"

    # -- what the allocator does ---------------------------------------------------------------------------

    def alloc(self, count: int) -> Any:
        """Allocate blocks with one reference each, evicting others if needed.

        Returns
        -------
        sequence of int, tensor or None
            ``None`` where there are too few, evictable ones counted; nothing has changed then.
        """
        raise UnsupportedError("alloc_blocks")

    def retain(self, blocks: list[int]) -> None:
        """Add a reference to each block, once for each mention."""
        raise UnsupportedError("retain_blocks")

    def release(self, blocks: list[int]) -> None:
        """Remove a reference from each block, once for each mention."""
        raise UnsupportedError("release_blocks")

    def register(self, blocks: list[int], hashes: list[int], parents: list[int]) -> None:
        """Register blocks, so that their hashes find them.

        Parameters
        ----------
        blocks, hashes : list of int
            In order; a parent comes before its child.
        parents : list of int
            The hash of each one's parent; 0 for the first block of a prompt.
        """
        raise UnsupportedError("register_blocks")

    def stamp(self, blocks: list[int]) -> None:
        """Set the stamps of blocks to the clock."""
        raise UnsupportedError("stamp_blocks")

    def set_clock(self, clock: int) -> None:
        """Set the clock, which is 0 at first; nothing else moves it."""
        raise UnsupportedError("set_clock")

    def reset(self) -> None:
        """Reset all blocks, referenced or not, and the clock, without any callback."""
        raise UnsupportedError("reset")

    def books(self) -> BlockBooks:
        """Return the state of each block.

        Returns
        -------
        BlockBooks
            References, hashes (-1 for none) and stamps of each block and of the dummy behind them, and the
            block of each hash.
        """
        raise UnsupportedError("inspect")

    def lost(self, blocks: Any, hashes: Iterable[int] = ()) -> None:
        """Report blocks that lost their hashes or became free; this method can be the allocator's observer.

        Parameters
        ----------
        blocks : sequence of int, tensor or int
            In the order in which they went.
        hashes : iterable of int
            Those that they had, in any order.
        """
        self.effects.append(Effect("callback", plain_numbers(blocks), tuple(sorted(hashes))))

    # -- operations ----------------------------------------------------------------------------------------

    def do_alloc_blocks(self, step: int, operation: ops.AllocBlocks) -> out.Result:
        found = self.alloc(operation.count)
        return out.NoRoom() if found is None else out.Slots(_slots_of(self, "alloc", found))

    def do_retain_blocks(self, step: int, operation: ops.RetainBlocks) -> out.Result:
        self.retain(self.numbers(operation.blocks))
        return out.Done()

    def do_release_blocks(self, step: int, operation: ops.ReleaseBlocks) -> out.Result:
        self.release(self.numbers(operation.blocks))
        return out.Done()

    def do_register_blocks(self, step: int, operation: ops.RegisterBlocks) -> out.Result:
        """Register blocks; without given parents, each follows the one before."""
        blocks, hashes = self.numbers(operation.blocks), [*operation.hashes]
        parents = [0, *hashes][: len(hashes)] if operation.parents is None else [*operation.parents]
        self.register(blocks, hashes, parents)
        return out.Done()

    def do_stamp_blocks(self, step: int, operation: ops.StampBlocks) -> out.Result:
        self.stamp(self.numbers(operation.blocks))
        return out.Done()

    def do_set_clock(self, step: int, operation: ops.SetClock) -> out.Result:
        self.set_clock(operation.clock)
        return out.Done()

    def do_reset(self, step: int, operation: ops.Reset) -> out.Result:
        self.reset()
        return out.Done()

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        return self.books()
