"""Situations of keys and hashes."""

from __future__ import annotations

from functools import partial

from pymllm.history.operations import KEY_FORMS
from pymllm.oracle.laws.situation import make_situations

_hashes = partial(make_situations, "hashes")

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
