"""Numbers as people write them."""

from __future__ import annotations

import click
import pytest

from pymllm.cli.values import CONFIG, MILLISECONDS, TOKENS, Amount, Whole


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
        ("", "'' is no number of tokens in 1..2147483647; write 200000, 200k"),
        ("9" * 5000, "999...' is no number of tokens in 1..2147483647"),
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


@pytest.mark.parametrize("text", ["nan", "NaN", "-0.1", "10.1", "inf", "much", "1e5000", "9" * 5000])
def test_an_amount_is_a_number_within_its_bounds(text: str) -> None:
    """X1: no bound is above or below what is no number; what was typed is said, and no more than is read."""
    assert Amount(0, 10).convert("2.5", None, None) == 2.5
    with pytest.raises(click.BadParameter) as caught:
        Amount(0, 10).convert(text, None, None)
    assert text[:57] in caught.value.message
    assert len(caught.value.message) < 150


@pytest.mark.parametrize("text", ["", "1.0", "1e3", "1e5000", "x", "-1", "11", "9" * 5000, "٣"])
def test_a_whole_number_is_within_its_bounds(text: str) -> None:
    """X1: the value, cut, and both bounds; Python's words about digits are none of ours."""
    assert [Whole(0, 10).convert(good, None, None) for good in ("0", " 10 ", "+7", "1_0", 3)] == [
        0,
        10,
        7,
        10,
        3,
    ]
    with pytest.raises(click.BadParameter) as caught:
        Whole(0, 10).convert(text, None, None)
    shown = text if len(text) < 60 else f"{text[:57]}..."
    is_number = text.lstrip("-").isdecimal() and text.isascii()
    assert caught.value.message == (
        f"{shown} is not in the range 0<=x<=10." if is_number else f"{shown!r} is no whole number in 0..10."
    )


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
        ("[" * 50_000, r"'\[{56,57}\.\.\.: more than 64 lists and objects stand inside each other"),
        (f'{{"a": {"9" * 5000}}}', "does not fit into 128 bits"),
        ('{"page_size": [4]}', r"it.page_size is \[4\]; it must be an integer or a string or"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, words: str) -> None:
    """X1: the message names the value and what it must be."""
    with pytest.raises(click.BadParameter, match=words):
        CONFIG.convert(text, None, None)
