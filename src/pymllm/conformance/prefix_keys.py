"""Keys for the prefix machine: drawn small, derived big.

A key is a few small integers: how many pages, where it turns off the common trunk (up to twice), and
a style that packs tail length, space and container. Two keys that turn off at different places share
everything before, so that splits, branches and re-insertions are common.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pymllm.history.operations import Key, Token
from pymllm.oracle.prefix_pages import Space

__all__ = ["FORMS", "SPACES", "STYLES", "make_key", "spaces_of"]

SPACES = (
    *[Space()] * 12,
    Space("1"),
    Space(1),
    Space("lora"),
    Space(None, 2),
)
"""Where keys live; the plain one is drawn most. The string and the int 1 must not be mixed up (H3)."""

FORMS = ("list", "tuple", "array", "int32", "int64", "tensor32", "tensor64")
"""Containers of keys (K1)."""

TRUNK, TURN, TAIL = 7, 7 + 2**24, 5
"""Tokens on the trunk and off it, equal to whoever drops their upper bits, and after the last whole page."""

STYLES = len(SPACES) * len(FORMS) * 4
"""So many styles tell every space, container and tail length of a page of four tokens apart."""


def spaces_of(capabilities: Collection[str]) -> tuple[Space, ...]:
    """Return the spaces in which an adapter with these capabilities can be asked."""
    return tuple(
        space
        for space in SPACES
        if ("extra_key" in capabilities or space.extra_key is None)
        and ("bigrams" in capabilities or space.width == 1)
    )


def make_key(
    page_size: int, pages: int, turns: Sequence[int], style: int, spaces: Sequence[Space] = SPACES
) -> Key:
    """Derive a key of ``pages`` whole pages and a tail.

    Odd turns are none, so that half of all keys stay on the trunk. A page off the trunk differs in its first
    token or, at the other turn, in its last token only: siblings must be told apart by whole pages (R9).
    """
    rest, form = divmod(style, len(FORMS))
    tail, space = divmod(rest, len(spaces))
    tokens: list[int] = []
    for page in range(pages):
        fill = [TRUNK] * page_size
        if page in turns and page % 2 == 0:
            fill[-1 if turns.index(page) else 0] = TURN
        tokens += fill
    tokens += [TAIL] * (tail % page_size)
    return Key(_widened(tokens, spaces[space].width), spaces[space].extra_key, FORMS[form])


def _widened(tokens: Sequence[int], width: int) -> tuple[Token, ...]:
    if width == 1:
        return tuple(tokens)
    return tuple((token, *[1] * (width - 1)) for token in tokens)
