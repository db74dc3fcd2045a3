"""The checkout of mllm: its ``pymllm.mem_cache``, which has our package's name, beside ours.

No release of mllm is on the package index under a name that could be installed beside us, so a checkout is
the only way: ``PYMLLM_MLLM`` names one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymllm.adapters.checkouts import Checkout

MLLM = Checkout(
    project="mllm",
    variable="PYMLLM_MLLM",
    package="pymllm",
    commit="b9c3070",
    digests={
        "pymllm/mem_cache/base_prefix_cache.py": (
            "7530d9678a9f19be78868720b7881041819671a50c6f925f10069127216d722a"
        ),
        "pymllm/mem_cache/chunk_cache.py": (
            "be713905f3182ddaeaacf74fb4c49e1ac013616e36a8a2ea1057e141cd9f18e6"
        ),
        "pymllm/mem_cache/mamba_radix_cache.py": (
            "be86f05ee6cd15dcd64ebb0ba1fa54df45e08c3b4754a54afcf3b58cc2bec92b"
        ),
        "pymllm/mem_cache/memory_pool.py": (
            "4080a6e25b98bbf9ec0536ac80107ecb8480dbf7ea8b2b10c7016cfff111d259"
        ),
        "pymllm/mem_cache/radix_cache.py": (
            "381b494b09b5b14b44c32e2652128a3a513efbba2a8124aaf06375b2cac633de"
        ),
    },
    stand_ins={"mllm_kernel": "kernels that store KV on a GPU"},
)
"""UbiquitousLearning/mllm, June 2026."""


def load_mllm(module: str) -> Any:
    """Import one of mllm's cache modules, such as ``"radix_cache"``, in the version that was tried."""
    MLLM.require_version()
    return MLLM.load(f"pymllm.mem_cache.{module}")


def also_claimed(config: Mapping[str, int | str | bool | None]) -> frozenset[str]:
    """Return the capabilities that a configuration's ``also`` adds, between blanks: what is not promised.

    A program with such a configuration shows what would break if mllm were held to it. Nobody searches so.
    """
    return frozenset(str(config.get("also", "")).split())
