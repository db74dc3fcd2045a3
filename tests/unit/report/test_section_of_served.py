"""The section of replays against servers: the rates stand beside each other for the same requests."""

from __future__ import annotations

from typing import Any

from pymllm.report.blocks import Text
from pymllm.report.sections.served import make_served_section
from tests.unit.report import samples

UNPREDICTED = {
    "kind": "not predicted",
    "requests": 2,
    "prompt_tokens": 1000,
    "cached_tokens": 900,
    "predicted_tokens": 0,
}


def rates_of(document: dict[str, Any]) -> str:
    """Return the line of hit rates, as a terminal has it."""
    texts = [it.text for it in make_served_section([samples.run(document)]) if isinstance(it, Text)]
    (rates,) = (text for text in texts if text.startswith("hit rate"))
    return rates


def test_rates_are_of_the_requests_that_are_compared() -> None:
    """56 of 58 answered requests are predicted: 8,000 tokens, of which the server hit 4,100."""
    equal = {**samples.served()["kinds"][0], "requests": 56, "prompt_tokens": 8000, "cached_tokens": 4100}
    equal["predicted_tokens"] = 4000
    document = samples.served(kinds=[equal, UNPREDICTED], curve_tokens=4400)
    assert rates_of(document) == (
        "hit rate 55.6 %; of 56 compared requests 51.2 %; predicted for 4,096 slots in pages of 16: 50.0 %, "
        "and 55.0 % as by pymllm curve, which computes no token again"
    )


def test_where_all_are_compared_there_is_one_rate() -> None:
    """58 of 58."""
    assert rates_of(samples.served()).startswith(
        "hit rate 55.6 %; predicted for 4,096 slots in pages of 16: 56.7 %, and 57.8 %"
    )
