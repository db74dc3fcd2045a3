"""Sliding windows: tombstones, and what a window needs alive."""

from __future__ import annotations

from pymllm.oracle.laws.law import law

__all__ = ["LAWS"]

LAWS = (
    law(
        "S1",
        """
        A prefix is usable if its last window is alive.
        """,
        page="windows",
        ways="sop",
        kinds="prefix",
        needs="swa",
    ),
    law(
        "S2",
        """
        A tombstone frees its SWA half and keeps the full one.
        """,
        page="windows",
        ways="sop",
        kinds="prefix",
        needs="swa",
    ),
    law(
        "S3",
        """
        A window eviction takes enough, the least recent first.
        """,
        page="windows",
        ways="sop",
        kinds="prefix",
        needs="swa",
    ),
    law(
        "S4",
        """
        Every leaf is alive.
        """,
        page="windows",
        ways="sop",
        kinds="prefix",
        needs="swa",
    ),
    law(
        "S5",
        """
        A hold locks exactly its window, and its token releases exactly that.
        """,
        page="windows",
        ways="sop",
        kinds="prefix",
        needs="swa",
    ),
    law(
        "S6",
        """
        Window lock references count the holds that cover a page.
        """,
        page="windows",
        ways="sop",
        kinds="prefix",
        needs="swa",
    ),
    law(
        "S7",
        """
        A tombstone is revived by the rules, or the insert is refused whole.
        """,
        page="windows",
        ways="op",
        kinds="prefix",
        needs="swa",
    ),
)
