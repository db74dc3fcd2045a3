"""Laws of pools of recurrent states: their layout, their track slots and their copies."""

from __future__ import annotations

from functools import partial

from pymllm.history.operations import (
    AllocTrack,
    Clear,
    CopyStates,
    FreeTrack,
    ReadStates,
    ResetStates,
    WriteState,
)
from pymllm.history.outcomes import Done, NoRoom, Slots, States
from pymllm.oracle.laws.every_class import what_cannot_be_met_changes_nothing
from pymllm.oracle.laws.goal import Condition, Met, make_goals
from pymllm.oracle.laws.law import Asked, Broken, Found, KindLaws, law, same, same_cells
from pymllm.oracle.models.expected_cells import SeenCells
from pymllm.oracle.models.kind_model import DONE, NO_ROOM, Seen
from pymllm.oracle.models.state_pools import SeenRows, StatePoolModel


@law("P4", ReadStates, page="rows-states-buffers", ways="sop", kinds="states")
def states_are_laid_out_as_documented(
    before: StatePoolModel, operation: ReadStates, seen: SeenCells
) -> Found:
    """States have the documented layout and dtype.

    Each layer has two states for each row, where rows are 0 (padding), 1 to `max_reqs` (working rows of
    requests) and `track_slots` more behind these: *R* = 1 + `max_reqs` + `track_slots` in all.

    | part | shape of a layer | dtype |
    | --- | --- | --- |
    | recurrent | `[R, v_heads, v_dim, k_dim]` | float32, whatever `dtype` is |
    | convolution | `[R, conv_dim, kernel - 1]` | `dtype` |

    `read_states` returns both shapes, both dtypes and all elements of a layer. The elements of a row are in
    the order of the last axis first: in a recurrent state, place *i* of the list is head *i* div (`v_dim`
    `k_dim`), value (*i* div `k_dim`) mod `v_dim`, key *i* mod `k_dim`. With `kernel` 1 a convolution's state
    has no elements, and its rows are empty lists. An unknown dtype is `""`, and is not compared. All elements
    are 0 at the start.

    `write_state` writes one row of one layer: element *i* of each part becomes its first number plus
    *i* `ramp`. It changes only that row of that layer, and later reads return its values, bit for bit.

    Why
    ---
    Different people write the kernel that updates states and the kernel that reads them. If one kernel has
    keys before values and the other values before keys, the shapes match as long as both are equally long,
    and the model forgets. A state kept in 16 bits loses small additions.

    Choices
    -------
    Where the layers lie in memory. Whether an element is kept as a number or as the bits of its dtype.

    Caller
    ------
    To write whole rows through the views of a layer, at rows that it owns.

    Engines
    -------
    - sglang: the same axes, `(layers, size + 1, value heads, value dim, key dim)`; the dtype
      is configured (`memory_pool.py`, `MambaPool`). Convolutions are `(dim, kernel - 1)`.
    - vLLM: not read for this law. Megatron Core 0.16.1: shapes are configured, without rows
      (`MambaInferenceStateConfig`).
    """
    if seen.form == before.form:
        return None  # the same at each reading, so no test
    told = zip(("shapes", "dtypes", "rows", "widths"), before.form, seen.form, strict=True)
    what, expected, observed = next(each for each in told if each[1] != each[2])
    return Broken(f"{what} of both parts", expected, observed)


@law("P5", AllocTrack, page="rows-states-buffers", ways="sop", kinds="states")
def track_slots_have_one_owner(before: StatePoolModel, operation: AllocTrack, seen: Seen) -> Found:
    """Track slots have one owner; copies are bit-exact, resets exact.

    **Owners.** Track slots are the rows `max_reqs` + 1 to `max_reqs` + `track_slots`. `alloc_track` returns a
    free track slot, or `no_room` (X4). It is the caller's until `free_track` or `clear` gives it back. To
    free anything else is refused with `OwnershipError`: a slot that is free, a working row, row 0, a row
    outside. `max_track_slots` counts all, `available_track_slots` the free ones.

    The content of a track slot is undefined after its allocation, and again after its free, until it is read;
    after that only writes, copies and resets change it. Allocations and frees touch no other row.

    **Copies.** `copy_states` copies row `source[i]` to row `target[i]`, for all *i*, in **every** layer, both
    parts, bit for bit: a NaN with a payload and a negative zero arrive unchanged. All sources are read before
    any target is written, so a row may be both. A source may be named several times. Any row may be a source
    or a target, whatever its owner. Of the targets only row 0 may repeat: then each of its elements comes
    from one of these sources. No other row changes. The lists may be empty.

    **Resets.** `reset_states` sets the named rows to 0, in every layer, both parts, and no other row. A row
    may be named twice, and row 0 may be named.

    **Refused**, with the claim `refusals`, without any change: rows below 0 or beyond the last one in a copy
    or a reset (`IndexError` or `OwnershipError`); unequal numbers of sources and targets (`ValueError`); a
    layer that does not exist in `read_states` (any error of X1).

    Why
    ---
    A state is the whole memory of a recurrent model: if one layer is not copied, the model continues from
    another request's past. Where padding had no row of its own, a padded step wrote into the state of a
    paused request. An engine died because keeping a state, which is optional, asserted that there was room.

    Choices
    -------
    Which free track slot. In which order, and in how many kernels, it copies.

    Caller
    ------
    To copy between rows that it owns. Working rows have the numbers of the table's rows (P1).

    Engines
    -------
    - sglang: one pool of slots for working states and kept states (`allocator/mamba.py`); slot 0 takes
      padding. `MambaPool.copy_from` copies all layers; its fused form needs disjoint sources and targets:
      different.
    - Megatron Core 0.16.1: one state for each request, no snapshots (`MambaMetadata`). vLLM: not read
      for this law.
    """
    slots = seen.result.slots
    if len(slots) == len(before.free.intersection(slots)) == 1:
        return True
    return Broken("a track slot handed out", f"one of {before.free}", slots)


@track_slots_have_one_owner.on(ReadStates)
def _states_hold_what_was_written(before: StatePoolModel, operation: ReadStates, seen: SeenCells) -> Found:
    return same_cells(seen)


@track_slots_have_one_owner.on(AllocTrack, fate=NO_ROOM)
def _no_slot_is_handed_out(before: StatePoolModel, operation: AllocTrack, seen: Seen) -> Found:
    """Demand a refusal if no track slot is free, of pools without the `pool` claim; X4 judges the others."""
    return None if "pool" in before.claims else _there_is_no_room(before, operation, seen)


@what_cannot_be_met_changes_nothing.on(AllocTrack, fate=NO_ROOM, kinds="states")
def _there_is_no_room(before: StatePoolModel, operation: AllocTrack, seen: Seen) -> Found:
    return same("a track slot where none is free", NoRoom(), seen.result)


# -- coverage goals ------------------------------------------------------------------------------------------

_goals = partial(make_goals, "states")
_TRACKS = Condition("track slots", lambda config: bool(config.get("track_slots")))
_NEAR = Condition("rows that are not far apart", lambda config: config.get("apart", 1) == 1)

GOALS = (
    *_goals(
        ("track slots run out", "X4 P5"),
        ("one copy reads and writes the same row", "P5"),
        ("padded copies share row 0", "P5", "B151"),
        ("several rows are reset", "P5"),
    ),
    *_goals(
        ("a snapshot is taken", "P5"),
        ("a snapshot is restored", "P5"),
        when=(_TRACKS,),
    ),
    *_goals(("a clear takes snapshots from their holders", "X7"), when=(_TRACKS, _NEAR)),
    *_goals(
        ("a working row is freed as a track slot", "P5", "B91"),
        ("row 0 is freed as a track slot", "P5", "B91"),
        ("a slot outside is freed", "X1"),
        ("a bad reset is refused", "P5"),
        needs="refuses_foreign",
    ),
    *_goals(
        ("a bad copy is refused", "P5"),
        ("a layer that is not there is asked for", "P4"),
        needs="refuses_bad_arguments",
    ),
    *_goals(("a malformed call is refused", "X1"), needs="refuses_malformed"),
    *_goals(("a track slot is freed twice", "P5"), needs="refuses_double_free", when=(_TRACKS,)),
)
"""Coverage goals that a search for violations must reach on state pools."""


def _met_by_failure(pool: StatePoolModel, operation: AllocTrack, seen: Seen) -> Met:
    return {"track slots run out": True}


def _met_by_clear(pool: StatePoolModel, operation: Clear, seen: Seen) -> Met:
    return {"a clear takes snapshots from their holders": pool.held}


def _met_by_copy(pool: StatePoolModel, operation: CopyStates, seen: SeenRows) -> Met:
    source, target, working, held = seen.source, seen.target, pool.working, pool.held
    pairs = list(zip(source, target, strict=True))
    return {
        "a snapshot is taken": any(old in working and new in held for old, new in pairs),
        "a snapshot is restored": any(old in held and new in working for old, new in pairs),
        "one copy reads and writes the same row": {*source} & {*target},
        "padded copies share row 0": target.count(0) > 1,
    }


def _met_by_reset(pool: StatePoolModel, operation: ResetStates, seen: SeenRows) -> Met:
    return {"several rows are reset": len({*seen.target}) > 1}


STATE_POOLS = KindLaws(
    order="X4 P4 P5",
    asked={
        AllocTrack: Asked(Slots, "P5"),
        FreeTrack: Asked(Done, "P5"),
        Clear: Asked(Done, "X7"),
        WriteState: Asked(Done, "P4", "P5"),
        CopyStates: Asked(Done, "P5"),
        ResetStates: Asked(Done, "P5"),
        ReadStates: Asked(States, "P4", "P5"),
    },
    sizes_law="P5",
    met={
        (AllocTrack, NO_ROOM): _met_by_failure,
        (Clear, DONE): _met_by_clear,
        (CopyStates, DONE): _met_by_copy,
        (ResetStates, DONE): _met_by_reset,
    },
    counts_all=False,
)
