"""The values of exact models: KV as fingerprints of all tokens so far, states as integers (law E1).

A fingerprint depends on the namespace, every token up to and including its own, the layer, and the part of
the KV it stands for: a row that aliases, lags or belongs to somebody else reads wrong. A state element takes
in a token by ``x <- (decay * x + input(token)) mod prime``. Such steps compose, so a chunk is taken in at
once, and however a sequence is cut, the state at its end is the same number. Buffers hold it as floats, whose
bits NumPy has to make by itself: it has no bfloat16 of its own.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch

from pymllm.errors import UsageError

# Constants of the splitmix64 generator (Steele, Lea, Flood 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_TOKEN = np.uint64(0xD6E8FEB86659FD93)
_PARTS_PER_LAYER = 4


class KVPart(enum.IntEnum):
    """The buffers of one part of a layer's KV, whose contents differ for each."""

    FULL_K = 0
    FULL_V = 1
    SWA_K = 2
    SWA_V = 3

    # That of an enumeration is a call in Python: naming buffers by their parts took a tenth of a small write.
    __hash__ = int.__hash__


def prefix_fingerprints(tokens: np.ndarray, namespace: str | int | None = None) -> np.ndarray:
    """Return a fingerprint of every prefix of tokens below ``2**32``: uint64, shape ``(n,)`` (law E1).

    Entry i depends on the namespace (``1`` and ``"1"`` differ) and tokens ``0 .. i``, with their order.
    """
    positions = np.arange(len(tokens), dtype=np.uint64)
    mixed = scatter(tokens.astype(np.uint64) * _TOKEN + positions * _STEP)
    sums: np.ndarray = np.cumsum(mixed, dtype=np.uint64) + _seed(namespace)
    return sums


def token_fingerprints(tokens: np.ndarray, namespace: str | int | None = None) -> np.ndarray:
    """Return a fingerprint of each token below ``2**32`` with its namespace: uint64, shape ``(n,)``."""
    return scatter(tokens.astype(np.uint64) * _TOKEN + _seed(namespace))


@functools.cache
def _seed(namespace: str | int | None) -> np.uint64:
    digest = hashlib.sha256(f"{type(namespace).__name__}:{namespace}".encode()).digest()
    return np.uint64(int.from_bytes(digest[:8], "little"))


def kv_fingerprints(prefixes: np.ndarray, places: tuple[tuple[int, KVPart], ...]) -> np.ndarray:
    """Return the content of each layer and part for prefix fingerprints ``(n,)``: int64, ``(places, n)``."""
    return scatter(prefixes ^ _salts(places)).view(np.int64)


@functools.cache
def _salts(places: tuple[tuple[int, KVPart], ...]) -> np.ndarray:
    numbers = [layer * _PARTS_PER_LAYER + part + 1 for layer, part in places]
    return np.array(numbers, dtype=np.uint64)[:, None] * _STEP


def scatter(values: np.ndarray) -> np.ndarray:
    """Mix uint64 values of any shape by a bijection, so that each input bit affects every output bit."""
    mixed: np.ndarray = values >> _SHIFT_1
    mixed ^= values
    mixed *= _MIX_1
    mixed ^= mixed >> _SHIFT_2
    mixed *= _MIX_2
    mixed ^= mixed >> _SHIFT_3
    return mixed


_HALF_OF_FLOAT32 = 16  # A bfloat16 is the upper half of a float32; of small whole numbers the lower is zero.


def bits_of(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the bits, int32 or int16, of floats that hold integers (int64) exactly.

    Cost: one to three passes: for the few numbers of a state a third of the way through torch.
    """
    if dtype is torch.float16:
        return values.astype(np.float16).view(np.int16)
    bits: np.ndarray = values.astype(np.float32).view(np.int32)
    return bits if dtype is torch.float32 else (bits >> _HALF_OF_FLOAT32).astype(np.int16)


def values_of(bits: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the integers, as int64, of floats with these bits; the inverse of `bits_of`."""
    if dtype is torch.bfloat16:
        bits = bits.astype(np.int32) << _HALF_OF_FLOAT32
    floats: np.ndarray = bits.view(np.float16 if dtype is torch.float16 else np.float32)
    return floats.astype(np.int64)


_FEW = 8
"""The number of tokens up to which single steps are faster than pairwise ones: 8 us for 4, not 17."""


class Recurrence:
    """The states of one kind, over all layers, as a row of independent elements (law E1).

    States are in ``0 .. prime - 1``, below 2^31, so that a product fits into int64; each element has a decay
    and an input of its own, and other salts give others. A state is 0 before the first token, as a reset
    leaves it, and the namespace enters with every token.
    """

    def __init__(self, elements: int, prime: int, salt: int) -> None:
        self._prime: np.int64 | np.ndarray = np.int64(prime)
        self._salts = scatter(np.arange(elements, dtype=np.uint64) + (np.uint64(salt) << np.uint64(32)))
        # 0 would forget everything, and 1 the order of the tokens.
        self._decay = (scatter(self._salts) % np.uint64(prime - 2)).astype(np.int64) + 2
        self.elements = elements

    @classmethod
    def side_by_side(cls, parts: Sequence[Recurrence]) -> Recurrence:
        """Join recurrences into one over all elements, whose single pass takes half the time."""
        joined = cls.__new__(cls)
        joined._prime = np.concatenate([np.full(part.elements, part._prime) for part in parts])
        joined._salts = np.concatenate([part._salts for part in parts])
        joined._decay = np.concatenate([part._decay for part in parts])
        joined.elements = sum(part.elements for part in parts)
        return joined

    def inputs(self, tokens: np.ndarray, namespace: str | int | None) -> np.ndarray:
        """Return the amounts that n tokens add to each element: ``(n, elements)``, int64, below the prime."""
        mixed = scatter(token_fingerprints(tokens, namespace)[:, None] ^ self._salts)
        return (mixed % self._prime.astype(np.uint64)).astype(np.int64)

    def step(self, states: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Advance each of several states by one token of its own; all are ``(n, elements)``, int64."""
        stepped: np.ndarray = (self._decay * states + inputs) % self._prime
        return stepped

    def advance(self, state: np.ndarray, tokens: np.ndarray, namespace: str | int | None) -> np.ndarray:
        """Advance one state ``(elements,)`` by n tokens, with the result of n calls of `step`."""
        return self.take_in(state, self.inputs(tokens, namespace))

    def take_in(self, state: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Advance one state by n ``inputs``, shape ``(n, elements)``.

        Neighbours are joined pairwise, ``(x, y) -> decay * x + y``, and then the pairs, with the square of
        the decay; the state before counts as the input before the first.
        """
        if len(inputs) <= _FEW:
            for added in inputs:
                state = (self._decay * state + added) % self._prime
            return state
        values, decay = np.concatenate([state[None], inputs]), self._decay
        while len(values) > 1:
            if len(values) % 2:  # nothing comes of a zero in front of all
                values = np.concatenate([np.zeros_like(values[:1]), values])
            values = (decay * values[0::2] + values[1::2]) % self._prime
            decay = decay * decay % self._prime
        last: np.ndarray = values[0]
        return last

    def cold_run(self, inputs: np.ndarray) -> np.ndarray:
        """Compute from `inputs` the states after any number of tokens: ``(n + 1, elements)``, int64.

        After the pass of width w each row has taken in the last w inputs before it, or all there are; it
        lacks what the row w before it has.
        """
        states = np.concatenate([np.zeros((1, self.elements), dtype=np.int64), inputs])
        width, decay = 1, self._decay
        while width < len(states):
            states[width:] = (decay * states[:-width] + states[width:]) % self._prime
            width, decay = 2 * width, decay * decay % self._prime
        return states

    def cold(self, tokens: np.ndarray, namespace: str | int | None) -> np.ndarray:
        """Compute the state ``(elements,)`` after a whole sequence, without a cache."""
        return self.advance(np.zeros(self.elements, dtype=np.int64), tokens, namespace)


EXACT_PRIMES: Mapping[torch.dtype, int] = MappingProxyType(
    {torch.float32: 16_777_213, torch.float16: 2_039, torch.bfloat16: 251}
)
"""For each dtype the largest prime up to which it holds every integer."""


class RecurrentStates:
    """The states that a small exact model writes into one buffer; ``shape`` begins with layers (law E1)."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, salt: int) -> None:
        if dtype not in EXACT_PRIMES:
            raise UsageError(f"states of {dtype} hold no exact numbers; use one of {list(EXACT_PRIMES)}")
        self.shape = shape
        self.dtype = dtype
        self.recurrence = Recurrence(math.prod(shape), EXACT_PRIMES[dtype], salt)

    def values(self, states: torch.Tensor) -> np.ndarray:
        """Read states ``[layers, n, ...]``, on any device, as values: ``(n, elements)``, int64."""
        return states.cpu().transpose(0, 1).flatten(1).to(torch.int64).numpy()

    def states(self, values: np.ndarray) -> torch.Tensor:
        """Convert values of shape ``(n, elements)`` to the buffer's shape and dtype, on the host."""
        layers, *rest = self.shape
        return torch.from_numpy(values).view(-1, layers, *rest).transpose(0, 1).to(self.dtype)

    def cold(self, tokens: np.ndarray, namespace: str | int | None = None) -> torch.Tensor:
        """Compute the state after a whole sequence, without a cache: ``[layers, ...]``, on the host."""
        return self.states(self.recurrence.cold(tokens, namespace)[None])[:, 0]


@dataclass(frozen=True, slots=True)
class ColdRun:
    """A sequence computed without a cache, over the side-by-side elements of all state buffers."""

    inputs: np.ndarray  # what each token adds, (n, elements)
    bits: tuple[np.ndarray, ...]  # of each buffer, as integers: (layers, n + 1, elements of a layer)
