"""A tiny language model with seeded random weights: attention, windows, gated delta rules.

It has no memory of its own. A layer is given the keys and values, or the state, of the tokens before, and
returns those of the new ones: where they lie is the business of `pymllm.serving.runner`.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch

VOCABULARY = 128
"""The number of token ids, which are ASCII codes: each token is one character."""

HEADS = 4
HEAD_DIM = 16
CONV_KERNEL = 4
_HIDDEN = HEADS * HEAD_DIM
_CONV_DIM = 3 * _HIDDEN  # queries, keys and values of a recurrent layer
_ROPE_BASE = 10_000.0
# Large on purpose: one wrong row of the cache moves log-probabilities by tenths, not by rounding errors.
_GAIN = 1.7


class Layer(enum.Enum):
    """The kinds of layers, by their memory of earlier tokens."""

    FULL = "full attention"
    """A layer with keys and values of all tokens."""
    WINDOW = "sliding window"
    """A layer with keys and values of a window of tokens."""
    RECURRENT = "gated delta rule"
    """A layer with one state for all tokens so far."""


ARCHITECTURES: dict[str, tuple[Layer, ...]] = {
    "dense": (Layer.FULL,) * 4,
    "window": (Layer.WINDOW, Layer.FULL) * 2,
    "hybrid": (Layer.RECURRENT, Layer.FULL) * 2,
}
"""The layers of each architecture, first to last."""


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """The state of one recurrent layer, as in a row of `GDNPool`.

    ``matrix`` is ``(HEADS, HEAD_DIM, HEAD_DIM)``, values by keys; ``columns`` are the last
    ``CONV_KERNEL - 1`` inputs of the convolution, ``(conv_dim, CONV_KERNEL - 1)``.
    """

    matrix: torch.Tensor
    columns: torch.Tensor


class _Block:
    """The weights of one layer, including its feed-forward part."""

    def __init__(self, kind: Layer, draw: _Draw) -> None:
        self.kind = kind
        self.mixed = draw(_HIDDEN, _CONV_DIM)
        self.out = draw(_HIDDEN, _HIDDEN)
        self.up, self.gate = draw(_HIDDEN, 2 * _HIDDEN), draw(_HIDDEN, 2 * _HIDDEN)
        self.down = draw(2 * _HIDDEN, _HIDDEN)
        if kind is Layer.RECURRENT:
            self.kernel = draw(CONV_KERNEL, _CONV_DIM)
            self.decay, self.beta = draw(_HIDDEN, HEADS), draw(_HIDDEN, HEADS)


class _Draw:
    """A generator of normal random matrices, scaled by the number of inputs."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device

    def __call__(self, inputs: int, outputs: int) -> torch.Tensor:
        drawn = torch.randn(inputs, outputs, generator=self._generator, dtype=torch.float64)
        return (drawn * _GAIN / math.sqrt(inputs)).to(self._device)


class TinyModel:
    """The weights and arithmetic of a model in float64 on ``device``, equal for equal seeds.

    A sequence is computed token after token or in pieces of any length: the results differ by rounding
    alone, below 1e-9 in a log-probability.
    """

    def __init__(
        self, layers: tuple[Layer, ...], window: int | None, seed: int, device: torch.device
    ) -> None:
        draw = _Draw(seed, device)
        self.layers = layers
        self.window = window
        self.device = device
        self._embedding = draw(1, VOCABULARY * _HIDDEN).view(VOCABULARY, _HIDDEN)
        self._blocks = [_Block(kind, draw) for kind in layers]
        self._head = draw(_HIDDEN, VOCABULARY)
        halves = torch.arange(HEAD_DIM // 2, dtype=torch.float64, device=device)
        self._frequencies = _ROPE_BASE ** (-2 * halves / HEAD_DIM)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the vectors of some tokens, ``(n, hidden)``; tokens are ``(n,)``, int64."""
        return self._embedding[tokens]

    def logits(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the logits after one token, ``(VOCABULARY,)``."""
        return _normed(vector) @ self._head

    def project(self, layer: int, hidden: torch.Tensor, start: int) -> tuple[torch.Tensor, ...]:
        """Return queries, keys and values of tokens ``start ..``, each ``(n, HEADS, HEAD_DIM)``."""
        mixed = _normed(hidden) @ self._blocks[layer].mixed
        queries, keys, values = mixed.view(len(hidden), 3, HEADS, HEAD_DIM).unbind(1)
        return self._rotated(queries, start), self._rotated(keys, start), values

    def attend(
        self,
        layer: int,
        hidden: torch.Tensor,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """Return the vectors after an attention layer.

        ``keys`` and ``values`` are those of the last ``len(keys)`` tokens, the new ones included. A token of
        a layer with a window sees itself and ``window`` tokens before it.
        """
        count, known = len(queries), len(keys)
        at = torch.arange(known - count, known, device=self.device)[:, None]
        seen = torch.arange(known, device=self.device)[None, :]
        hidden_from = seen > at
        if self.layers[layer] is Layer.WINDOW and self.window is not None:
            hidden_from = hidden_from | (seen < at - self.window)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(HEAD_DIM)
        weights = scores.masked_fill(hidden_from, -math.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, values).reshape(count, _HIDDEN)
        return self._finish(layer, hidden, mixed)

    def recur(
        self, layer: int, hidden: torch.Tensor, state: RecurrentState
    ) -> tuple[torch.Tensor, RecurrentState]:
        """Return the vectors after a recurrent layer, and the state that includes the tokens."""
        block, normed = self._blocks[layer], _normed(hidden)
        inputs = torch.cat([state.columns.T, normed @ block.mixed])
        count = len(hidden)
        convolved = sum(inputs[k : k + count] * block.kernel[k] for k in range(CONV_KERNEL))
        mixed = torch.nn.functional.silu(convolved).view(count, 3, HEADS, HEAD_DIM)  # type: ignore[arg-type]
        queries, keys, values = mixed.unbind(1)
        queries, keys = _unit(queries), _unit(keys)
        decay, beta = (normed @ block.decay + 2).sigmoid(), (normed @ block.beta).sigmoid()
        matrix, out = state.matrix, []
        for at in range(count):
            matrix = matrix * decay[at, :, None, None]
            missing = values[at] - torch.einsum("hvk,hk->hv", matrix, keys[at])
            matrix = matrix + torch.einsum("h,hv,hk->hvk", beta[at], missing, keys[at])
            out.append(torch.einsum("hvk,hk->hv", matrix, queries[at]))
        after = RecurrentState(matrix, inputs[count:].T)
        return self._finish(layer, hidden, torch.stack(out).reshape(count, _HIDDEN)), after

    def _finish(self, layer: int, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Add the output of a layer's mixing part and of its feed-forward part."""
        block = self._blocks[layer]
        hidden = hidden + mixed @ block.out
        normed = _normed(hidden)
        return hidden + (torch.nn.functional.silu(normed @ block.gate) * (normed @ block.up)) @ block.down

    def _rotated(self, heads: torch.Tensor, start: int) -> torch.Tensor:
        """Return heads rotated by their positions (RoPE)."""
        positions = torch.arange(start, start + len(heads), dtype=torch.float64, device=self.device)
        angles = (positions[:, None] * self._frequencies)[:, None, :]
        first, second = heads.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def _normed(hidden: torch.Tensor) -> torch.Tensor:
    return hidden * (hidden.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def _unit(heads: torch.Tensor) -> torch.Tensor:
    return heads * (heads.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
