"""What is wrong with slots that a caller names: which documented errors may answer it, and of which law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pymllm.oracle.slot_model import PageModel, WindowModel

__all__ = ["Misuse", "misuse_of_halves", "misuse_of_move", "misuse_of_slots"]


@dataclass(frozen=True, slots=True)
class Misuse:
    """One thing that is wrong.

    Parameters
    ----------
    situation : str
        What it is, and that it is refused.
    law : str
        Id of the law that forbids it.
    error : str
        Class name of the documented error.
    """

    situation: str
    law: str = "A5"
    error: str = "OwnershipError"


_PADDING = Misuse("padding is refused")
_PAST_THE_END = Misuse("an index past the end is refused")
_NEGATIVE = Misuse("a negative index is refused")
_FREE = Misuse("a double free is refused")
_PENDING = Misuse("a double free inside a group is refused")
_TWICE = Misuse("a slot named twice is refused")
_HALF_GONE = Misuse("a half that is gone is refused", "A7")
_NO_SOURCE = Misuse("a move from a slot without a half is refused", "A7")
_FREE_SOURCE = Misuse("a move from a free slot is refused", "A7")
_TARGET_TAKEN = Misuse("a move to a slot with a half is refused", "A7")
_FREE_TARGET = Misuse("a move to a free slot is refused", "A7")
_UNEQUAL = Misuse("a move of unequal lengths is refused", "A7", "ValueError")
_ACROSS = Misuse("a move across pages is refused", "A7", "ValueError")


def misuse_of_slots(model: PageModel, page_size: int, slots: Sequence[int]) -> list[Misuse]:
    """Return what is wrong with giving these slots back (A5); nothing where all is well.

    Parameters
    ----------
    model : PageModel
        The pool.
    page_size : int
        Slots per page.
    slots : sequence of int
        As the caller names them: with pages, any slots of a page, any number of times.
    """
    found = [wrong for slot in slots if (wrong := _wrong_with(model, page_size, slot)) is not None]
    if page_size == 1 and len(set(slots)) != len(slots):
        found.append(_TWICE)
    return found


def _wrong_with(model: PageModel, page_size: int, slot: int) -> Misuse | None:
    page = slot // page_size
    if page in model.held:
        return None
    if slot < 0:
        return _NEGATIVE
    if page == 0:
        return _PADDING
    if not model.has(page):
        return _PAST_THE_END
    return _PENDING if page in model.pending else _FREE


def misuse_of_halves(window: WindowModel, page_size: int, slots: Sequence[int]) -> list[Misuse]:
    """Return what is wrong with giving the SWA halves of these slots back (A5, A7)."""
    gone = any(page in window.full.held and page not in window.half for page in _pages(slots, page_size))
    return misuse_of_slots(window.full, page_size, slots) + [_HALF_GONE] * gone


def misuse_of_move(
    window: WindowModel, page_size: int, source: Sequence[int], target: Sequence[int]
) -> list[Misuse]:
    """Return what is wrong with giving the halves of ``source`` to ``target``, pair by pair (A7)."""
    held, half = window.full.held, window.half
    from_pages, to_pages = set(_pages(source, page_size)), set(_pages(target, page_size))
    is_matched = len(source) == len(target)
    is_repeated = len({*source}) < len(source) or len({*target}) < len(target)
    checks = (
        (_FREE_SOURCE, not from_pages <= held),
        (_FREE_TARGET, not to_pages <= held),
        (_NO_SOURCE, not from_pages & held <= half.keys()),
        (_TARGET_TAKEN, to_pages & half.keys()),
        (_UNEQUAL, not is_matched),
        (_ACROSS, is_matched and not _pair_up(page_size, source, target)),
        (_TWICE, page_size == 1 and is_repeated),
    )
    return [misuse for misuse, is_so in checks if is_so]


def _pages(slots: Sequence[int], page_size: int) -> list[int]:
    return [slot // page_size for slot in slots]


def _pair_up(page_size: int, source: Sequence[int], target: Sequence[int]) -> bool:
    """Tell whether pages go to pages one to one, each slot to the same place of its page."""
    pairs = set(zip(_pages(source, page_size), _pages(target, page_size), strict=True))
    ends = len({page for page, _ in pairs}), len({page for _, page in pairs})
    same_places = all(a % page_size == b % page_size for a, b in zip(source, target, strict=True))
    return ends == (len(pairs), len(pairs)) and same_places
