"""Prefix caches: what they match, own and evict."""

from __future__ import annotations

from pymllm.oracle.laws.law import law

__all__ = ["LAWS"]

LAWS = (
    law(
        "R1",
        """
        Keys and values are cut to whole pages.
        """,
        page="prefixes",
        ways="sop",
        kinds="prefix",
    ),
    law(
        "R2",
        """
        A match is the longest usable cached prefix, slots in order.
        """,
        page="prefixes",
        ways="op",
        kinds="prefix",
    ),
    law(
        "R3",
        """
        An insert says what was there, and the whole key is there afterwards.
        """,
        page="prefixes",
        ways="sop",
        kinds="prefix",
    ),
    law(
        "R4",
        """
        The cache owns what it adopted, and nothing else.
        """,
        page="prefixes",
        ways="op",
        kinds="prefix",
    ),
    law(
        "R5",
        """
        An eviction takes enough, and not one leaf more.
        """,
        page="prefixes",
        ways="sop",
        kinds="prefix",
    ),
    law(
        "R6",
        """
        Lock references balance, and a locked node stays.

        A **hold** is one `lock` that has not been released; it is taken *at* a node, and `unlock` releases
        it there. The lock count of a node is the number of holds at it or below it. It is that number after
        every call: a split gives both halves the count of the whole, an insert below a held node changes no
        count, and a release takes back exactly what its own hold added, whatever was split, inserted or
        evicted in between.

        A node whose count is not zero is **locked**. No eviction removes it, and its slots stay what they
        are. To release where there is no hold is misuse: it is refused (X1), and changes no count. To hold
        the root, or no node, does nothing.

        Why --- A hold is what stands between a running request and somebody else's eviction. With one count
        too few, the KV that the request reads is handed to another request: the model answers with fluent
        nonsense, and nothing crashes. With one too many the pages are never evicted again, and the server
        runs out of memory hours later.

        Choices ------- How counts are kept: on each node of the path, at the held node alone, or in a table
        of holds. Whether a hold is named by its node or by a token of its own.

        Caller ------ Each hold is released once, at the node where it was taken, and before that node's
        cache is reset. A request that holds a longer prefix than before takes the new hold first and then
        releases the old one.

        Engines
        -------
        - sglang counts on each node of the path (`inc_lock_ref`), and asserts instead of refusing.
        - vLLM has no tree: each block has a reference count (`BlockPool.touch`, `free_blocks`).
        """,
        page="prefixes",
        ways="sop",
        kinds="prefix",
    ),
    law(
        "R7",
        """
        Evictable and protected sizes are recounts.
        """,
        page="prefixes",
        ways="sop",
        kinds="prefix",
    ),
    law(
        "R8",
        """
        The least recent goes first.
        """,
        page="prefixes",
        ways="sop",
        kinds="prefix",
        needs="exact_lru",
    ),
    law(
        "R9",
        """
        The tree is well formed, and no slot stands in it twice.
        """,
        page="prefixes",
        ways="sop",
        kinds="prefix",
        is_of_content=True,
    ),
    law(
        "R10",
        """
        A split keeps the lower half's identity and every count.
        """,
        page="prefixes",
        ways="sop",
        kinds="prefix",
        needs="inspect",
    ),
)
