"""Situations of slot allocators, request rows, buffers, recurrent states, and of keys and hashes."""

from __future__ import annotations

from functools import partial

from pymllm.history.operations import KEY_FORMS, SHAPES
from pymllm.oracle.laws.situation import Condition, make_situations

_rows = partial(make_situations, "rows")
_buffers = partial(make_situations, "buffers")
_states = partial(make_situations, "states")
_hashes = partial(make_situations, "hashes")

_SINGLE = Condition("pages of one token", lambda config: config.get("page_size") == 1)
_PAGED = Condition("pages of several tokens", lambda config: config.get("page_size") != 1)
_TRACKS = Condition("track slots", lambda config: bool(config.get("track_slots")))

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
