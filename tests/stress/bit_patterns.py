"""Rows of bits that say whose they are, and how to compare all of them without waiting."""

from __future__ import annotations

import torch

from pymllm.mem_cache.pools.rows import bit_view

_ODD = -7_046_029_254_386_353_131


def any_bits(shape: tuple[int, ...], dtype: torch.dtype, source: torch.Generator) -> torch.Tensor:
    """Return elements of any bits, in any type's reading: infinities, NaN of each kind, -0."""
    size = torch.empty((), dtype=dtype).element_size()
    found = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8, generator=source)
    return found.view(dtype)


def stamp(owner: int, positions: torch.Tensor, part: int, width: int) -> torch.Tensor:
    """Rows of ``width`` int64 elements, each unlike that of another owner, position, part or column."""
    columns = torch.arange(width, device=positions.device)
    mixed = positions[:, None] * 2_654_435_761 + columns + owner * 1_000_003 + part * 104_729
    return (mixed * _ODD) ^ (mixed >> 7)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both are equal bit for bit, NaN included."""
    return torch.equal(bit_view(one), bit_view(other))
