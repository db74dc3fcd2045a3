"""Situations of the context that drives whole requests."""

from __future__ import annotations

from functools import partial

from pymllm.oracle.laws.blocks import CACHING, LRU
from pymllm.oracle.laws.situation import Condition, make_situations

_requests = partial(make_situations, "requests")


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
        when=(CACHING,),
    ),
    *_requests(
        ("cached blocks are evicted to make room", "C1 E4", "B125"),
        ("cached blocks are evicted for a decoding request", "C1 E4", "B119"),
        when=(CACHING, LRU),
    ),
    *_requests(("a hash names a block of other content", "C3 E1", "B136 B137"), when=(CACHING, _WEAK)),
    *_requests(
        ("a request resumes from a cached state", "C7 E1", "B76 B86"),
        ("cached KV is computed again for its state", "C8 E1", "B80"),
        ("states are extracted inside a chunk", "C7 C8", "B80"),
        ("requests of a step leave the state of one block", "C7"),
        ("a state is not kept, since its block has no hash", "C6 C7"),
        needs="mamba",
        when=(CACHING,),
    ),
    *_requests(("a state goes with its block", "C6"), needs="mamba", when=(CACHING, LRU)),
    *_requests(
        ("a step keeps several states", "C7"),
        needs="mamba",
        when=(CACHING, _NOT_ONE_SLOT),
    ),
    *_requests(
        ("a commit runs out of slots", "C7", "B77 B82"),
        needs="mamba",
        when=(CACHING, _FEW_SLOTS),
    ),
    *_requests(
        ("a commit takes slots from released blocks", "C6 C7", "B85"),
        needs="mamba",
        when=(CACHING, _FEW_SLOTS, LRU),
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
        when=(CACHING,),
    ),
)
