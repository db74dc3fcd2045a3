"""Rows of requests, buffers of keys and values, buffers of states: the laws of pools."""

from __future__ import annotations

from typing import Any

from pymllm.oracle.laws.law import Found, law


@law("P1", page="rows-states-buffers", ways="sop", kinds="rows")
def rows_are_handed_out_but_row_0(before: Any, operation: Any, seen: Any) -> Found:
    """Rows 1 to max_reqs are handed out, row 0 is padding.

    The table has `max_reqs` + 1 rows of `max_context_len` entries. `alloc_rows(count)` answers `count`
    different free rows, each in 1 to `max_reqs`, or `no_room` and none (X4). It is all or nothing for a
    batch of requests. `alloc_rows(0)` answers no rows. A row that is handed out is the caller's until it
    is freed, or the table cleared.

    Row 0 belongs to nobody: it is never handed out, cannot be freed, and takes what padded entries write
    (P3, E5). To free it, or to write a stretch to it, is refused with `OwnershipError`.

    | size | rows |
    | --- | --- |
    | `size` | `max_reqs`, always: row 0 is not counted |
    | `available_size` | rows that are free |

    At the start all entries are 0. What is read (`read_rows`) is the whole table, row 0 first, each row
    with `max_context_len` numbers.

    Why
    ---
    Batches are padded to a fixed size, and the empty places have request 0. If row 0 is a real
    request, each padded step writes into its table. Where the pool of states counted from 1
    and the table from 0, the same number meant a living request here and padding there.

    Choices
    -------
    Which free rows, and in which order.

    Caller
    ------
    To keep a request's row for as long as the request runs, between its chunks, too.

    Engines
    -------
    - sglang: the same (`sglang/srt/mem_cache/memory_pool.py`, `ReqToTokenPool`): `size` + 1 rows, from
      1 on, the last freed first.
    - vLLM: not read for this law; padded slots are -1 (`v1/attention/backends/utils.py`, `PAD_SLOT_ID`).
    - Megatron Core 0.16.1: requests count from 0; states of padding have index -1
      (`core/inference/contexts/attention_context/mamba_metadata.py`).
    """
    return None


@law("P2", page="rows-states-buffers", ways="sop", kinds="rows", needs="zeroed_rows")
def a_freed_row_is_zero(before: Any, operation: Any, seen: Any) -> Found:
    """A freed row is zero, and is freed once.

    `free_row` gives one row back. All of its entries are 0 from then on, before and after it is handed
    out again; no other row changes. After `clear` every row is zero, row 0 included.

    Who claims `refusals` refuses, and changes nothing (X1):

    | misuse | error |
    | --- | --- |
    | to free row 0, a row that is free, or one beyond the table | `OwnershipError` |
    | `write_row` or `write_entries` in a row that is free | `OwnershipError` |
    | `write_row` in row 0 | `OwnershipError` |
    | either in a row below 0 or beyond the table | `IndexError` or `OwnershipError` |
    | positions below 0 or beyond the row; `stop` before `start` | `IndexError` or `ValueError` |
    | unequal numbers of values and positions, and of rows where there are several | `ValueError` |
    | a value below 0, or from 2<sup>31</sup> on | `IndexError`, `ValueError`, `TypeError` |

    Negative positions do not count from the end. The law is claimed with `zeroed_rows`. Who does not
    claim it must still hand out rows in its own way (P1) and write exactly (P3): what stands in a row
    when it was freed is open then, until it is looked at. From then on only writes change it.

    Why
    ---
    A row names slots. If those of a finished request are still there, a shorter one that gets the
    row has a tail of foreign slots behind its own end, and whoever reads too far attends to them. A row
    that was freed between two chunks, and handed to somebody else, was overwritten while the last
    step still read it.

    Choices
    -------
    When it is zeroed, as long as nobody sees anything else.

    Caller
    ------
    To write before it reads, and to free a row once, after the last step that reads it.

    Engines
    -------
    - sglang keeps the entries of freed and of cleared rows (`ReqToTokenPool.free_rows`, `clear`), since
      rows are read only as far as they were written: different. It does not look at indices.
    - vLLM, Megatron Core 0.16.1: not read for this law. An older Megatron left the blocks of finished
      requests in its table.
    """
    return None


@law("P3", page="rows-states-buffers", ways="sop", kinds="rows buffers")
def a_write_changes_what_it_names(before: Any, operation: Any, seen: Any) -> Found:
    """A write changes the named rows, exactly.

    **Rows.** `write_row` sets the entries `start` to `stop` - 1 of one row to `values`, in order;
    `write_entries` sets one entry for each triple of row, position and value. All other entries stay.
    Nothing is cast or cut: values up to 2<sup>31</sup> - 1 come back as they went in. An empty stretch
    and no entries at all are fine, and change nothing.

    **Buffers.** Each layer has a buffer of keys and one of values, with `size` + `page_size` rows: page 0
    and the pages that an allocator hands out (A1). A row of keys has `k_heads` `k_dim` elements,
    one of values `v_heads` `v_dim`; both are 0 at the start. `write_kv` writes row *i* of `keys` and
    of `values` to slot `slots[i]` of one layer; no other slot, layer or part changes, and no bit of
    what is written. How the rows lie in memory (`shape`) makes no difference. `move_kv` writes rows of
    a layer to others of it; all are read before one is written, so ranges may overlap.

    **Padding.** Row 0 of the table and slot 0 of the buffers may be named several times in one write.
    Afterwards each of their elements is what one of these writes had there; which one, is open, and
    may differ from element to element. Any other row or slot is named once; what else would happen is
    the caller's error, and is never asked.

    **Refused**, for who claims `refusals`, with any error of X1: a layer that is not there (also by
    `read_kv`), a slot below 0 or beyond the last row, more or fewer keys or values than slots, rows of
    another width, another dtype, a shape that would have to be broadcast. If one slot of a batch is
    wrong, nothing is written. Those of rows are in P2's table.

    Why
    ---
    A write behind the end of a buffer changes another layer, or another tensor. A cast from one 16 bit
    type to the other changes every value a little, and answers become worse without an error; one value
    that is broadcast to all heads makes them nonsense. Padding with slot -1 is a valid index in
    many languages: 64 padded rows overwrote the last slot of a server, which was in use.

    Choices
    -------
    Layout in memory. A Python buffer is documented as `[rows, heads, dim]`, contiguous. On an accelerator
    values of index tensors may be looked at only on request (`check_bounds`): then that is a matter of
    configuration, and `refusals` is claimed where they are.

    Caller
    ------
    To name each slot once, padding aside, and to pass rows of the buffer's own dtype.

    Engines
    -------
    - sglang: the same rows and layout (`memory_pool.py`, `MHATokenToKVPool`). Another dtype is scaled
      and cast (`set_kv_buffer`), and indices are looked at in a debug mode only: different.
    - vLLM, Megatron Core 0.16.1: not read for this law.
    """
    return None


@law("P4", page="rows-states-buffers", ways="sop", kinds="states")
def states_are_laid_out_as_documented(before: Any, operation: Any, seen: Any) -> Found:
    """States have the documented layout and dtype.

    Each layer has two states for each row, where rows are 0 (padding), 1 to `max_reqs` (working rows of
    requests) and `track_slots` more behind these: *R* = 1 + `max_reqs` + `track_slots` in all.

    | part | shape of a layer | dtype |
    | --- | --- | --- |
    | recurrent | `[R, v_heads, v_dim, k_dim]` | float32, whatever `dtype` is |
    | convolution | `[R, conv_dim, kernel - 1]` | `dtype` |

    `read_states` tells both shapes, both dtypes and all elements of a layer. The elements of a row are
    told in the order of the last axis first: in a recurrent state, place *i* of the list is head
    *i* div (`v_dim` `k_dim`), value (*i* div `k_dim`) mod `v_dim`, key *i* mod `k_dim`. With `kernel`
    1 a convolution's state has no elements, and its rows are empty lists. A dtype that cannot be told is
    `""`, and not compared. All elements are 0 at the start.

    `write_state` writes one row of one layer: element *i* of each part becomes its first number plus
    *i* `ramp`. It changes that row of that layer and nothing else, and what is read afterwards is
    that, bit for bit.

    Why
    ---
    The kernel that updates states and the one that reads them are written by different people. If one
    has keys before values and the other values before keys, everything fits as long as both are
    equally long, and the model forgets. A state that is kept in 16 bits loses what it adds up.

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
    return None


@law("P5", page="rows-states-buffers", ways="sop", kinds="states")
def track_slots_have_one_owner(before: Any, operation: Any, seen: Any) -> Found:
    """Track slots have one owner; copies are bit-exact, resets exact.

    **Owners.** Track slots are the rows `max_reqs` + 1 to `max_reqs` + `track_slots`. `alloc_track`
    answers one that is free, or `no_room` (X4). It is the caller's until `free_track` gives it back, or
    `clear` does. To free anything else is refused with `OwnershipError`: a slot that is free, a working
    row, row 0, a row outside. `max_track_slots` counts all, `available_track_slots` the free ones.

    What stands in a track slot is open when it was allocated, and again when it was freed, until it is
    looked at; after that only writes, copies and resets change it. No other row is touched by either.

    **Copies.** `copy_states` copies row `source[i]` to row `target[i]`, for all *i*, in **every** layer,
    both parts, bit for bit: what is no number in its dtype (a NaN with a payload) and a negative zero
    arrive as they were. All sources are read before one target is written, so a row may be both. A source
    may be named several times. Any row may be a source or a target, whoever has it. Of the targets only
    row 0 may repeat: then each of its elements is that of one of these sources. No other row changes. No
    rows at all are fine.

    **Resets.** `reset_states` sets the rows that it names to 0, in every layer, both parts, and no other
    row. A row may be named twice, and row 0 may be named.

    **Refused**, for who claims `refusals`, without any change: rows below 0 or beyond the last one in a
    copy or a reset (`IndexError` or `OwnershipError`); unequal numbers of sources and targets
    (`ValueError`); a layer that is not there in `read_states` (any error of X1).

    Why
    ---
    A state is the whole memory of a recurrent model: with one layer that was not copied it goes on
    from somebody else's past. Where padding had no row of its own, a padded step wrote into the state
    of a request that was parked. An engine died because keeping a state, which is optional, asserted
    that there was room.

    Choices
    -------
    Which free track slot. In which order, and in how many kernels, it copies.

    Caller
    ------
    To copy between rows that it owns. Working rows have the numbers of the table's rows (P1).

    Engines
    -------
    - sglang: one pool of slots for working states and kept ones alike (`allocator/mamba.py`); slot 0
      takes padding. `MambaPool.copy_from` copies all layers; its fused form needs sources and targets
      that are disjoint: different.
    - Megatron Core 0.16.1: one state for each request, no snapshots (`MambaMetadata`). vLLM: not read
      for this law.
    """
    return None
