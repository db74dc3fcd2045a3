"""What the acts of each machine are good for: filling, draining, wiping out, and which arguments are lengths.

A phase of a run prefers some roles (`pymllm.conformance.soak.swarm`). What stands in no set is plain use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ROLES", "Roles", "roles_of"]


@dataclass(frozen=True, slots=True)
class Roles:
    """The acts of one machine by role.

    Parameters
    ----------
    fill : frozenset of str
        They take memory. One at least stays on in every run, and they are switched off less often.
    drain : frozenset of str
        They give memory back.
    wipe : frozenset of str
        They end everything at once: rare, because what they leave is young.
    lengths : dict
        By act, the arguments that are lengths and places: in a larger pool they reach further.
    vital : frozenset of str
        Without them nothing happens: they stay on.
    """

    fill: frozenset[str]
    drain: frozenset[str] = frozenset()
    wipe: frozenset[str] = frozenset()
    lengths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    vital: frozenset[str] = frozenset()


def _roles(fill: str, drain: str = "", wipe: str = "", lengths: str = "", vital: str = "") -> Roles:
    """Make roles of names with spaces between; lengths are ``act:argument,argument``."""
    pairs = [entry.partition(":") for entry in lengths.split()]
    return Roles(
        frozenset(fill.split()),
        frozenset(drain.split()),
        frozenset(wipe.split()),
        {act: tuple(names.split(",")) for act, _, names in pairs},
        frozenset(vital.split()),
    )


ROLES: dict[str, Roles] = {
    "SlotMachine": _roles(
        "alloc alloc_all",
        "free free_swa",
        "clear",
        "alloc:pages alloc_all:but free:start,count free_swa:start,count move_swa:start,count,other "
        "read_halves:start,count free_wrong:start,place free_swa_wrong:start,place move_wrong:start,other",
    ),
    "RowMachine": _roles("admit", "finish", "clear"),
    "BufferMachine": _roles("write", "move"),
    "StateMachine": _roles("alloc_track_slot advance", "free_track_slot reset", "clear"),
    "HashMachine": _roles("hash_page slice_key"),
    "PrefixMachine": _roles(
        "insert_fresh insert_windowed request serve insert_with_state insert_token_ids",
        "evict evict_full evict_windows unlock_hold unlock_all give_hoard_back give_hoarded_tracks_back",
        "reset reset_refused_by_pool reset_refused_by_state_pool",
        "match_key:pages,turn,other insert_fresh:pages,turn,other insert_token_ids:pages,turn "
        "insert_windowed:pages,turn,other,protected,evicted request:pages,turn,other,evicted "
        "punch_hole:pages,turn,at serve:pages,turn,other insert_with_state:pages,turn,other "
        "reinsert_stored:pages,turn,other,evicted "
        "add_state_to_stored:pages,turn,other add_state_under_holds:pages,turn hoard_slots:pages "
        "insert_refused_by_pool:pages,turn,other insert_badly:pages,turn insert_without_halves:pages,turn",
    ),
    "LifecycleMachine": _roles(
        "ask crowd ask_for_everything",
        "settle evict abort",
        "flush start_again",
        "ask:blocks,turn,output evict:tokens limit_chunks:tokens ask_for_everything:output,turn",
        vital="step",
    ),
    "BlockMachine": _roles(
        "alloc alloc_all publish serve outlive",
        "release release_all drop_states evict_slots",
        "reset",
        vital="tick",
    ),
    "RequestMachine": _roles("add add_two add_longest add_rival", "release serve decode", "reset"),
}
"""The roles of every machine that there is."""


def roles_of(machine: str, acts: frozenset[str]) -> Roles:
    """Return the roles of a machine by its name; of one that is not listed, every act may fill."""
    return ROLES.get(machine, Roles(acts))
