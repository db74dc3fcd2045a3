"""Situations that a search through whole requests must reach."""

from __future__ import annotations

from pymllm.oracle.history import Header

__all__ = ["expected_situations"]

_ALWAYS = frozenset(
    {
        "a prompt is computed in several chunks",
        "a later chunk is computed",
        "several requests compute chunks in one step",
        "a step decodes and computes chunks",
        "a decoding request goes on in a new block",
        "no row is left for a request",
        "too few blocks are left for a request",
        "too few blocks are left for a chunk",
        "a step finds too few blocks for decoding requests",
        "a paused request goes on",
        "a scheduled chunk is given up by a pause",
        "a pause would keep too many blocks",
        "a paused request leaves",
        "a request leaves in the middle of its prompt",
        "a request leaves before it has computed anything",
        "a reset takes requests with it",
    }
)
_SHARING = frozenset(
    {
        "a prompt shares cached blocks",
        "a full hit leaves a token to compute",
        "KV of shared blocks goes to the dummy",
        "a block stays unregistered",
        "shared blocks outlive one of their requests",
    }
)
_KEEPING = frozenset(
    {"cached blocks are evicted to make room", "cached blocks are evicted for a decoding request"}
)
_WEAK = frozenset({"a hash names a block of other content"})
_STATES = frozenset(
    {
        "a request resumes from a cached state",
        "cached KV is computed again for its state",
        "states are extracted inside a chunk",
        "requests of a step leave the state of one block",
        "a state is not kept, since its block has no hash",
    }
)
_FEW_SLOTS = frozenset({"a commit runs out of slots"})
_REFUSING = frozenset(
    {
        "a malformed call is refused",
        "a prompt that can never fit is refused",
        "a request is as long as it may be",
        "a chunk is refused to a request that does not wait",
        "a paused request is paused again",
        "a request is resumed that is not paused",
        "a request is released twice",
    }
)
_FAILING = frozenset(
    {
        "a request that could not be added leaves no trace",
        "a chunk that could not be scheduled leaves no trace",
        "a request finds no room where there is some",
        "a step that gets no block leaves no trace",
        "a forward pass fails",
        "a request leaves after a step that failed",
    }
)
_FAILING_STATES = frozenset({"a commit fails"})


def expected_situations(header: Header) -> frozenset[str]:
    """Return what a long run of a configuration with these capabilities must have met."""
    config, claims = header.config, frozenset(header.capabilities)
    slots = config.get("mamba_slots")
    is_sharing = config.get("caching") is not False
    keeps = is_sharing and config.get("policy") == "lru"
    has_states, is_short = is_sharing and "mamba" in claims, slots in (1, 2, 3)
    chosen = {
        _SHARING: is_sharing,
        _KEEPING: keeps,
        _WEAK: is_sharing and config.get("hash_digits") is not None,
        _STATES: has_states,
        frozenset({"a state goes with its block"}): has_states and keeps,
        frozenset({"a step keeps several states"}): has_states and slots != 1,
        _FEW_SLOTS: has_states and is_short,
        frozenset({"a commit takes slots from released blocks"}): has_states and is_short and keeps,
        _REFUSING: "refusals" in claims,
        _FAILING: "faults" in claims,
        _FAILING_STATES: has_states and "faults" in claims,
    }
    return _ALWAYS.union(*(group for group, is_expected in chosen.items() if is_expected))
