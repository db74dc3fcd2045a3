"""Whole requests: what an engine may rely on."""

from __future__ import annotations

from pymllm.oracle.laws.law import law

__all__ = ["LAWS"]

LAWS = (
    law(
        "E1",
        """
        Every read finds what a cold run would have written.
        """,
        page="requests",
        ways="sop",
        kinds="prefix requests",
    ),
    law(
        "E2",
        """
        A live request's row names only what it owns or holds.
        """,
        page="requests",
        ways="sop",
        kinds="prefix requests",
        driven_kinds="prefix",
    ),
    law(
        "E3",
        """
        Every exit gives everything back.
        """,
        page="requests",
        ways="sop",
        kinds="prefix requests",
        driven_kinds="prefix",
    ),
    law(
        "E4",
        """
        Admission succeeds whenever free and evictable suffice.
        """,
        page="requests",
        ways="sop",
        kinds="prefix requests",
        driven_kinds="prefix",
    ),
    law(
        "E5",
        """
        Padding lands in slot 0 and row 0, and nowhere else.
        """,
        page="requests",
        ways="sop",
        kinds="rows buffers prefix requests",
        driven_kinds="prefix",
    ),
)
