"""The rule that an object with trackers has one owner, and is used by one thread at a time."""

from __future__ import annotations

import threading
from typing import ClassVar, NoReturn, SupportsIndex


class OneOwner:
    """A base class that refuses `copy.copy`, `copy.deepcopy` and pickle, for objects with trackers.

    A shallow copy shares half of its trackers with the original, and both hand out the same slots. A deep one
    has copies where there were views of one memory, and trackers about slots of a pool that others own; from
    some hundred nodes on it ends in a ``RecursionError``, as pickle does. All three ask for ``__reduce_ex__``
    where a class has nothing of its own; a subclass that knows how may define ``__copy__`` or
    ``__deepcopy__``. Laws: X1, X5.
    """

    __slots__ = ()

    _INSTEAD: ClassVar[str] = "build a new one with the same arguments"

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} cannot be copied or pickled, its resources have one owner: {self._INSTEAD}")


def refuse_other_thread(call: str, what: str, thread: int, doing: str) -> None:
    """Raise an error for a call during another thread's call; do nothing within a call of the same thread.

    Best effort: only what leaves a flag behind is met, which is a cache inside a pool or callback, an
    observer, a step, and a free group. Two calls that meet anywhere else are not noticed, and what they leave
    is undefined. Asked only where a call is refused anyway, so that others pay nothing. Laws: X6, A6.
    """
    here = threading.current_thread()
    if thread == here.ident:
        return
    names = {each.ident: each.name for each in threading.enumerate()}
    raise RuntimeError(
        f"{call} was called from thread {here.name!r} while thread {names.get(thread, thread)!r} {doing}: "
        f"two threads use one {what}, which one scheduler thread owns. Make all calls from that thread, "
        "or hold one lock around each"
    )
