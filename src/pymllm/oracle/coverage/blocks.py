"""Situations of block allocators with their state slots, and of the context that drives whole requests."""

from __future__ import annotations

from functools import partial

from pymllm.history.files import Config
from pymllm.oracle.laws.situation import Condition, make_situations

_blocks = partial(make_situations, "blocks")
_requests = partial(make_situations, "requests")


def _is_several(config: Config) -> bool:
    slots = config.get("slots")
    return isinstance(slots, int) and slots > 1


_CACHING = Condition("prefix caching", lambda config: config.get("caching") is not False)
_LRU = Condition("policy lru", lambda config: config.get("policy") == "lru")
_REF_ZERO = Condition("policy ref_zero", lambda config: config.get("policy") != "lru")
_SEVERAL = Condition("several state slots", _is_several)

BLOCK_SITUATIONS = (
    *_blocks(
        ("the pool is exhausted", "C1", "B154"),
        ("an allocation fails", "C1 X4", "B121"),
        ("nothing is asked for", "C1"),
        ("a block is retained twice in one call", "C1", "B118"),
        ("a block is released twice in one call", "C1", "B118"),
        ("a shared block stays with its other holder", "C1", "B118"),
        ("a block without a hash becomes free", "C1", "B28"),
        ("the clock goes back", "C1 C6", "B55"),
        ("a reset with blocks held", "C9", "B79"),
    ),
    *_blocks(
        ("the dummy is refused", "C1", "B133"),
        ("a free block is refused", "C1 X1"),
        ("a block outside is refused", "X1"),
        ("a good block stays with a bad one", "X1"),
        ("more is released than is held", "C1", "B104"),
        ("hashes that are missing or none are refused", "C3 X1"),
        ("another hash is refused", "C3", "B122"),
        ("a stamp outside is refused", "X1"),
        ("a malformed call is refused", "X1"),
        needs="refusals",
    ),
    *_blocks(
        ("a chain is registered", "C3", "B143"),
        ("a block is registered below one of another call", "C3", "B161"),
        ("a hash is taken", "C3", "B127"),
        ("a parent is not registered", "C3", "B161"),
        ("a parent is not registered although its hash is another's", "C3", "B161"),
        ("a registered block is registered again", "C3", "B122"),
        when=(_CACHING,),
    ),
    *_blocks(
        ("a cached block is evicted", "C1 C4", "B125 B131"),
        ("an older parent waits for its child", "C1", "B119"),
        ("a chain goes from its end", "C1", "B119"),
        ("a chain of three goes from its end", "C1", "B119"),
        ("an allocation takes free blocks and cached ones", "C1", "B82"),
        ("equally old blocks wait for eviction", "C1", "B53"),
        ("a cached block is taken up again", "C1", "B28"),
        ("a cached block is spared for its held child", "C1", "B119"),
        ("an allocation fails although blocks are cached", "C1 X4", "B121 B134"),
        ("a reset with blocks cached", "C9", "B79"),
        when=(_CACHING, _LRU),
    ),
    *_blocks(
        ("a block goes with its descendants", "C1 C3"),
        ("three generations go at once", "C1 C3"),
        ("a held descendant is deregistered", "C1 C3"),
        when=(_CACHING, _REF_ZERO),
    ),
    *_blocks(
        ("an observer raises", "X2", "B124"),
        ("an observer calls the allocator", "X6", "B124"),
        needs="faults",
    ),
    *_blocks(
        ("the observer of an eviction raises", "X2", "B124"),
        needs="faults",
        when=(_CACHING, _LRU),
    ),
    *_blocks(
        ("a batch names a block twice", "C5"),
        ("a block keeps its slot", "C5"),
        ("a batch cannot be met", "C5", "B82"),
        ("too few slots can be evicted", "C6", "B82"),
        ("a block without a hash loses its slot", "C6"),
        ("a block without a slot is dropped", "C4"),
        ("an entry without a hash is passed over", "C4"),
        ("a drop names a block twice", "C4"),
        ("a state is restored", "C7", "B76 B86"),
        ("nothing is restored", "C7", "B76"),
        needs="mamba",
    ),
    *_blocks(
        ("several states are saved at once", "C7"),
        needs="mamba",
        when=(_SEVERAL,),
    ),
    *_blocks(
        ("a block loses its slot with its hash", "C4 C6", "B128"),
        ("a state is dropped with its hash", "C4"),
        ("a hash of another block is dropped with a block", "C4", "B128"),
        needs="mamba",
        when=(_CACHING,),
    ),
    *_blocks(
        ("a slot is evicted for want of room", "C5 C6"),
        ("slots are taken by a caller", "C2 C6"),
        ("every slot is in hand", "C2", "B82"),
        ("a state is saved into a slot in hand", "C2 C7"),
        needs="mamba",
        when=(_CACHING, _LRU),
    ),
    *_blocks(
        ("an older slot is spared for its block is in the batch", "C5", "B85"),
        ("an older slot is spared for its block is held", "C6", "B85"),
        ("the older of several slots goes", "C6"),
        ("the lower of equally old blocks loses its slot", "C6", "B53"),
        ("a reset with slots in use and in hand", "C9", "B79"),
        needs="mamba",
        when=(_CACHING, _LRU, _SEVERAL),
    ),
    *_blocks(
        ("a name without a slot is refused", "C4"),
        ("a name that is not the block's hash is refused", "C4"),
        ("a drop outside is refused", "X1"),
        ("a store outside is refused", "X1"),
        ("a store without a slot is refused", "C7"),
        ("a save of what is not live is refused", "X1"),
        ("a restore to what is not live is refused", "X1"),
        needs="mamba refusals",
    ),
)

_WEAK = Condition("a weak hash", lambda config: config.get("hash_digits") is not None)
_NOT_ONE_SLOT = Condition("several state slots", lambda config: config.get("mamba_slots") != 1)
_FEW_SLOTS = Condition("at most three state slots", lambda config: config.get("mamba_slots") in (1, 2, 3))

REQUEST_SITUATIONS = (
    *_requests(
        ("a prompt is computed in several chunks", "E1 C8", "B80"),
        ("a later chunk is computed", "E1 C8", "B80"),
        ("several requests compute chunks in one step", "E1 E2"),
        ("a step decodes and computes chunks", "E1 E2"),
        ("a decoding request goes on in a new block", "C1 E2"),
        ("no row is left for a request", "E3"),
        ("too few blocks are left for a request", "C1 E4", "B121"),
        ("too few blocks are left for a chunk", "C1 E4", "B112"),
        ("a step finds too few blocks for decoding requests", "C1 E4"),
        ("a paused request goes on", "E1 C7"),
        ("a scheduled chunk is given up by a pause", "E3"),
        ("a pause would keep too many blocks", "C1"),
        ("a paused request leaves", "E3"),
        ("a request leaves in the middle of its prompt", "E3", "B109"),
        ("a request leaves before it has computed anything", "E3", "B67"),
        ("a reset takes requests with it", "C9 E3", "B79"),
    ),
    *_requests(
        ("a prompt shares cached blocks", "C3 E1", "B137"),
        ("a full hit leaves a token to compute", "E4", "B115"),
        ("KV of shared blocks goes to the dummy", "E2 E5"),
        ("a block stays unregistered", "C3", "B127"),
        ("shared blocks outlive one of their requests", "C1 E2", "B118"),
        when=(_CACHING,),
    ),
    *_requests(
        ("cached blocks are evicted to make room", "C1 E4", "B125"),
        ("cached blocks are evicted for a decoding request", "C1 E4", "B119"),
        when=(_CACHING, _LRU),
    ),
    *_requests(("a hash names a block of other content", "C3 E1", "B136 B137"), when=(_CACHING, _WEAK)),
    *_requests(
        ("a request resumes from a cached state", "C7 E1", "B76 B86"),
        ("cached KV is computed again for its state", "C8 E1", "B80"),
        ("states are extracted inside a chunk", "C7 C8", "B80"),
        ("requests of a step leave the state of one block", "C7"),
        ("a state is not kept, since its block has no hash", "C6 C7"),
        needs="mamba",
        when=(_CACHING,),
    ),
    *_requests(("a state goes with its block", "C6"), needs="mamba", when=(_CACHING, _LRU)),
    *_requests(
        ("a step keeps several states", "C7"),
        needs="mamba",
        when=(_CACHING, _NOT_ONE_SLOT),
    ),
    *_requests(
        ("a commit runs out of slots", "C7", "B77 B82"),
        needs="mamba",
        when=(_CACHING, _FEW_SLOTS),
    ),
    *_requests(
        ("a commit takes slots from released blocks", "C6 C7", "B85"),
        needs="mamba",
        when=(_CACHING, _FEW_SLOTS, _LRU),
    ),
    *_requests(
        ("a malformed call is refused", "X1"),
        ("a prompt that can never fit is refused", "E4"),
        ("a request is as long as it may be", "E2"),
        ("a chunk is refused to a request that does not wait", "X1"),
        ("a paused request is paused again", "X1"),
        ("a request is resumed that is not paused", "X1"),
        ("a request is released twice", "X1 C1", "B104"),
        needs="refusals",
    ),
    *_requests(
        ("a request that could not be added leaves no trace", "X2 E3", "B121"),
        ("a chunk that could not be scheduled leaves no trace", "X2 E3", "B112"),
        ("a request finds no room where there is some", "X2 E3"),
        ("a chunk finds no room where there is some", "X2 E3"),
        ("a step that gets no block leaves no trace", "X2 E3"),
        ("a forward pass fails", "X2 E3", "B113"),
        ("a request leaves after a step that failed", "E3", "B113"),
        needs="faults",
    ),
    *_requests(
        ("a commit fails", "X2 C7"),
        needs="mamba faults",
        when=(_CACHING,),
    ),
)
