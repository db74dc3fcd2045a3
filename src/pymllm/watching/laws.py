"""The laws of a producer of cache events: a function for each, over an event and earlier ones.

The docstring is the law's whole text, as of the laws of `pymllm.oracle.laws`. A page of the specification is
printed from them (``python docs/builder/servers_page.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.oracle.laws.law import Broken, Found, TextLaw, demand, enter_in
from pymllm.watching.events import Hash, Stored


@dataclass(frozen=True, slots=True)
class NumberSeen:
    """The number of a message, with the last number of its producer.

    ``is_repeated``: whether this very message came before; ``is_taken``: whether one of this number did.
    """

    last: int
    number: int
    is_repeated: bool
    is_taken: bool


@dataclass(frozen=True, slots=True)
class ParentSeen:
    """The parent of a stored block, and whether it is stored; ``may_be_gone`` excuses a missing one."""

    parent: Hash
    is_there: bool
    may_be_gone: bool


@dataclass(frozen=True, slots=True)
class BlockSeen:
    """A block of an event, with the blocks that earlier events reported.

    ``copies`` counts it. ``earlier`` is another content of this hash, and ``other`` another hash of this
    content, each with the number of its message. ``is_new_to_us`` tells that the stream's beginning, or a
    part of it, was not heard, so that it may have been told then.
    """

    hash: Hash
    copies: int
    is_new_to_us: bool = False
    earlier: int | None = None
    other: tuple[Hash, int] | None = None


@dataclass(frozen=True, slots=True)
class RoomSeen:
    """The number of block copies stored after an event, and the capacity."""

    copies: int
    capacity: int | None


@dataclass(frozen=True, slots=True)
class HitSeen:
    """The tokens that a request found in the cache, and the longest chain that events reported.

    ``chain``: the longest cached beginning of its prompt, in tokens; of several moments the longest of all.
    ``is_exact``: whether it was told at one moment, in a group of all layers, so that nothing else has a say.
    """

    request: int
    hit: int
    chain: int
    is_exact: bool


LAWS: dict[str, TextLaw] = {}
"""The laws by id, in the specification's order."""

_law = enter_in(LAWS)


@_law
def w1(seen: NumberSeen) -> Found:
    """Messages are numbered without a gap, and each comes once.

    The number of a message is one more than the last of the same producer.

    Why
    ---
    An index that missed a message routes by blocks that are gone. Only the number shows the index that a
    message is missing.

    Choices
    -------
    The first number. A restarted producer may begin again with 0: then no block is there.

    Caller
    ------
    A listener reads as fast as messages come: a queue that overflows drops messages, and this gap is the
    listener's, not the producer's.

    Engines
    -------
    vLLM and sglang number each message and keep the last messages for replays (`replay_endpoint`).
    """
    expected = f"number {seen.last + 1}"
    if seen.is_taken:
        events = "the same events" if seen.is_repeated else "other events"
        return Broken("a number that came before", expected, f"number {seen.number} again, with {events}")
    if seen.number <= seen.last:
        return Broken("a number out of order", expected, f"number {seen.number} behind number {seen.last}")
    return demand(seen.number == seen.last + 1, "a gap in the numbers", expected, f"number {seen.number}")


@_law
def w2(seen: Stored) -> Found:
    """An event has the tokens of its blocks, no more and no fewer.

    The number of tokens is the number of hashes times the block's size.

    Why
    ---
    An index hashes the tokens to find a prompt. With too many tokens it hashes other tokens than the engine,
    and finds nothing, or another prompt.

    Choices
    -------
    Whether tokens are reported at all.

    Caller
    ------
    None.

    Engines
    -------
    Events of vLLM's groups with a sliding window have tokens of blocks that were skipped (vllm#44451). dynamo
    reports hashes of tokens instead.
    """
    if seen.tokens is None:
        return None
    expected = len(seen.hashes) * seen.block_size
    what = f"tokens of {len(seen.hashes)} blocks of {seen.block_size}"
    return demand(len(seen.tokens) == expected, what, expected, len(seen.tokens))


@_law
def w3(seen: ParentSeen) -> Found:
    """A parent is there.

    The parent of the first block of an event was stored and not removed, in the same group and memory.

    Why
    ---
    A block without its parent is unreachable: no search from the beginning of a prompt ever finds it.

    Choices
    -------
    In groups that keep a window, a parent may be gone before its child comes.

    Caller
    ------
    A late listener does not know earlier blocks; then no violation is reported.

    Engines
    -------
    dynamo's indexer drops such blocks with a warning.
    """
    if not seen.is_there and seen.may_be_gone:
        return None
    return demand(seen.is_there, "the parent of a stored block", f"{seen.parent} is there", "it is not there")


@_law
def w4(seen: BlockSeen) -> Found:
    """A block that is removed was there.

    The block was stored, and not removed since; after everything was cleared no block is there.

    Why
    ---
    If a removal names a wrong block, the block that is really gone stays in every index.

    Choices
    -------
    None.

    Caller
    ------
    As of W3.

    Engines
    -------
    vLLM and sglang send a removal when a block is reused for other tokens.
    """
    if not seen.copies and seen.is_new_to_us:
        return None
    return demand(seen.copies, "a removed block", f"{seen.hash} is there", "it is not there")


@_law
def w5(seen: BlockSeen) -> Found:
    """A block is reported as removed when its last copy is removed.

    A hash that was stored twice, in two blocks of memory, is still there when one of them is reused. This law
    is a claim, which ``--removal one`` withdraws: then each copy has a removal of its own, and an index must
    count copies.

    Why
    ---
    An index that keeps a set of hashes forgets the prompt at the first removal, while the engine still hits
    it: the request goes to another machine, and the prompt is computed once more.

    Choices
    -------
    Whether a second copy is reported at all.

    Caller
    ------
    As of W3.

    Engines
    -------
    vLLM computes the last block of a prompt again, stores it twice, and reports the removal of one copy
    (vllm#55092, vllm#48933).
    """
    if not seen.copies:
        return None
    observed = f"removed while {seen.copies} copies were there"
    return demand(seen.copies == 1, f"the removal of {seen.hash}", "its last copy", observed)


@_law
def w6(seen: BlockSeen) -> Found:
    """One hash has one content, and one content one hash.

    A content is the tokens of the block, its parent, and its namespace (salt, adapter), in one group. Each
    new block is compared with the blocks that are there.

    Why
    ---
    Two contents with one hash are a collision: one of two prompts gets the other's memory. A router that
    computes hashes cannot find the second hash of a content.

    Choices
    -------
    How it hashes. Which namespaces there are.

    Caller
    ------
    None.

    Engines
    -------
    vLLM hashes with a salt of the process unless `PYTHONHASHSEED` is set, so hashes of two servers differ.
    """
    if seen.earlier is not None:
        return Broken(f"the content of {seen.hash}", f"that of message {seen.earlier}", "another one")
    if seen.other is not None:
        other, number = seen.other
        return Broken("the hash of a content", f"{other}, as in message {number}", seen.hash)
    return True


@_law
def w7(seen: RoomSeen) -> Found:
    """No more blocks are there than the memory has.

    The copies in all groups of a memory are together at most the number given by ``--blocks``.

    Why
    ---
    If blocks are reused for other tokens without an event, stale entries pile up: an index reports blocks
    that are long gone.

    Choices
    -------
    None.

    Caller
    ------
    To pass the number of blocks that the server logs at its start.

    Engines
    -------
    vLLM keeps one block for padding, which is never reported.
    """
    if seen.capacity is None:
        return None
    return demand(
        seen.copies <= seen.capacity, "blocks that are there", f"at most {seen.capacity}", seen.copies
    )


@_law
def w8(seen: HitSeen) -> Found:
    """A request hits the longest chain of reported blocks.

    The cached tokens of an answer are those of the longest run of blocks, from the beginning of its prompt
    and in its namespace, that were reported and not removed when the request was sent. The last token of a
    prompt is always computed, so a block that ends with this token is not counted. A request never hits more.
    It hits no less if it runs alone and if blocks cover all layers: with several groups, such as one of
    window layers, the other groups also limit the hit.

    Why
    ---
    This is the purpose of the stream. A router sends a request to the server that reportedly has most of its
    prompt; if the server has less, the rest is computed again, and if another server has more, the router
    does not know.

    Choices
    -------
    A request that runs beside others may hit as much as was reported at any moment until all were answered.

    Caller
    ------
    The log of the requests, in order, with the events between them; `pymllm probe --events` writes it.
    Streams whose beginning was missed, of several producers, or without tokens are no test.

    Engines
    -------
    vLLM 0.32 reports a block as removed when one of its two copies is removed, and later hits this block: 96
    tokens, although 64 are reported (vllm#55092).
    """
    what = f"tokens that request {seen.request} hit"
    if seen.is_exact:
        return demand(seen.hit == seen.chain, what, seen.chain, seen.hit)
    return demand(seen.hit <= seen.chain, what, f"at most {seen.chain}", seen.hit)
