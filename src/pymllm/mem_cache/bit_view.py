"""Tensors seen as integers, so that moving rows never interprets what is in them."""

from __future__ import annotations

import torch

_INTEGER_OF_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_view(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as integers of the same width.

    ``tensor``: any shape, strides and dtype. Returns the same memory, shape and strides, as int8, int16,
    int32 or int64. A dtype of another width (complex128) stays as it is. Cost: O(1). Source: torch 2.13 has
    no ``index_copy_`` for float8, which KV caches are stored in, nor for uint16. Laws: P5 (bit-exact, the
    payload of a NaN included), P3.
    """
    return tensor.view(_INTEGER_OF_WIDTH.get(tensor.dtype.itemsize, tensor.dtype))
