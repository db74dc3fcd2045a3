"""The claims that adapters can make about implementations, and the claims that each implies.

A claim brings laws, parts of laws, and operations that are asked only of an implementation with the claim. An
implementation is not judged by what it does not claim.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

SPECIFICATION = "3.3"
"""The version of the specification: a breaking change raises its first number, any other its second."""


class Claim(NamedTuple):
    """A claim: its meaning, its kinds of implementations, and whether earlier headers imply it."""

    text: str
    kinds: str = "prefix"
    is_new: bool = False  # headers without a specification are older, and mean it without saying so


_ALL = "slots rows buffers states hashes prefix blocks requests index"
_IN_FORMS = _ALL.removesuffix(" index")
_POOLS = "slots rows states prefix blocks requests"

_OF_POOLS = "slots rows states blocks requests"

CLAIMS: dict[str, Claim] = {
    "pool": Claim("has slots, rows, states or blocks to allocate", _POOLS),
    "swa": Claim("prefix caches: has a sliding window; slots: gives each slot an SWA half", "slots prefix"),
    "mamba": Claim("keeps states of recurrent layers beside the KV", "prefix blocks requests"),
    "extra_key": Claim("keeps namespaces apart", "hashes prefix index"),
    "lora": Claim("keeps the second value of namespaces apart, a LoRA adapter's name", "hashes prefix index"),
    "lora_version": Claim("keeps the third apart, the version of that adapter", "hashes prefix"),
    "embeddings": Claim("keeps the fourth apart, what came in place of tokens", "hashes prefix"),
    "weights": Claim("keeps the fifth apart, the version of the model's weights", "hashes prefix"),
    "bigrams": Claim("takes tuples as tokens", "hashes prefix"),
    "hashes": Claim("hashes each page after the one before it", "hashes prefix"),
    "digests": Claim(
        "with hashes: in the documented bytes, so that they are equal everywhere", "prefix", True
    ),
    "forms": Claim("takes arguments in every container, dtype and layout (Python only)", _IN_FORMS, True),
    "exact_lru": Claim("evicts in the strict order of recency", "prefix blocks"),
    "exact_policy": Claim(
        "evicts leaves in the strict order of the configuration's policy, instead", "prefix blocks"
    ),
    "ranked_policy": Claim("evicts leaves by the rank of the configuration's policy, of equal ones any"),
    "refusals": Claim("refuses misuse with the documented errors: all of the next six", _ALL),
    "refuses_malformed": Claim("refuses what nobody may pass at any time", _ALL),
    "refuses_bad_arguments": Claim("refuses arguments that do not fit each other, or what they name", _ALL),
    "refuses_double_free": Claim("refuses what is free or gone to be freed again or used", _OF_POOLS),
    "refuses_foreign": Claim("refuses padding and whatever lies outside", f"buffers {_OF_POOLS}"),
    "refuses_stale": Claim("refuses nodes that have left the cache"),
    "refuses_unheld": Claim("refuses a release without that hold, or with another token"),
    "merges": Claim("makes freed pages available at a merge, in the order of A4", "slots"),
    "sorted": Claim("hands out the lowest page first after a merge", "slots"),
    "groups": Claim("collects frees in groups", "slots"),
    "group_errors": Claim("refuses a group inside a group, and an end without one", "slots"),
    "capacity_errors": Claim("tells by the documented errors that there is no room", "blocks requests", True),
    "zeroed_rows": Claim("zeroes a row when it is freed, and every row when the table is cleared", "rows"),
    "tight_buffers": Claim("has no rows in its buffers but those of page 0 and of the pool", "buffers", True),
    "faults": Claim("can let a call fail once, where the search asks for it", "prefix blocks requests"),
    "callbacks": Claim(
        "calls back once per evicted node, or for blocks that lose their content", "prefix blocks"
    ),
    "call_order": Claim("calls the pool as often and in the order that X2 demands"),
    "inspect": Claim("shows its nodes, or its views", "prefix blocks requests index"),
    "node_ids": Claim(
        "names nodes alike in each run, and tells no time of a clock on the wall", "prefix", True
    ),
    "hit_counts": Claim("with inspect: counts hits of a node by matches (R10)", "prefix", True),
    "lean_matches": Claim("a match splits at most one node, the one in which it ends"),
    "exact_windows": Claim(
        "with a window: lets its memory go and come back page by page, as S3 to S7 determine", "prefix", True
    ),
    "hold_tokens": Claim("with a window: a hold's token names the edge of its window (S5)", "prefix", True),
    "branching": Claim("with states: a match tells how far KV goes on without one", "prefix", True),
    "bare_inserts": Claim("with states: takes keys that come without a state"),
    "bare_holds": Claim("with states: locks a node without a state, and the state that the node gets later"),
    "state_leaves": Claim("with states: removes nodes that an eviction made leaves without one, unless held"),
    "lone_states": Claim("with states: a state may outlive its KV, and stands there again with it"),
    "lru_lists": Claim("has the two documented lists of nodes by recency, and shows their order"),
    "exact_removals": Claim("forgets the blocks that a removal names, and none below them", "index"),
    "counts_copies": Claim("takes one copy of a block with a removal, and not all", "index"),
    "layer_groups": Claim("keeps apart the blocks of several groups of layers", "index"),
    "media": Claim("keeps apart the copies of a block in several memories", "index"),
    "event_numbers": Claim("goes by the numbers of events: none counts twice, and a gap is told", "index"),
    "early_exit": Claim("can end a search when one worker is left", "index"),
    "careful_callers": Claim(
        "counts on callers who hold whole chains, register a hash once and name their slots", "blocks"
    ),
    "trusted_hashes": Claim(
        "knows a block by its hash alone: several may have one, and none waits for children", "blocks"
    ),
    "reserve": Claim("takes a request up only if so many blocks are left for others", "requests"),
    "truncate": Claim("cuts the end off a live request", "requests"),
    "transfers": Claim("keeps memory under transfer from being handed out again", "slots blocks requests"),
    "events": Claim(
        "tells each block that comes or goes, by events in their order", "prefix blocks requests"
    ),
    "engine": Claim("can be driven by the simulated engine; needs a pool", "prefix requests"),
}
"""Every claim, in the order in which pages list them."""

CAPABILITIES: dict[str, str] = {name: claim.text for name, claim in CLAIMS.items()}
"""The names of all claims; a law whose claims are missing is reported as not claimed."""

REFUSALS = tuple(name for name in CLAIMS if name.startswith("refuses_"))
"""The claims that `refusals` includes."""

ANY_REFUSAL = "|".join(REFUSALS)

_NEW = frozenset(name for name, claim in CLAIMS.items() if claim.is_new)
_ORDERS = frozenset({"exact_lru", "exact_policy"})


@lru_cache(maxsize=1024)
def all_claims(capabilities: frozenset[str], specification: str = SPECIFICATION) -> frozenset[str]:
    """Return claims with all claims that they imply, in a version of the specification."""
    known = capabilities.union(REFUSALS) if "refusals" in capabilities else capabilities
    if specification:
        return known
    # Before 2.1 a strict order said what is now `state_leaves`.
    return known | _NEW | ({"state_leaves"} if known & _ORDERS else set())


def are_met(needs: Collection[str], capabilities: Collection[str]) -> bool:
    """Tell whether each need is claimed; for a need like ``"one|other"`` any of its claims will do."""
    known = all_claims(frozenset(capabilities))
    return all(not known.isdisjoint(need.split("|")) for need in needs)
