"""Imported first by each package that can do nothing without torch: there the one sentence says so."""

from __future__ import annotations

from pymllm.torch_extra import require_torch

__all__: list[str] = []

require_torch("this part of pymllm")
