"""How large what a configuration describes may be, so that nobody builds what fills the memory.

A configuration comes from a file or a program that anybody may have written, and everything is built from it:
the judge's model, and the implementation itself. Small ones find more: what is searched are collisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pymllm.errors import ProgramError

_SLOTS: Final = 2**20
_PAGE: Final = 2**16
_FEW: Final = 2**10

ELEMENTS_LIMIT: Final = 2**16
"""Most numbers of what is read as a whole: a table of rows, all buffers, all states."""

INTEGER_LIMIT: Final = 2**63
"""Below this is every integer, whatever it is for, and from its negative on."""

SIZE_LIMITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("pages", "swa_pages", "slots", "swa_slots", "size"), _SLOTS),
    **dict.fromkeys(("blocks", "num_blocks", "max_blocks", "paused_limit", "window"), _SLOTS),
    **dict.fromkeys(("page_size", "block_size", "chunk_size"), _PAGE),
    **dict.fromkeys(("track_slots", "mamba_slots", "max_reqs", "max_requests", "requests"), _PAGE),
    **dict.fromkeys(("max_context_len", "k_dim", "v_dim", "conv_dim", "conv_width", "kernel"), _PAGE),
    **dict.fromkeys(("ssm_dim", "ssm_width"), _PAGE),
    **dict.fromkeys(("layers", "k_heads", "v_heads", "ssm_heads"), _FEW),
}
"""The largest value of each key that a size is read from, whatever the kind."""

_WAY_OUT = "give it less: small sizes find the same faults"


def check_config(config: Mapping[str, Any], kind: str | None = None) -> None:
    """Refuse a configuration that describes something too large, with a `ProgramError` that names the limit.

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
    for what, keys, limit in _PRODUCTS.get(kind or "", ()):
        total = _total(config, keys)
        if total > limit:
            raise ProgramError(
                f"the configuration has {_told(total)} {what}; at most it has {limit:,}: {_WAY_OUT}"
            )


def _told(value: int) -> str:
    return f"{value:,}" if abs(value) < 2**128 else f"a number of {value.bit_length():,} bits"


def _cut(key: str) -> str:
    return key if len(key) <= 40 else f"{key[:37]}..."


Sum = tuple[tuple[str, ...], ...]
"""Products to be added up; of a key that is missing, or no number, nothing comes."""

_PRODUCTS: Mapping[str, tuple[tuple[str, tuple[Sum, ...], int], ...]] = {
    "slots": (
        ("slots", ((("pages",),), (("page_size",),)), _SLOTS),
        ("window slots", ((("swa_pages",),), (("page_size",),)), _SLOTS),
    ),
    "rows": (("entries of its table", ((("max_reqs",),), (("max_context_len",),)), ELEMENTS_LIMIT),),
    "buffers": (
        (
            "numbers in its buffers",
            ((("layers",),), (("size",), ("page_size",)), (("k_heads", "k_dim"), ("v_heads", "v_dim"))),
            ELEMENTS_LIMIT,
        ),
    ),
    "states": (
        (
            "numbers in its states",
            (
                (("layers",),),
                (("max_reqs",), ("track_slots",)),
                (("v_heads", "v_dim", "k_dim"), ("conv_dim", "kernel")),
            ),
            ELEMENTS_LIMIT,
        ),
    ),
    "blocks": (
        (
            "numbers in its states",
            (
                (("layers",),),
                (("slots",), ("requests",)),
                (("ssm_heads", "ssm_dim"), ("conv_dim", "conv_width")),
            ),
            ELEMENTS_LIMIT,
        ),
        ("tokens in its blocks", ((("blocks",),), (("block_size",),)), _SLOTS),
    ),
    "requests": (
        (
            "numbers in its states",
            ((("layers",),), (("mamba_slots",), ("max_requests",)), (("conv_width",), ("ssm_width",))),
            ELEMENTS_LIMIT,
        ),
        ("tokens in its blocks", ((("num_blocks",),), (("block_size",),)), _SLOTS),
        ("entries of its table", ((("max_requests",),), (("max_blocks",),)), _SLOTS),
    ),
}
"""By kind: what several keys come to together, the factors, each a sum of products, and the limit."""


def _total(config: Mapping[str, Any], factors: tuple[Sum, ...]) -> int:
    total = 1
    for factor in factors:
        total *= sum(_product(config, keys) for keys in factor)
    return total


def _product(config: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    product = 1
    for key in keys:
        value = config.get(key)
        product *= max(0, value) if type(value) is int else 0
    return product


def config_schema() -> dict[str, Any]:
    """Describe a configuration as a JSON schema: the limits that a key has by itself."""
    types = [{"type": name} for name in ("integer", "string", "boolean", "null")]
    return {
        "type": "object",
        "properties": {key: {"maximum": limit} for key, limit in SIZE_LIMITS.items()},
        "patternProperties": {"": {"anyOf": types, "minimum": -INTEGER_LIMIT, "maximum": INTEGER_LIMIT - 1}},
    }
