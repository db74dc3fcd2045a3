"""The judge of an event stream: keeps the blocks that events report, and tests each law.

Memory is that of the blocks that are there: of each its copies, a digest of its content, and the number of
the message that told it last. Of messages the digests of the last `RECENT` are kept.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from pymllm.errors import CapacityError
from pymllm.oracle.laws.law import Broken, Found
from pymllm.oracle.verdicts import Verdict
from pymllm.watching import laws
from pymllm.watching.events import Cleared, Event, Hash, Message, Place, Removed, Stored

RECENT = 4096
"""The number of recent messages among which a repeated one is recognised."""
MOST_BLOCKS = 4_000_000
"""The greatest number of blocks to keep, more than the largest memories of today hold."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The first event that broke a law, and earlier messages about the block."""

    law: str
    producer: str
    number: int
    event: int  # of the message, from 1; 0 where it is about the message itself
    place: str
    what: str
    expected: str
    observed: str
    told_in: tuple[int, ...] = ()  # numbers of the messages that told the block, the last one last


@dataclass(slots=True)
class _Block:
    copies: int
    content: bytes | None
    told_in: tuple[int, ...]


@dataclass(slots=True)
class _Producer:
    """The state of a producer by its messages; ``is_whole`` unless blocks were stored before the first."""

    last: int | None = None
    is_whole: bool = False
    recent: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    blocks: dict[tuple[Place, Hash], _Block] = field(default_factory=dict)
    contents: dict[tuple[Place, bytes], tuple[Hash, int]] = field(default_factory=dict)
    copies: int = 0
    windows: set[int] = field(default_factory=set)  # groups that keep a window
    places: dict[Place, int] = field(default_factory=dict)  # of all that was ever stored: tokens of a block

    def clear(self, is_whole: bool = True) -> None:
        """Forget all blocks: none are stored or, after a gap, it is unknown which are."""
        self.blocks.clear()
        self.contents.clear()
        self.copies, self.is_whole = 0, is_whole


class StreamJudge:
    """A judge of the messages of any number of producers, one after another.

    Parameters
    ----------
    capacity : int, optional
        Blocks that the memory of one producer has; without it W7 is not claimed.
    without : collection of str
        Laws that are not claimed.
    """

    def __init__(self, capacity: int | None = None, without: frozenset[str] = frozenset()) -> None:
        self.capacity = capacity
        self.not_claimed = without | (frozenset() if capacity is not None else frozenset({"W7"}))
        self._has_requests = False
        self.tests: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.first: dict[str, Evidence] = {}
        self.messages = self.events = self.restarts = self.most_copies = 0
        self._producers: dict[str, _Producer] = {}

    # -- results -------------------------------------------------------------------------------------------

    @property
    def producers(self) -> int:
        """The number of producers that sent messages."""
        return len(self._producers)

    @property
    def copies(self) -> int:
        """The number of block copies that all producers store now."""
        return sum(it.copies for it in self._producers.values())

    @property
    def is_late(self) -> bool:
        """Whether the beginning of any producer's stream, or a later part, was missed."""
        return not all(it.is_whole for it in self._producers.values())

    def verdict_of(self, law: str) -> Verdict:
        """Return the verdict on a law."""
        if law in self.not_claimed or (law == "W8" and not self._has_requests):
            return Verdict.NOT_CLAIMED
        if self.broken[law]:
            return Verdict.VIOLATED
        return Verdict.HOLDS if self.tests[law] else Verdict.UNKNOWN

    # -- requests ------------------------------------------------------------------------------------------

    def longest_chain(self, prompt: Sequence[int], salt: str | None = None) -> int | None:
        """Count the leading tokens of a prompt that events report as cached, in whole blocks.

        ``None`` where that cannot be known: of no producer or several, of one whose beginning was not heard,
        or of one that tells no tokens. Cost: a digest per block.
        """
        place = self._whole_place()
        if place is None:
            return None
        (producer,) = self._producers.values()
        size, parent, length = producer.places[place], None, 0
        keys = " " if salt is None else f" {[salt]}"
        most = max(0, len(prompt) - 1) // size * size
        while length < most:
            content = _content(parent, tuple(prompt[length : length + size]), keys)
            known = producer.contents.get((place, content))
            if known is None:
                break
            parent, keys = known[0], " "
            length += size
        return length

    def judge_hit(self, request: int, hit: int, chains: Sequence[int | None]) -> None:
        """Judge the cached tokens of a request by law W8.

        ``chains``: the `longest_chain` of its prompt when it was sent and, where others ran beside it, after
        each message until all were answered; nothing is judged where one is unknown.
        """
        self._has_requests = True
        place = self._whole_place()
        if place is None or None in chains:
            return
        (name, producer) = next(iter(self._producers.items()))
        longest = max(chain for chain in chains if chain is not None)
        is_exact = len(chains) == 1 and len(producer.places) == 1
        found = laws.w8(laws.HitSeen(request, hit, longest, is_exact))
        self._ask("W8", found, Message(name, producer.last or 0, ()), 0)

    def _whole_place(self) -> Place | None:
        """Return the place of the layers that see all tokens, if there is only one producer."""
        if len(self._producers) != 1:
            return None
        (producer,) = self._producers.values()
        whole = [place for place in producer.places if place.group not in producer.windows]
        is_told = producer.is_whole and len(whole) == 1 and producer.places[whole[0]]
        return whole[0] if is_told else None

    # -- the fold ------------------------------------------------------------------------------------------

    def feed(self, message: Message) -> None:
        """Judge a message, and apply its events.

        Raises
        ------
        CapacityError
            If more than `MOST_BLOCKS` blocks are there.
        """
        self.messages += 1
        producer = self._producers.setdefault(message.producer, _Producer())
        if not self._take_number(producer, message):
            return
        for place, event in enumerate(message.events, 1):
            self.events += 1
            self._take(producer, message, place, event)
            self.most_copies = max(self.most_copies, producer.copies)
            if producer.copies > MOST_BLOCKS:
                raise CapacityError(
                    f"{message.producer} has told more than {MOST_BLOCKS:,} blocks, and no memory "
                    "holds so many; law W7 with the number of blocks shows where that begins"
                )

    def _take_number(self, producer: _Producer, message: Message) -> bool:
        """Judge the number of a message; return whether to apply its events."""
        number, last = message.number, producer.last
        digest = blake2b(repr(message.events).encode(), digest_size=8).digest()
        is_repeated = producer.recent.get(number) == digest
        if last is None:
            producer.is_whole = number == 0
        elif number == 0 and not is_repeated:
            self.restarts += 1
            producer.clear()
            producer.recent.clear()
        else:
            seen = laws.NumberSeen(last, number, is_repeated, number in producer.recent)
            self._ask("W1", laws.w1(seen), message, 0)
            if is_repeated or number <= last:
                return False
            if number > last + 1:  # what was missed may have stored, removed or cleared anything
                producer.clear(is_whole=False)
        producer.last = number
        producer.recent[number] = digest
        if len(producer.recent) > RECENT:
            producer.recent.popitem(last=False)
        return True

    def _take(self, producer: _Producer, message: Message, place: int, event: Event) -> None:
        if isinstance(event, Cleared):
            producer.clear()
        elif isinstance(event, Removed):
            for hash in event.hashes:
                self._remove(producer, message, place, event.place, hash)
        else:
            self._store(producer, message, place, event)

    def _remove(self, producer: _Producer, message: Message, place: int, at: Place, hash: Hash) -> None:
        if not at.medium:
            places = (it for it in producer.places if it.group == at.group)
            at = next((it for it in places if (it, hash) in producer.blocks), at)
        block = producer.blocks.get((at, hash))
        seen = laws.BlockSeen(hash, block.copies if block else 0, not producer.is_whole)
        told_in = block.told_in if block else ()
        self._ask("W4", laws.w4(seen), message, place, told_in)
        self._ask("W5", laws.w5(seen), message, place, told_in)
        if block is None:
            return
        producer.copies -= 1
        block.copies -= 1
        if not block.copies:
            del producer.blocks[at, hash]
            if block.content is not None:
                producer.contents.pop((at, block.content), None)

    def _store(self, producer: _Producer, message: Message, place: int, event: Stored) -> None:
        producer.places[event.place] = event.block_size
        tokens = laws.w2(event)
        self._ask("W2", tokens, message, place)
        if event.has_window:
            producer.windows.add(event.place.group)
        if event.parent is not None:
            is_there = (event.place, event.parent) in producer.blocks
            may_be_gone = not producer.is_whole or event.place.group in producer.windows
            self._ask("W3", laws.w3(laws.ParentSeen(event.parent, is_there, may_be_gone)), message, place)
        parent = event.parent
        size = event.block_size
        is_told = tokens is True or (tokens is None and any(event.keys))
        for number, hash in enumerate(event.hashes):
            content = None
            if is_told:
                own = event.tokens[number * size : (number + 1) * size] if event.tokens is not None else ()
                keys = event.keys[number] if number < len(event.keys) else ""
                content = _content(parent, own, keys)
            self._add(producer, message, place, event.place, hash, content)
            parent = hash
        room = laws.RoomSeen(producer.copies, self.capacity)
        self._ask("W7", laws.w7(room), message, place)

    def _add(
        self,
        producer: _Producer,
        message: Message,
        place: int,
        at: Place,
        hash: Hash,
        content: bytes | None,
    ) -> None:
        block = producer.blocks.get((at, hash))
        if content is not None:
            other = producer.contents.get((at, content))
            known = None if block is None else block.content
            seen = laws.BlockSeen(
                hash,
                0 if block is None else block.copies,
                earlier=block.told_in[-1] if block is not None and known not in (None, content) else None,
                other=other if other is not None and other[0] != hash else None,
            )
            self._ask("W6", laws.w6(seen), message, place, block.told_in if block else ())
            producer.contents[at, content] = hash, message.number
        if block is None:
            producer.blocks[at, hash] = _Block(1, content, (message.number,))
        else:
            block.copies += 1
            block.told_in = (*block.told_in[-1:], message.number)
        producer.copies += 1

    def _ask(
        self,
        law: str,
        found: Found,
        message: Message,
        event: int,
        told_in: tuple[int, ...] = (),
    ) -> None:
        if found is None or law in self.not_claimed:
            return
        self.tests[law] += 1
        if isinstance(found, Broken):
            self.broken[law] += 1
            if law not in self.first:
                at = message.events[event - 1] if event else None
                place = "" if at is None or isinstance(at, Cleared) else str(at.place)
                self.first[law] = Evidence(
                    *(law, message.producer, message.number, event, place),
                    *(found.what, str(found.expected), str(found.observed), told_in),
                )


def _content(parent: Hash | None, tokens: tuple[int, ...], keys: str) -> bytes:
    return blake2b(repr((parent, tokens, keys)).encode(), digest_size=16).digest()
