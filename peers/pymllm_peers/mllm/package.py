"""The checkout of mllm: its ``pymllm.mem_cache``, which has our package's name, beside ours.

No release of mllm is on the package index under a name that could be installed beside us, so a checkout is
the only way: ``PYMLLM_MLLM`` names one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymllm_peers.projects import MLLM


def load_mllm(module: str) -> Any:
    """Import a cache module of mllm, such as ``"radix_cache"``, in the version that was tried."""
    MLLM.require_version()
    return MLLM.load(f"pymllm.mem_cache.{module}")


def also_claimed(config: Mapping[str, int | str | bool | None]) -> frozenset[str]:
    """Return the additional capabilities in a configuration's ``also``, between blanks: what is not promised.

    A program with such a configuration shows what would break if mllm were held to it. Nobody searches so.
    """
    return frozenset(str(config.get("also", "")).split())
