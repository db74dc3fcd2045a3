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
    An index that missed a message routes by blocks that are gone. The number is all that it can know that by.

    Choices
    -------
    The first number. A restarted producer may begin again with 0: then nothing is there.

    Caller
    ------
    A listener reads as fast as messages come: a queue that overflows drops some, which is the
    listener's gap and not the producer's.

    Engines
    -------
    vLLM and sglang number each message and keep the last ones for requests (`replay_endpoint`).
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

    Tokens are as many as hashes times the block's size.

    Why
    ---
    An index hashes the tokens to find a prompt. With tokens too many it hashes others than the engine did,
    and finds nothing, or another prompt.

    Choices
    -------
    Whether tokens are reported at all.

    Caller
    ------
    None.

    Engines
    -------
    vLLM's groups with a sliding window carry tokens of blocks that were skipped (vllm#44451). dynamo reports
    hashes of tokens instead.
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
    A block without its parent hangs in the air: no search from the beginning of a prompt ever meets it.

    Choices
    -------
    In groups that keep a window, a parent may be gone before its child comes.

    Caller
    ------
    A late listener does not know earlier blocks: nothing is blamed then.

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

    It was stored, and not removed since; after everything was cleared nothing is there.

    Why
    ---
    A removal that names something else leaves the block that is really gone in every index.

    Choices
    -------
    None.

    Caller
    ------
    As of W3.

    Engines
    -------
    vLLM and sglang send a removal when a block is taken for other tokens.
    """
    if not seen.copies and seen.is_new_to_us:
        return None
    return demand(seen.copies, "a removed block", f"{seen.hash} is there", "it is not there")


@_law
def w5(seen: BlockSeen) -> Found:
    """A block is reported as removed when its last copy is removed.

    A hash that was stored twice, in two blocks of memory, is still there when one of them is taken. It is a
    claim, which ``--removal one`` withdraws: then each copy has a removal of its own, and an index has to
    count.

    Why
    ---
    An index that keeps a set of hashes forgets the prompt at the first removal, while the engine still hits
    it: the request goes to another machine, and is computed once more.

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

    A content is the tokens of the block, its parent, and its namespace (salt, adapter), in one group. It is
    compared with the blocks that are there.

    Why
    ---
    Two contents of one hash are a collision: one of two prompts gets the other's memory. A router that
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

    All copies in all groups of a memory are at most the number that ``--blocks`` gives.

    Why
    ---
    Blocks that are taken for other tokens without a word pile up: an index promises blocks that are long
    gone.

    Choices
    -------
    None.

    Caller
    ------
    The number of blocks, as the server logs it at its start.

    Engines
    -------
    vLLM keeps one block for padding, which is never told.
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
    and in its namespace, that were told and not removed when it was sent. The last token of a prompt is
    always computed, so that a block which ends with it is not counted. It hits no more than that, and no
    less where nothing runs beside it, and where blocks are of all layers: with several groups, such as one of
    window layers, the others have a say.

    Why
    ---
    This is the purpose of the stream. A router sends a request to the server that reportedly has most of its
    prompt; if the server has less, the rest is computed again, and if another server has more, the router
    does not know.

    Choices
    -------
    A request that runs beside others may hit as much as was told at any moment until all were answered.

    Caller
    ------
    The log of the requests, in order, with the events between them; `pymllm probe --events` has it. Streams
    whose beginning was not heard, of several producers, or without tokens are no test.

    Engines
    -------
    vLLM 0.32 reports a block as removed when one of its two copies is removed, and then hits it: 96 tokens,
    although 64 are reported (vllm#55092).
    """
    what = f"tokens that request {seen.request} hit"
    if seen.is_exact:
        return demand(seen.hit == seen.chain, what, seen.chain, seen.hit)
    return demand(seen.hit <= seen.chain, what, f"at most {seen.chain}", seen.hit)
