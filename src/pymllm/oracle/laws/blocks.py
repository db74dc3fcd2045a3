"""Blocks found by hash, and the states that are kept with them."""

from __future__ import annotations

from pymllm.oracle.laws.law import law

__all__ = ["LAWS"]

LAWS = (
    law(
        "C1",
        """
        Free, referenced and cached blocks partition the pool; children go before their parents.
        """,
        page="blocks",
        ways="sop",
        kinds="blocks requests",
    ),
    law(
        "C2",
        """
        Slots are free, mapped to one block, or in a caller's hands.
        """,
        page="blocks",
        ways="sop",
        kinds="blocks requests",
        needs="mamba",
    ),
    law(
        "C3",
        """
        A hash has the block that came first with it, below its very parent, and no other.
        """,
        page="blocks",
        ways="sop",
        kinds="blocks requests",
    ),
    law(
        "C4",
        """
        The hash of a cached state names a block with a slot, and goes with that block only.
        """,
        page="blocks",
        ways="sop",
        kinds="blocks",
        needs="mamba",
    ),
    law(
        "C5",
        """
        A batch gets one slot per block, evicts none of its own, and is met whole or not at all.
        """,
        page="blocks",
        ways="op",
        kinds="blocks",
        needs="mamba",
    ),
    law(
        "C6",
        """
        Only unreferenced blocks lose their slots to others, oldest first; free blocks have none.
        """,
        page="blocks",
        ways="sop",
        kinds="blocks requests",
        needs="mamba",
    ),
    law(
        "C7",
        """
        States are copied bit for bit, and nowhere else.
        """,
        page="blocks",
        ways="op",
        kinds="blocks requests",
        needs="mamba",
    ),
    law(
        "C8",
        """
        States are kept at block ends inside a chunk, and at prompt ends.
        """,
        page="blocks",
        ways="sop",
        kinds="requests",
        needs="mamba",
    ),
    law(
        "C9",
        """
        A reset restores the first state bit for bit.
        """,
        page="blocks",
        ways="op",
        kinds="blocks requests",
    ),
)
