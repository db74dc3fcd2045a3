"""What says who owns what is there once: it is neither copied nor pickled."""

from __future__ import annotations

from typing import ClassVar, NoReturn, SupportsIndex


class OneOwner:
    """Refuse `copy.copy`, `copy.deepcopy` and pickle for a class that keeps books.

    A shallow copy shares half of its books with the original, and both hand out the same slots. A deep one
    has copies where there were views of one memory, and books about slots of a pool that others own; from
    some hundred nodes on it ends in a ``RecursionError``, as pickle does. All three ask for ``__reduce_ex__``
    where a class has nothing of its own; a subclass that knows how may define ``__copy__`` or
    ``__deepcopy__``. Laws: X1, X5.
    """

    __slots__ = ()

    _INSTEAD: ClassVar[str] = "build a new one with the same arguments"

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} cannot be copied or pickled, what it owns has one owner: {self._INSTEAD}")
