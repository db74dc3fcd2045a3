"""The checkout of mini-sglang, of which caches and tables are loaded, without a GPU.

``PYMLLM_MINISGL`` names it. Its keys are compared by a function in C++ that a server compiles; here the same
is said in torch (`_fast_compare_key`).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from pymllm_peers.projects import MINISGL


def load_minisgl(module: str) -> Any:
    """Import a module of mini-sglang's, such as ``"core"``, in the version that was tried."""
    MINISGL.require_version()
    kernel = ModuleType(f"{MINISGL.alias}.kernel")
    kernel.fast_compare_key = _fast_compare_key  # type: ignore[attr-defined]
    sys.modules.setdefault(kernel.__name__, kernel)
    return MINISGL.load(f"minisgl.{module}")


def _fast_compare_key(one: torch.Tensor, other: torch.Tensor) -> int:
    """Return the length of the common beginning of two keys, after the checks of the original."""
    if not (one.dtype == other.dtype and one.ndim == other.ndim == 1):
        raise RuntimeError("both keys must be of one dimension and one dtype")
    length = min(len(one), len(other))
    differences = (one[:length] != other[:length]).nonzero()
    return int(differences[0]) if len(differences) else length
