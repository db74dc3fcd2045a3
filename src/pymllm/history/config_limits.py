"""Bounds on the sizes in a configuration, so that an implementation cannot fill the memory.

A configuration comes from a file or a program that anybody may have written, and everything is built from it:
the judge's model, and the implementation itself. Small ones find more: what is searched are collisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any, Final

from pymllm.errors import ProgramError

_SLOTS: Final = 2**20
_PAGE: Final = 2**16
_FEW: Final = 2**10
_APART: Final = 2**26

ELEMENTS_LIMIT: Final = 2**16
"""The greatest number of elements that are read as a whole: a table, buffers, or states."""

INTEGER_LIMIT: Final = 2**63
"""The bound of every integer, from its negative up."""

SIZE_LIMITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("pages", "swa_pages", "slots", "swa_slots", "capacity", "size"), _SLOTS),
    **dict.fromkeys(("blocks", "num_blocks", "max_blocks", "paused_limit", "window"), _SLOTS),
    **dict.fromkeys(("page_size", "block_size", "chunk_size"), _PAGE),
    **dict.fromkeys(("track_slots", "mamba_slots", "max_reqs", "max_requests", "requests"), _PAGE),
    **dict.fromkeys(("max_context_len", "k_dim", "v_dim", "conv_dim", "conv_width", "kernel"), _PAGE),
    **dict.fromkeys(("ssm_dim", "ssm_width"), _PAGE),
    **dict.fromkeys(("layers", "k_heads", "v_heads", "ssm_heads"), _FEW),
    "apart": _APART,
}
"""The greatest value of each key that is a size, for all kinds."""

CONFIG_KEYS: Final[Mapping[str, str]] = {
    "slots": """
`page_size` | at least 1 | slots per page
`pages` | at least 1 | pages of the pool, page 0 not counted
`swa_pages` | at least 1 | pages of the second half; with it the allocator has one, and claims `swa`
`need_sort` | true or false | whether the lowest page goes first after a merge; absent it does
`check_ownership` | true or false | whether misuse is refused; absent it is
""",
    "rows": """
`max_reqs` | at least 1 | rows that are handed out; row 0 comes on top
`max_context_len` | at least 1 | entries of a row
""",
    "buffers": """
`size` | whole pages | slots, page 0 not counted: `size + page_size` rows
`page_size` | at least 1 | slots per page
`layers` | at least 1 |
`k_heads`, `k_dim`, `v_heads`, `v_dim` | at least 1 | shape of a row of keys, and of values
`dtype` | text | of an element, as PyTorch calls it: `bfloat16`, `float8_e4m3fn`, `int64`, ...
`apart` | at least 1, or absent | row *r* that a program names is row *r* times this of the buffers
""",
    "states": """
`max_reqs` | at least 1 | working rows 1 to `max_reqs`; row 0 is padding
`track_slots` | at least 0 | rows behind these, for snapshots
`layers`, `v_heads`, `k_dim`, `v_dim` | at least 1 | a row's state: float32 `[v_heads, v_dim, k_dim]`
`conv_dim`, `kernel` | at least 1 | the convolution's state of a row is `[conv_dim, kernel - 1]`
`dtype` | text | of the convolution's state
`apart` | at least 1, or absent | as of `buffers`, for working rows; track slots lie behind the last of these
""",
    "hashes": "",
    "prefix": """
`page_size` | at least 1 | tokens per page, of the cache and of its pool
`window` | at least 1, or null | tokens that the window layers look back; null, or absent, without such layers
`pool` | `"none"`, `"token"`, `"swa"` | none (so if absent): tokens are the slots; slots; slots with halves
`slots` | whole pages | tokens of the pool, page 0 not counted; absent without a pool
`swa_slots` | whole pages | tokens of its second half; absent without one
`track_slots` | at least 1, or absent | snapshots of states that its pool of states has; absent without states
`capacity` | whole pages, or absent | tokens of memory that inserts take by themselves (R3); it needs an order
`retains` | true or false | false for a cache that keeps nothing; absent it is true
`splits` | true or false | false where nodes are single pages: M3 does not apply; absent it is true
`policy` | a name of R11, or another | what evictions of leaves go by; absent it is `lru`
`events` | true, or absent | true for a cache of ours that keeps events, and claims `events`
""",
    "blocks": """
`blocks` | at least 1 | blocks that are handed out; a dummy block comes on top
`block_size` | at least 1 | tokens per block; no law of this kind looks at it
`policy` | `"lru"`, `"release"`, `"ref_zero"` | what becomes of a cached block that nobody refers to: C1
`caching` | true or false | whether blocks are found by hash; absent they are
`slots` | at least 1, or null | slots for states; null without any
`requests` | at least 1 | rows of live states; the last one is nobody's, so 1 means that no request has any
`layers` | at least 1 | of a state
`conv_dim`, `conv_width`, `conv_dtype` | | shape and dtype of a state's first part
`ssm_heads`, `ssm_dim`, `ssm_dtype` | | shape and dtype of its second part
""",
    "requests": """
`max_requests` | at least 1 | requests that live at a time
`num_blocks` | at least 2 | blocks, the dummy block counted
`max_blocks` | at least 1 | blocks of one request
`paused_limit` | at least 0 | blocks that all paused requests may keep together
`block_size`, `chunk_size` | at least 1 | tokens per block; tokens at whose multiples a state may be taken
`layers` | at least 0 | of the recurrent states; no layers, no states
`conv_width`, `ssm_width` | at least 1 where there are layers | numbers of a layer's two parts
`mamba_slots` | at least 0 | slots for cached states; with these and layers `mamba` is claimed
`policy`, `caching` | | as of `blocks`
`hash_digits` | 1 to 16, or null | hex digits that are kept of a page's hash, so that hashes collide
""",
    "index": """
`own_hashes` | true or false | whether each worker has hashes of its own for equal sequences
""",
}
"""Keys, values and meanings, by kind, as the specification prints them."""

_WAY_OUT = "give it less: small sizes find the same faults"


def check_config(config: Mapping[str, Any], kind: str | None = None) -> None:
    """Raise `ProgramError` with the limit if a configuration describes anything too large.

    With one of `pymllm.history.operations.KINDS`, sizes that come of several keys are looked at, too.
    """
    for key, value in config.items():
        if type(value) is not int:
            continue
        limit = SIZE_LIMITS.get(key)
        if limit is not None and value > limit:
            raise ProgramError(
                f"the configuration's {key} is {_told(value)}; at most it is {limit:,}: {_WAY_OUT}"
            )
        if not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
            raise ProgramError(f"the configuration's {_cut(key)} is {_told(value)}; an integer has 64 bits")
    sizes = Counter({key: max(0, value) for key, value in config.items() if type(value) is int})
    for what, limit, factors in _TOTALS.get(kind or "", ()):
        total = _total(sizes, factors)
        if total > limit:
            raise ProgramError(
                f"the configuration has {_told(total)} {what}; at most it has {limit:,}: {_WAY_OUT}"
            )


def read_number(config: Mapping[str, Any], key: str, least: int = 1) -> int:
    """Return a number in a configuration; raise `ProgramError` if it is missing, no integer, or too small."""
    value = config.get(key)
    if type(value) is int and value >= least:
        return value
    found = f"'s {key} is {value!r}; it" if key in config else f" has no {key}, which"
    raise ProgramError(f"the configuration{found} must be an integer from {least} on")


def _told(value: int) -> str:
    return f"{value:,}" if abs(value) < 2**128 else f"a number of {value.bit_length():,} bits"


def _cut(key: str) -> str:
    return key if len(key) <= 40 else f"{key[:37]}..."


_TOTALS: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "slots": (("slots", _SLOTS, "pages page_size"), ("window slots", _SLOTS, "swa_pages page_size")),
    "rows": (("entries of its table", ELEMENTS_LIMIT, "max_reqs max_context_len"),),
    "buffers": (
        ("numbers in its buffers", ELEMENTS_LIMIT, "layers size+page_size k_heads*k_dim+v_heads*v_dim"),
    ),
    "states": (
        (
            "numbers in its states",
            ELEMENTS_LIMIT,
            "layers max_reqs+track_slots v_heads*v_dim*k_dim+conv_dim*kernel",
        ),
    ),
    "blocks": (
        (
            "numbers in its states",
            ELEMENTS_LIMIT,
            "layers slots+requests ssm_heads*ssm_dim+conv_dim*conv_width",
        ),
        ("tokens in its blocks", _SLOTS, "blocks block_size"),
    ),
    "requests": (
        ("numbers in its states", ELEMENTS_LIMIT, "layers mamba_slots+max_requests conv_width+ssm_width"),
        ("tokens in its blocks", _SLOTS, "num_blocks block_size"),
        ("entries of its table", _SLOTS, "max_requests max_blocks"),
    ),
}
"""Products of keys and their limits, by kind; a missing key or another type counts as 0."""


def _total(sizes: Mapping[str, int], factors: str) -> int:
    return prod(sum(prod([sizes[key] for key in term]) for term in factor) for factor in _terms(factors))


@cache
def _terms(factors: str) -> list[list[list[str]]]:
    return [[term.split("*") for term in factor.split("+")] for factor in factors.split()]


def config_schema() -> dict[str, Any]:
    """Return the JSON schema of a configuration, with the limits of single keys."""
    types = [{"type": name} for name in ("integer", "string", "boolean", "null")]
    return {
        "type": "object",
        "properties": {key: {"maximum": limit} for key, limit in SIZE_LIMITS.items()},
        "patternProperties": {"": {"anyOf": types, "minimum": -INTEGER_LIMIT, "maximum": INTEGER_LIMIT - 1}},
    }
