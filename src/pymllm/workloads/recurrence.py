"""A recurrent model in whole numbers: the state after n tokens is exact and depends on all of them.

A state element takes in a token by ``x <- (decay * x + input(token)) mod prime``. Such steps compose, so a
chunk is taken in at once, and however a sequence is cut, the state at its end is the same number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pymllm.workloads.fingerprint import scatter, token_fingerprints

__all__ = ["Recurrence"]

_FEW = 8
"""Up to so many tokens one after the other are faster than pairwise: for 4 of them 8 us, and not 17."""


class Recurrence:
    """The states of one kind, over all layers, as a row of independent elements.

    Parameters
    ----------
    elements : int
        Elements of a state; each has a decay and an input of its own.
    prime : int
        States are in ``0 .. prime - 1``; below 2^31, so that a product fits into int64.
    salt : int
        Recurrences of different salts take the same token in differently.

    Notes
    -----
    Laws: E1. Source: our choice. A state is 0 before the first token, as a reset leaves it, and the namespace
    enters with every token.
    """

    def __init__(self, elements: int, prime: int, salt: int) -> None:
        self._prime: np.int64 | np.ndarray = np.int64(prime)
        self._salts = scatter(np.arange(elements, dtype=np.uint64) + (np.uint64(salt) << np.uint64(32)))
        # 0 would forget everything, and 1 the order of the tokens.
        self._decay = (scatter(self._salts) % np.uint64(prime - 2)).astype(np.int64) + 2
        self.elements = elements

    @classmethod
    def side_by_side(cls, parts: Sequence[Recurrence]) -> Recurrence:
        """Join recurrences into one, whose state is the states of all in a row.

        Where states are short, the passes are what costs: one for all kinds is half of one for each.
        """
        joined = cls.__new__(cls)
        joined._prime = np.concatenate([np.full(part.elements, part._prime) for part in parts])
        joined._salts = np.concatenate([part._salts for part in parts])
        joined._decay = np.concatenate([part._decay for part in parts])
        joined.elements = sum(part.elements for part in parts)
        return joined

    def inputs(self, tokens: np.ndarray, namespace: str | int | None) -> np.ndarray:
        """Say what each token adds to each element.

        Parameters
        ----------
        tokens : numpy.ndarray
            Shape ``(n,)``, integers in ``0 .. 2**32 - 1``.
        namespace : str or int or None
            Of the sequence.

        Returns
        -------
        numpy.ndarray
            Shape ``(n, elements)``, int64, in ``0 .. prime - 1``.
        """
        mixed = scatter(token_fingerprints(tokens, namespace)[:, None] ^ self._salts)
        return (mixed % self._prime.astype(np.uint64)).astype(np.int64)

    def step(self, states: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Let each of several states take in one token of its own.

        Parameters
        ----------
        states, inputs : numpy.ndarray
            Shape ``(n, elements)``, int64.

        Returns
        -------
        numpy.ndarray
            Shape ``(n, elements)``, int64.
        """
        stepped: np.ndarray = (self._decay * states + inputs) % self._prime
        return stepped

    def advance(self, state: np.ndarray, tokens: np.ndarray, namespace: str | int | None) -> np.ndarray:
        """Let one state take in a chunk of tokens.

        Parameters
        ----------
        state : numpy.ndarray
            Shape ``(elements,)``, int64.
        tokens : numpy.ndarray
            Shape ``(n,)``.
        namespace : str or int or None
            Of the sequence.

        Returns
        -------
        numpy.ndarray
            Shape ``(elements,)``, int64: what n calls of `step` come to.

        Notes
        -----
        Cost: O(n * elements) in NumPy. Neighbours are joined pairwise, ``(x, y) -> decay * x + y``, and then
        the pairs, with the square of the decay; the state before counts as the input before the first.
        """
        return self.take_in(state, self.inputs(tokens, namespace))

    def take_in(self, state: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Do the same with what `inputs` says of the tokens, shape ``(n, elements)``."""
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
        """Compute the states after every number of tokens of a sequence, from nothing.

        Parameters
        ----------
        inputs : numpy.ndarray
            Shape ``(n, elements)``: what `inputs` says of its tokens.

        Returns
        -------
        numpy.ndarray
            Shape ``(n + 1, elements)``, int64: row i is what `cold` says of the first i tokens.

        Notes
        -----
        Cost: O(n log n * elements) in NumPy. After the pass of width w each row has taken in the last w
        inputs before it, or all there are; it lacks what the row w before it has.
        """
        states = np.concatenate([np.zeros((1, self.elements), dtype=np.int64), inputs])
        width, decay = 1, self._decay
        while width < len(states):
            states[width:] = (decay * states[:-width] + states[width:]) % self._prime
            width, decay = 2 * width, decay * decay % self._prime
        return states

    def cold(self, tokens: np.ndarray, namespace: str | int | None) -> np.ndarray:
        """Compute the state after a whole sequence, from nothing.

        Parameters
        ----------
        tokens : numpy.ndarray
            Shape ``(n,)``.
        namespace : str or int or None
            Of the sequence.

        Returns
        -------
        numpy.ndarray
            Shape ``(elements,)``, int64.
        """
        return self.advance(np.zeros(self.elements, dtype=np.int64), tokens, namespace)
