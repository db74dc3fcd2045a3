"""What the states of one request go through while its tokens are computed from nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["ColdRun"]


@dataclass(frozen=True, slots=True)
class ColdRun:
    """A sequence computed from nothing, over all buffers of states.

    Parameters
    ----------
    inputs : numpy.ndarray
        Shape ``(n, elements)``: what each token adds, as of `pymllm.workloads.recurrence.Recurrence.inputs`,
        the buffers side by side.
    bits : tuple of numpy.ndarray
        For each buffer ``(layers, n + 1, elements of a layer)``: the states after every number of tokens, as
        the buffer has them, seen as integers.
    """

    inputs: np.ndarray
    bits: tuple[np.ndarray, ...]
