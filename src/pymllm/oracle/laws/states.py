"""Recurrent states in a prefix cache."""

from __future__ import annotations

from pymllm.oracle.laws.law import law

__all__ = ["LAWS"]

LAWS = (
    law(
        "M1",
        """
        A state belongs to the end of a key of whole pages.
        """,
        page="recurrent-states",
        ways="sop",
        kinds="prefix",
        needs="mamba",
    ),
    law(
        "M2",
        """
        A prefix is usable if it ends at a state.
        """,
        page="recurrent-states",
        ways="sop",
        kinds="prefix",
        needs="mamba",
    ),
    law(
        "M3",
        """
        A split leaves the state with the lower half.
        """,
        page="recurrent-states",
        ways="op",
        kinds="prefix",
        needs="mamba inspect",
    ),
    law(
        "M4",
        """
        A state is locked by the holds at exactly its node.
        """,
        page="recurrent-states",
        ways="sop",
        kinds="prefix",
        needs="mamba",
    ),
    law(
        "M5",
        """
        An eviction of states takes enough, the least recent first.
        """,
        page="recurrent-states",
        ways="sop",
        kinds="prefix",
        needs="mamba",
    ),
    law(
        "M6",
        """
        States are counted one by one, KV in tokens.
        """,
        page="recurrent-states",
        ways="sop",
        kinds="prefix",
        needs="mamba",
    ),
    law(
        "M7",
        """
        A track slot has one owner, and is freed once.
        """,
        page="recurrent-states",
        ways="sop",
        kinds="prefix",
        needs="mamba",
    ),
    law(
        "M8",
        """
        The two lists order exactly their members by recency.
        """,
        page="recurrent-states",
        ways="sop",
        kinds="prefix",
        needs="mamba inspect lru_lists",
    ),
)
