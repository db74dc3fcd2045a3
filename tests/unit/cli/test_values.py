"""Numbers as people write them."""

from __future__ import annotations

import click
import pytest

from pymllm.cli.values import CONFIG, MILLISECONDS, TOKENS, Amount


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1", 1),
        ("200000", 200_000),
        ("1_000_000", 1_000_000),
        ("1,000,000", 1_000_000),
        ("200k", 200_000),
        (" 1M ", 1_000_000),
        ("1.5m", 1_500_000),
        ("1Mi", 1 << 20),
        ("64ki", 1 << 16),
        ("0.5Ki", 512),
        ("2G", 2_000_000_000),
        ("2147483647", 2**31 - 1),
    ],
)
def test_token_counts_are_read_as_written(text: str, tokens: int) -> None:
    """k, M and G are decimal, Ki, Mi and Gi binary; case does not matter."""
    assert TOKENS.convert(text, None, None) == tokens


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no number of tokens; write 200000, 200k"),
        ("-1", "'-1' is no number"),
        ("12q", "'12q' is no number"),
        ("1__0", "'1__0' is no number"),
        ("1e6", "'1e6' is no number"),
        ("٣", "is no number"),
        ("1.5", "'1.5' is 1.5 tokens, not a whole number"),
        ("0", "'0' is 0 tokens, not in 1..2147483647"),
        ("2Gi", "'2Gi' is 2147483648 tokens, not in 1..2147483647"),
    ],
)
def test_other_token_counts_are_refused(text: str, words: str) -> None:
    """X1: the message names the value and the bound."""
    with pytest.raises(click.BadParameter) as caught:
        TOKENS.convert(text, None, None)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("12.5", 12.5), ("0.01", 0.01), ("86400000", 86_400_000.0)]
)
def test_milliseconds_reach_from_a_hundredth_to_a_day(text: str, milliseconds: float) -> None:
    """Both bounds are inside."""
    assert MILLISECONDS.convert(text, None, None) == milliseconds


@pytest.mark.parametrize("text", ["0", "0.009", "-1", "nan", "inf", "soon", "86400001", "1e300", "1e308"])
def test_other_milliseconds_are_refused(text: str) -> None:
    """X1: a virtual clock that stands still never ends, and one that adds up to infinity is no JSON."""
    with pytest.raises(
        click.BadParameter, match=rf"'{text}' is no number of milliseconds in 0\.01\.\.86400000"
    ):
        MILLISECONDS.convert(text, None, None)


@pytest.mark.parametrize("text", ["nan", "NaN", "-0.1", "10.1", "inf", "much"])
def test_an_amount_is_a_number_within_its_bounds(text: str) -> None:
    """X1: no bound is above or below what is no number."""
    assert Amount(0, 10).convert("2.5", None, None) == 2.5
    with pytest.raises(click.BadParameter):
        Amount(0, 10).convert(text, None, None)


def test_a_configuration_is_a_json_object() -> None:
    """Integers, strings, booleans and null, by name; one that was read stays."""
    config = CONFIG.convert('{"page_size": 4, "store": "host", "sorted": true, "window": null}', None, None)
    assert config == {"page_size": 4, "store": "host", "sorted": True, "window": None}
    assert CONFIG.convert(config, None, None) is config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("page_size=4", "'page_size=4': not JSON: Expecting value at column 1"),
        ("4", "it is 4; it must be an object"),
        ('{"page_size": [4]}', r"it.page_size is \[4\]; it must be an integer or a string or"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, words: str) -> None:
    """X1: the message names the value and what it must be."""
    with pytest.raises(click.BadParameter, match=words):
        CONFIG.convert(text, None, None)
