"""What holds for every class."""

from __future__ import annotations

from pymllm.oracle.laws.law import law

__all__ = ["LAWS"]

LAWS = (
    law(
        "X1",
        """
        Bad input is refused before anything changes.
        """,
        page="every-class",
        ways="op",
        kinds="all",
        needs="refusals",
    ),
    law(
        "X2",
        """
        What a pool did not take is still in the tree; calls come in order.
        """,
        page="every-class",
        ways="op",
        kinds="prefix blocks requests",
        needs="faults",
    ),
    law(
        "X3",
        """
        The same program gives the same outcomes.
        """,
        page="every-class",
        ways="sop",
        kinds="all",
    ),
    law(
        "X4",
        """
        An allocation that cannot be met changes nothing.
        """,
        page="every-class",
        ways="op",
        kinds="slots rows states prefix blocks requests",
        needs="pool",
    ),
    law(
        "X5",
        """
        Nothing of the caller's is kept, nothing of the tree's is handed out.
        """,
        page="every-class",
        ways="sop",
        kinds="prefix",
        needs="inspect",
    ),
    law(
        "X6",
        """
        Callbacks run on written books and may not re-enter.
        """,
        page="every-class",
        ways="op",
        kinds="prefix blocks",
        needs="callbacks faults",
    ),
    law(
        "X7",
        """
        Reset and clear make it as good as new.
        """,
        page="every-class",
        ways="op",
        kinds="slots rows states prefix blocks requests",
    ),
)
