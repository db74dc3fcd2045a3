"""What a configuration may describe."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from pymllm.adapters.registry import OWN, load_adapter
from pymllm.errors import ProgramError
from pymllm.history.config_limits import ELEMENTS_LIMIT, SIZE_LIMITS, check_config, config_schema
from pymllm.history.files import Header
from pymllm.oracle.judge import make_judge

STATES = {"layers": 1, "max_reqs": 1, "track_slots": 1, "v_heads": 1, "v_dim": 1, "k_dim": 1, "conv_dim": 1}


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        ("prefix", {"slots": 10**12}, "slots is 1,000,000,000,000; at most it is 1,048,576: give it less"),
        ("prefix", {"page_size": 10**9}, "page_size is 1,000,000,000; at most it is 65,536"),
        (None, {"window": 2**20 + 1}, "window is 1,048,577; at most it is 1,048,576"),
        (None, {"x" * 99: 2**63}, "configuration's xxxxx.*[.]{3} is 9,223,.*; an integer has 64 bits"),
        (None, {"x": -(10**300)}, "is a number of 997 bits; an integer has 64 bits"),
        ("slots", {"page_size": 64, "pages": 2**15}, "has 2,097,152 slots; at most it has 1,048,576"),
        (
            "rows",
            {"max_reqs": 2**10, "max_context_len": 65},
            "66,560 entries of its table; at most it has 65,536",
        ),
        (
            "states",
            {**STATES, "v_dim": 2**15, "kernel": 2**14},
            "numbers in its states; at most it has 65,536",
        ),
        ("blocks", {"blocks": 2**20, "block_size": 2}, "2,097,152 tokens in its blocks; at most it has"),
        ("requests", {"max_requests": 2**12, "max_blocks": 2**12}, "16,777,216 entries of its table"),
    ],
)
def test_what_is_too_large_is_refused(kind: str | None, config: dict[str, Any], words: str) -> None:
    """X1: with the key, the value, the limit and the way out."""
    with pytest.raises(ProgramError, match=words):
        check_config(config, kind)


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_our_own_configurations_are_far_below(entry: Any) -> None:
    """So is what a soak makes of them; and what is no integer, or missing, is not looked at."""
    made = load_adapter(entry)
    for config in made.CONFIGURATIONS:
        check_config({**config, "name": "x", "is": True, "none": None}, made.KIND)


LARGEST: dict[str, dict[str, Any]] = {
    "slots": {"page_size": 1, "pages": 2**20, "swa_pages": 2**20},
    "rows": {"max_reqs": 2**8, "max_context_len": 2**8},
    "buffers": {
        **{"layers": 1, "size": 2**14 - 1, "page_size": 1},
        **{"k_heads": 1, "k_dim": 2, "v_heads": 1, "v_dim": 2},
    },
    "states": {**STATES, "max_reqs": 2**14, "track_slots": 2**14, "kernel": 1},
    "prefix": {"page_size": 1, "window": 8, "pool": "swa", "slots": 2**20, "swa_slots": 2**20},
    "blocks": {
        **{"blocks": 2**20, "policy": "lru", "slots": 2**14, "layers": 1, "requests": 2**14},
        **{"ssm_heads": 1, "ssm_dim": 1, "conv_dim": 1, "conv_width": 1},
    },
    "requests": {
        **{"max_requests": 1, "num_blocks": 2**18, "max_blocks": 2**20, "block_size": 4, "chunk_size": 4},
        **{"paused_limit": 2**20, "layers": 1, "mamba_slots": 2**13, "conv_width": 2, "ssm_width": 2},
        **{"policy": "lru"},
    },
}


@pytest.mark.parametrize("kind", LARGEST)
def test_a_model_costs_what_is_used_and_not_what_is_declared(kind: str) -> None:
    """Of the largest configuration that is allowed, less than a megabyte."""
    claims = ("callbacks", "pool", *(("mamba",) if kind in ("blocks", "requests") else ("swa",)))
    header = Header("mine", kind, LARGEST[kind], claims)
    make_judge(Header("mine", "hashes"))  # what is imported is not the model's
    make_judge(header)
    tracemalloc.start()
    judge = make_judge(header)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
    assert judge.evidence.exercised == {}


def test_the_schema_has_every_limit() -> None:
    """A reader in another language knows it before it is refused."""
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft202012Validator(config_schema())
    assert check.is_valid({"slots": SIZE_LIMITS["slots"], "pool": "none", "window": None, "x": 2**63 - 1})
    for bad in ({"slots": SIZE_LIMITS["slots"] + 1}, {"x": 2**63}, {"x": 1.5}, {"x": []}, {"layers": 2000}):
        assert not check.is_valid(bad)
    assert ELEMENTS_LIMIT == 65_536
