"""What a prefix is found by: tokens in a namespace, and how they are handed over."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.errors import ProgramError
from pymllm.oracle.slot_init import built_through_slots

__all__ = ["KEY_FORMS", "Key", "Token", "demand_namespace"]

Token = int | tuple[int, ...]
"""One element of a key: a token id, or a tuple of them (bigrams)."""

KEY_FORMS = ("list", "tuple", "array", "int32", "int64", "tensor32", "tensor64")
"""The containers that a key may be handed over in."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class Key:
    """A key of a prefix cache.

    Parameters
    ----------
    tokens : tuple of int or of tuple of int
        Token ids, or equally long tuples of them.
    extra_key : str, int or None
        Namespace.
    form : str
        The container that the adapter hands over, one of `KEY_FORMS` (``int32`` and ``int64`` are NumPy's);
        an adapter that has only one ignores it.
    """

    tokens: tuple[Token, ...]
    extra_key: str | int | None = None
    form: str = "list"


def demand_namespace(key: Key) -> None:
    """Raise `ProgramError` for a namespace with half of a surrogate pair: no hash can read it (K1)."""
    space = key.extra_key
    if isinstance(space, str) and not space.isascii():
        try:
            space.encode()
        except UnicodeEncodeError as error:
            raise ProgramError(
                f"the namespace {space!r} has half of a surrogate pair at {error.start}: "
                "UTF-8 cannot spell it; give text that it can"
            ) from None
