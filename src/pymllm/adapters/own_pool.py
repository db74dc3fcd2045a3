"""What the adapters of our rows, buffers, states and hashes have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.base import BaseAdapter, UnsupportedError
from pymllm.adapters.key_forms import make_indices
from pymllm.errors import ProgramError
from pymllm.history.operations import Malformed, Span
from pymllm.history.outcomes import Done

__all__ = ["OwnPool", "as_elements", "as_numbers"]

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_elements(numbers: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return elements of a dtype whose bits are these numbers.

    Notes
    -----
    So -1 is a NaN in any floating point type, and 1 and 0 are different numbers of which a careless kernel
    makes the same: what is compared is what was stored, bit for bit (P5).
    """
    return torch.tensor(numbers, dtype=_INTEGERS[dtype.itemsize]).view(dtype)


def as_numbers(elements: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    """Return the bits of each row's elements as numbers, row by row."""
    rows = elements.view(_INTEGERS[elements.dtype.itemsize]).flatten(start_dim=1)
    return tuple(map(tuple, rows.tolist()))


class OwnPool(BaseAdapter, ABC):
    """One object of ours; ``device`` in the configuration names another device than the CPU.

    Attributes
    ----------
    POOL : type
        Whose object it is; what is a variation of one of ours names itself here.
    MALFORMED : dict
        Each call that no caller may make, by its operation and what is wrong with it.
    device : torch.device
        Where its tensors are.
    pool : object
        What is adapted.
    """

    POOL: ClassVar[type[Any]]
    MALFORMED: ClassVar[Mapping[tuple[str, str], Callable[[Any], object]]] = {}

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.device = torch.device(str(config.get("device", "cpu")))
        self._is_on_host = self.device.type == "cpu"
        self.pool: Any = self.make_pool()

    @abstractmethod
    def make_pool(self) -> object:
        """Build what is adapted."""

    def number(self, key: str) -> int:
        """Return a number of the configuration; `ValueError` if there is none by this name."""
        value = self.config.get(key)
        if not isinstance(value, int):
            raise ValueError(f"the configuration's {key} is {value!r}; it must be an integer")
        return value

    def dtype(self) -> torch.dtype:
        """Return the configuration's ``dtype``; `ValueError` if torch has none of this name."""
        found = getattr(torch, str(self.config.get("dtype")), None)
        if not isinstance(found, torch.dtype):
            raise ValueError(
                f"the configuration's dtype is {self.config.get('dtype')!r}; torch has none such"
            )
        return found

    def one(self, span: Span) -> int:
        """Return the only number that a span names; `ProgramError` if it names none or several."""
        numbers = self.numbers((span,))
        if len(numbers) != 1:
            raise ProgramError(f"{span} names {len(numbers)} numbers; it must name one")
        return numbers[0]

    def index(self, numbers: Sequence[int], form: str) -> torch.Tensor:
        """Return numbers as an index tensor on the device."""
        made = make_indices(numbers, form)
        return made if self._is_on_host else made.to(self.device)

    def do_malformed(self, step: int, operation: Malformed) -> Done:
        """Make one of the calls of `MALFORMED`."""
        call = self.MALFORMED.get((operation.call, operation.wrong))
        if call is None:
            raise UnsupportedError(f"{operation.call} with {operation.wrong}")
        call(self.pool)
        return Done()
