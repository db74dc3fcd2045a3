"""The key of a prefix, as programs spell it."""

from __future__ import annotations

import pytest

from pymllm.history.operations import Key
from pymllm.history.records import decode, encode


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        (Key(()), {"tokens": []}),
        (Key((1, 2), "a", "tensor32"), {"tokens": [1, 2], "extra_key": "a", "form": "tensor32"}),
        (Key(((1, 2), (3, 4)), 0), {"tokens": [[1, 2], [3, 4]], "extra_key": 0}),
    ],
)
def test_a_key_is_read_as_it_was_written(key: Key, plain: dict[str, object]) -> None:
    """K1: namespace 0 is not the lack of one, and bigrams stay tuples."""
    assert encode(key) == plain
    assert decode(Key, plain) == key


def test_namespaces_tell_keys_apart() -> None:
    """K1: equal tokens in two namespaces are two keys, and a number is no digit."""
    assert len({Key((1,)), Key((1,), 0), Key((1,), "0"), Key((1,), "")}) == 4


@pytest.mark.parametrize("token", ["1", 1.5, None, [1, "2"]])
def test_what_is_no_token_is_refused(token: object) -> None:
    """X1: a token is an integer or a tuple of them."""
    with pytest.raises(ValueError, match="tokens"):
        decode(Key, {"tokens": [token]})
