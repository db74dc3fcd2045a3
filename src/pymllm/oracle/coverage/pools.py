"""Situations of recurrent states, and of keys and hashes."""

from __future__ import annotations

from functools import partial

from pymllm.history.operations import KEY_FORMS
from pymllm.oracle.laws.situation import Condition, make_situations

_states = partial(make_situations, "states")
_hashes = partial(make_situations, "hashes")

_TRACKS = Condition("track slots", lambda config: bool(config.get("track_slots")))

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
