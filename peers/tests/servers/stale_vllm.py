"""vLLM's server with a planted fault: a block that is handed out anew keeps its place in the table of hashes.

It runs in vLLM's own environment, whose engine's process imports this file, too.
"""

from __future__ import annotations

import runpy
from typing import Any

from vllm.v1.core.block_pool import BlockPool


def forget_hash_alone(self: BlockPool, block: Any) -> bool:  # a method's arguments
    """Make a block ready for its next owner, and leave the entry that leads to it."""
    if block.block_hash is None:
        return False
    block.reset_hash()
    return True


BlockPool._maybe_evict_cached_block = forget_hash_alone

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
