"""Keys derived from small integers."""

from __future__ import annotations

import pytest

from pymllm.adapters.key_forms import CONTAINERS
from pymllm.conformance.prefix_caller import FORMS, SPACES, STYLES, TAIL, TRUNK, TURN, make_key, spaces_of
from pymllm.oracle.prefix_pages import Space, path_of_key

PLAIN = (Space(),)


def test_styles_tell_every_space_form_and_tail_apart() -> None:
    """K1: each namespace, token width and container is drawn, with each length of tail."""
    keys = [make_key(4, 1, (), style) for style in range(STYLES)]
    assert {key.form for key in keys} == set(FORMS) == set(CONTAINERS)
    assert {path_of_key(key).space for key in keys} == set(SPACES)
    assert {len(key.tokens) for key in keys} == {4, 5, 6, 7}
    assert len({(key.extra_key, key.form, key.tokens) for key in keys}) == 4 * len(FORMS) * len(set(SPACES))


def test_spaces_that_are_easily_mixed_up_are_there() -> None:
    """K1, H3: the string and the int 1, and no namespace at all."""
    assert {Space("1"), Space(1), Space(), Space(None, 2)} <= set(SPACES)


def test_turns_differ_in_one_token_of_their_page() -> None:
    """R9: the first turn in its first token, the second in its last; odd turns are none."""
    key = make_key(4, 6, (2, 4), 0)
    pages = [key.tokens[start : start + 4] for start in range(0, 24, 4)]
    trunk = (TRUNK,) * 4
    assert pages == [trunk, trunk, (TURN, *trunk[1:]), trunk, (*trunk[1:], TURN), trunk]
    assert make_key(4, 6, (1, 3), 0).tokens == (TRUNK,) * 24


def test_keys_share_everything_before_they_turn() -> None:
    """R2: a long key is a prefix of another until either turns."""
    assert make_key(2, 3, (4, 4), 0).tokens == make_key(2, 9, (4, 6), 0).tokens[:6]


def test_a_tail_is_no_page() -> None:
    """R1: what is left over is shorter than a page, and not on the trunk."""
    style = len(FORMS) * 3
    assert make_key(4, 1, (), style, PLAIN).tokens == (*[TRUNK] * 4, *[TAIL] * 3)
    assert make_key(1, 2, (), style, PLAIN).tokens == (TRUNK, TRUNK)


def test_bigrams_are_pairs_of_the_same_tokens() -> None:
    """K1: a key of width 2 looks like the plain one to whoever looks at first elements only."""
    key = make_key(2, 1, (0,), 0, (Space(None, 2),))
    assert key.tokens == ((TURN, 1), (TRUNK, 1))


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"extra_key", "bigrams"}, set(SPACES)),
        ({"extra_key"}, {Space(), Space("1"), Space(1), Space("lora")}),
        ({"bigrams"}, {Space(), Space(None, 2)}),
        (set(), {Space()}),
    ],
)
def test_nobody_is_asked_for_spaces_that_he_does_not_claim(
    capabilities: set[str], expected: set[Space]
) -> None:
    """K1: a cache without namespaces is judged without them."""
    assert set(spaces_of(capabilities)) == expected
