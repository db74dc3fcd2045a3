"""The checkout of Megatron-LM, of which two modules and their enumeration are loaded, without a GPU.

The released ``megatron-core`` 0.16.1 has another allocator, without hashes and counts; the one that is
adapted is newer than every release. ``PYMLLM_MEGATRON`` names a checkout that has it.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from pymllm_peers.projects import MEGATRON


def load_megatron(module: str) -> Any:
    """Import one of the modules of Megatron's inference contexts, in the version that was tried."""
    MEGATRON.require_version()
    return MEGATRON.load(f"megatron.core.inference.contexts.{module}")


def load_slots() -> Any:
    """Import the module of slots, which asks torch for the GPU in use and is given the host."""
    module = load_megatron("mamba_slot_allocator")
    if not isinstance(module.torch, _TorchOnHost):
        module.torch = _TorchOnHost("torch")
    return module


class _TorchOnHost(ModuleType):
    """torch, as one module sees it, with the host's memory as its current GPU."""

    cuda = SimpleNamespace(current_device=lambda: torch.device("cpu"))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
