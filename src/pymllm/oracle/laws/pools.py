"""Rows of requests, buffers of keys and values, buffers of states: the laws of pools."""

from __future__ import annotations

from pymllm.oracle.laws.law import law

__all__ = ["LAWS"]

LAWS = (
    law(
        "P1",
        """
        Rows 1 to max_reqs are handed out, row 0 is padding.
        """,
        page="rows-states-buffers",
        ways="sop",
        kinds="rows",
    ),
    law(
        "P2",
        """
        A freed row is zero, and is freed once.
        """,
        page="rows-states-buffers",
        ways="sop",
        kinds="rows",
        needs="zeroed_rows",
    ),
    law(
        "P3",
        """
        A write changes the named rows, exactly.
        """,
        page="rows-states-buffers",
        ways="sop",
        kinds="rows buffers",
    ),
    law(
        "P4",
        """
        States have the documented layout and dtype.
        """,
        page="rows-states-buffers",
        ways="sop",
        kinds="states",
    ),
    law(
        "P5",
        """
        Track slots have one owner; copies are bit-exact, resets exact.
        """,
        page="rows-states-buffers",
        ways="sop",
        kinds="states",
    ),
)
