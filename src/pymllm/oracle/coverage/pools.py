"""Situations of slot allocators, request rows, buffers, recurrent states, and of keys and hashes."""

from __future__ import annotations

from functools import partial

from pymllm.history.operations import KEY_FORMS, SHAPES
from pymllm.oracle.coverage.situation import Condition, make_situations

_slots = partial(make_situations, "slots")
_rows = partial(make_situations, "rows")
_buffers = partial(make_situations, "buffers")
_states = partial(make_situations, "states")
_hashes = partial(make_situations, "hashes")

_SINGLE = Condition("pages of one token", lambda config: config.get("page_size") == 1)
_PAGED = Condition("pages of several tokens", lambda config: config.get("page_size") != 1)
_TRACKS = Condition("track slots", lambda config: bool(config.get("track_slots")))

SLOT_SITUATIONS = (
    *_slots(
        ("the pool is exhausted", "A2 A3", "B95"),
        ("an alloc fails", "X4"),
        ("nothing is asked for", "A3"),
        ("nothing is freed", "A5"),
        ("part of an allocation is freed", "A2 A5", "B97 B98"),
        ("the last page in somebody's hands is freed", "A2", "B100"),
        ("a clear takes everything from its holders", "X7"),
    ),
    *_slots(
        ("need merges", "A4"),
        ("freed pages wait while older ones suffice", "A4"),
        ("an explicit merge", "A4"),
        ("an alloc fails and the order stays", "X4 A4", "B82"),
        needs="merges",
    ),
    *_slots(
        ("a group closes", "A2 A6"),
        ("a group collects pages of several calls", "A2 A6", "B97"),
        ("pages are handed out while a group is open", "A2 A6", "B94"),
        ("an alloc fails with pages pending", "A2 X4"),
        ("a clear closes a group", "A6 X7", "B94"),
        needs="groups",
    ),
    *_slots(
        ("a group in a group is refused", "A6", "B94"),
        ("an end without a group is refused", "A6", "B94"),
        needs="groups group_errors",
    ),
    *_slots(
        ("a malformed call is refused", "X1"),
        ("a double free is refused", "A5", "B104 B163"),
        ("padding is refused", "A1 A5", "B91 B92"),
        ("an index past the end is refused", "A5", "B95"),
        ("a negative index is refused", "A5", "B148"),
        ("good slots stay with a bad one", "X1 A5"),
        needs="refusals",
    ),
    *_slots(
        ("a double free inside a group is refused", "A5 A6", "B97"),
        needs="refusals groups",
    ),
    *_slots(("a slot named twice is refused", "A5"), needs="refusals", when=(_SINGLE,)),
    *_slots(
        ("an allocation ends inside a page", "A3", "B95 B98"),
        ("one slot frees its page", "A5", "B98"),
        ("slots of a page are named twice", "A5", "B97"),
        ("a slot beyond those asked for frees its page", "A3 A5", "B98"),
        when=(_PAGED,),
    ),
    *_slots(
        ("the window pool runs out first", "A7 X4", "B82"),
        ("the full pool runs out first", "A7 X4", "B82"),
        ("halves go before their slots", "A7"),
        ("a free returns what is left of both", "A7"),
        ("halves move", "A7"),
        ("a half is read", "A7"),
        ("a half that is gone is read", "A7"),
        needs="swa",
    ),
    *_slots(
        ("halves go inside a group", "A6 A7"),
        ("halves move inside a group", "A6 A7"),
        needs="swa groups",
    ),
    *_slots(
        ("a half that is gone is refused", "A7"),
        ("a half outside the pool is refused", "A5 A7"),
        ("a move from a slot without a half is refused", "A7"),
        ("a move to a slot with a half is refused", "A7"),
        ("a move from a free slot is refused", "A7"),
        ("a move to a free slot is refused", "A7"),
        ("a move of unequal lengths is refused", "A7"),
        needs="swa refusals",
    ),
    *_slots(("a move across pages is refused", "A7"), needs="swa refusals", when=(_PAGED,)),
)

_ENDS_OF_A_STRETCH = ("in a free row", "in no row", "outside its row", "with a value that is no slot")

ROW_SITUATIONS = (
    *_rows(
        ("a batch finds too few rows", "X4"),
        ("a used row is handed out again", "P2", "B107"),
        ("a clear takes rows from their holders", "X7"),
        ("an empty stretch is written", "P3"),
        ("a stretch reaches the end of its row", "P2 P3"),
        ("a stretch overwrites entries", "P3"),
        ("padded entries share row 0", "E5 P1", "B116 B152"),
        ("every request writes its next token", "P3"),
    ),
    *_rows(
        ("row 0 is freed", "P1", "B116"),
        ("a row is freed twice", "P2"),
        ("a row outside is freed", "X1"),
        ("a malformed call is refused", "X1"),
        ("an entry of different lengths is refused", "P2"),
        ("a stretch of another length is refused", "P2"),
        ("a stretch backwards is refused", "P2"),
        ("a stretch in row 0 is refused", "P1"),
        *((f"a stretch {where} is refused", "P2 X1") for where in _ENDS_OF_A_STRETCH),
        *((f"an entry {where} is refused", "P2 X1") for where in _ENDS_OF_A_STRETCH),
        needs="refusals",
    ),
)

BUFFER_SITUATIONS = (
    *_buffers(
        ("padded tokens share slot 0", "E5", "B148 B149"),
        ("padding stands beside tokens", "E5 P3", "B149"),
        ("no token is written", "P3"),
        ("the last slot is written", "P3", "B95 B148"),
        ("rows move onto rows that move", "P3"),
        *((f"rows are written in shape {shape}", "P3") for shape in SHAPES),
    ),
    *_buffers(
        ("a malformed call is refused", "X1"),
        ("a layer that is not there is asked for", "P3"),
        ("a write with a layer that is not there is refused", "P3"),
        ("a write with a slot outside the buffers is refused", "P3", "B148"),
        *((f"a write with too many or too few {part}s is refused", "P3") for part in ("key", "value")),
        *((f"a write with {part}s of another width is refused", "P3") for part in ("key", "value")),
        needs="refusals",
    ),
)

STATE_SITUATIONS = (
    *_states(
        ("track slots run out", "X4 P5"),
        ("one copy reads and writes the same row", "P5"),
        ("padded copies share row 0", "P5", "B151"),
        ("several rows are reset", "P5"),
    ),
    *_states(
        ("a snapshot is taken", "P5"),
        ("a snapshot is restored", "P5"),
        ("a clear takes snapshots from their holders", "X7"),
        when=(_TRACKS,),
    ),
    *_states(
        ("a working row is freed as a track slot", "P5", "B91"),
        ("row 0 is freed as a track slot", "P5", "B91"),
        ("a slot outside is freed", "X1"),
        ("a bad copy is refused", "P5"),
        ("a bad reset is refused", "P5"),
        ("a layer that is not there is asked for", "P4"),
        ("a malformed call is refused", "X1"),
        needs="refusals",
    ),
    *_states(("a track slot is freed twice", "P5"), needs="refusals", when=(_TRACKS,)),
)


HASH_SITUATIONS = (
    *_hashes(
        ("a slice is empty", "K1"),
        ("a slice reaches beyond the end", "K1"),
        ("a slice counts from the end", "K1"),
        ("a token is counted from the end", "K1"),
        ("a part keeps its namespace", "K1", "B140"),
        ("a page is chained to another", "H1", "B143"),
        ("the largest token is hashed", "H1"),
        ("a digest is a negative number", "H1"),
        ("a digest is a positive number", "H1"),
        ("a hash of bytes exceeds what is signed", "H1"),
        *((f"a key in form {form} is read", "K1", "B155") for form in KEY_FORMS),
        *((f"a page in form {form} is hashed", "H1", "B155") for form in KEY_FORMS),
    ),
    *_hashes(
        ("a key of tuples is read", "K1"),
        ("a page of tuples is hashed", "H1"),
        needs="bigrams",
    ),
    *_hashes(
        ("a token outside the key is asked for", "K1"),
        ("a token below 0 is refused", "H1"),
        ("a token above 32 bits is refused", "H1"),
        ("a prior that is no digest is refused", "H1"),
        ("what is no digest is not turned into a number", "H1"),
        ("a malformed call is refused", "X1"),
        needs="refusals",
    ),
    *_hashes(
        ("a page of several widths is refused", "H1"),
        ("a page of tuples of one number is refused", "K1"),
        needs="refusals bigrams",
    ),
)
