"""Keys, and the hashes of their pages."""

from __future__ import annotations

from pymllm.oracle.laws.law import law

__all__ = ["LAWS"]

LAWS = (
    law(
        "K1",
        """
        Keys of other namespaces or widths never meet; containers do not matter.
        """,
        page="keys-and-hashes",
        ways="sop",
        kinds="hashes prefix",
    ),
    law(
        "H1",
        """
        Hash functions as documented.
        """,
        page="keys-and-hashes",
        ways="op",
        kinds="hashes",
    ),
    law(
        "H2",
        """
        Page hashes chain from the root, whatever was computed before.
        """,
        page="keys-and-hashes",
        ways="sop",
        kinds="prefix",
        needs="hashes",
    ),
    law(
        "H3",
        """
        Namespaces seed their hashes so that nothing collides.
        """,
        page="keys-and-hashes",
        ways="op",
        kinds="prefix",
        needs="hashes extra_key",
    ),
)
