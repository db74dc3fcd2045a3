"""The size in bytes of a token's keys and values in a model.

Counted are layers that keep something of every token. A layer with a sliding window or a recurrent state
keeps as much of a long sequence as of a short one, and nothing of it is in these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pymllm.errors import UsageError
from pymllm.replay.plan import pick_name

GIB: Final = 1 << 30

DTYPES = MappingProxyType({"bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4, "fp32": 32})
"""The bits of a number, by the name of its type."""

_BITS_PER_BYTE: Final = 8


@dataclass(frozen=True, slots=True)
class KvShape:
    """The numbers that determine the size of a token's keys and values.

    - ``layers``: All layers of the model.
    - ``kv_heads``, ``head_dim``: Of a layer with keys and values of their own.
    - ``latent_dim``: Numbers of a token in a layer that keeps one compressed vector for both (MLA) instead.
    - ``every``: One layer of so many keeps something of every token; 1 for all.
    - ``source``: Where the numbers are from.
    """

    name: str
    layers: int
    kv_heads: int | None = None
    head_dim: int | None = None
    latent_dim: int | None = None
    every: int = 1
    source: str = ""

    @property
    def counted_layers(self) -> int:
        """The number of layers that keep keys and values of every token."""
        return self.layers // self.every

    def bytes_per_token(self, dtype: str, gpus: int = 1) -> float:
        """Return the bytes of a token, summed over all GPUs of a tensor-parallel group.

        A head lies on one GPU at least, and a compressed vector on each: more GPUs than heads keep copies.
        Half a byte is one for numbers of four bits.
        """
        if self.latent_dim is not None:
            numbers = self.latent_dim * gpus
        else:
            assert self.kv_heads is not None
            assert self.head_dim is not None
            numbers = 2 * max(self.kv_heads, gpus) * self.head_dim
        return self.counted_layers * numbers * DTYPES[dtype] / _BITS_PER_BYTE


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The GPU memory to choose from: equal bytes on each of 1, 2, 4 and so on up to ``gpus`` GPUs.

    - ``size``: Bytes of one GPU.
    - ``share``: The part of it that a server takes, by vLLM's default 0.9.
    - ``weights``: Bytes of the model's weights, once for a whole group.
    """

    size: int
    weights: int
    gpus: int = 8
    share: float = 0.9

    def capacities(self, shape: KvShape, dtype: str) -> dict[int, int]:
        """Return the capacity in tokens of each number of GPUs.

        Numbers whose memory the weights fill are left out; `UsageError` where none is left.
        """
        found: dict[int, int] = {}
        for gpus in (1 << power for power in range(self.gpus.bit_length())):
            tokens = int((self.size * gpus * self.share - self.weights) / shape.bytes_per_token(dtype, gpus))
            if tokens >= 1:
                found.setdefault(tokens, gpus)
        if not found:
            raise UsageError(
                f"weights of {self.weights / GIB:g} GiB fill {self.share:g} of {self.gpus} x "
                f"{self.size / GIB:g} GiB; give more gpus=N, or fewer weights"
            )
        return found


def _of(name: str, layers: int, kv_heads: int, head_dim: int, source: str, every: int = 1) -> KvShape:
    return KvShape(name, layers, kv_heads, head_dim, None, every, source)


_HUB = "https://huggingface.co"

MODELS = MappingProxyType(
    {
        it.name: it
        for it in (
            _of("llama-3.1-8b", 32, 8, 128, f"{_HUB}/meta-llama/Llama-3.1-8B/blob/main/config.json"),
            _of("llama-3.1-70b", 80, 8, 128, f"{_HUB}/meta-llama/Llama-3.1-70B/blob/main/config.json"),
            _of("qwen3-8b", 36, 8, 128, f"{_HUB}/Qwen/Qwen3-8B/blob/main/config.json"),
            _of("qwen3-32b", 64, 8, 128, f"{_HUB}/Qwen/Qwen3-32B/blob/main/config.json"),
            _of("qwen3-235b-a22b", 94, 4, 128, f"{_HUB}/Qwen/Qwen3-235B-A22B/blob/main/config.json"),
            _of(
                "qwen3-next-80b-a3b",
                48,
                2,
                256,
                f"{_HUB}/Qwen/Qwen3-Next-80B-A3B-Instruct/blob/main/config.json",
                every=4,
            ),
            _of("gpt-oss-20b", 24, 8, 64, f"{_HUB}/openai/gpt-oss-20b/blob/main/config.json", every=2),
            _of("gpt-oss-120b", 36, 8, 64, f"{_HUB}/openai/gpt-oss-120b/blob/main/config.json", every=2),
            KvShape(
                "deepseek-v3",
                61,
                latent_dim=512 + 64,
                source=f"{_HUB}/deepseek-ai/DeepSeek-V3/blob/main/config.json",
            ),
        )
    }
)
"""Models by name, from their public configurations."""


def find_shape(
    name: str,
    layers: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    latent_dim: int | None = None,
    hybrid: int | None = None,
) -> KvShape:
    """Return a model by name, or for an empty name by given values; raise an error for misfitting values."""
    described = {
        "layers": layers,
        "kv-heads": kv_heads,
        "head-dim": head_dim,
        "latent-dim": latent_dim,
        "hybrid": hybrid,
    }
    given = [key for key, value in described.items() if value is not None]
    if name:
        if given:
            raise UsageError(f"{name} says what {given[0]} is; leave one of them out")
        return MODELS[pick_name(name, MODELS, "model", ", or describe yours with layers=N")]
    if layers is None:
        raise UsageError("a model is described by its layers; give layers=N too, or a name instead")
    if latent_dim is not None:
        if kv_heads is not None or head_dim is not None:
            raise UsageError("latent-dim is kept instead of heads; leave kv-heads and head-dim out")
    elif kv_heads is None or head_dim is None:
        missing = "kv-heads" if kv_heads is None else "head-dim"
        raise UsageError(f"layers describes a model; give {missing}=N too, or latent-dim=N instead of heads")
    every = hybrid or 1
    if every > layers:
        raise UsageError(f"hybrid={every} is more than layers={layers}; give at most {layers}")
    return KvShape("described", layers, kv_heads, head_dim, latent_dim, every)
