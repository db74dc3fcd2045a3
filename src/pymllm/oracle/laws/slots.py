"""Slots and who has them: the laws of allocators."""

from __future__ import annotations

from pymllm.oracle.laws.law import law

__all__ = ["LAWS"]

LAWS = (
    law(
        "A1",
        """
        Slot 0 and page 0 are never handed out.
        """,
        page="slots",
        ways="sop",
        kinds="slots prefix",
        needs="pool",
    ),
    law(
        "A2",
        """
        Free, pending and handed-out pages partition the pool.
        """,
        page="slots",
        ways="sop",
        kinds="slots prefix",
        needs="pool",
    ),
    law(
        "A3",
        """
        An allocation gives distinct slots in whole pages, in order.
        """,
        page="slots",
        ways="op",
        kinds="slots prefix",
        needs="pool",
    ),
    law(
        "A4",
        """
        Freed slots wait until a merge; sorted pools give the lowest first.
        """,
        page="slots",
        ways="sop",
        kinds="slots",
        needs="pool merges",
    ),
    law(
        "A5",
        """
        A page is freed once, and only by whom it was handed to.
        """,
        page="slots",
        ways="sop",
        kinds="slots",
        needs="pool refusals",
    ),
    law(
        "A6",
        """
        Groups do not nest, and end once.
        """,
        page="slots",
        ways="sop",
        kinds="slots",
        needs="pool groups",
    ),
    law(
        "A7",
        """
        Every slot has its own SWA half, until that is freed or moved.
        """,
        page="slots",
        ways="sop",
        kinds="slots prefix",
        needs="pool swa",
    ),
)
