"""Adapters named ``faulty-...`` that each break one law: a correct adapter with a planted fault.

The fault is in place while the adapter is built and while it carries out an operation, and at no other time,
so a faulty and a sound adapter can stand in one process. Nothing looks inside them: whoever catches one has
done so by operations and outcomes alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pymllm.adapters.base import BaseAdapter
from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.faults.fault import Fault
from pymllm.faults.plant import Put, in_place, prepare
from pymllm.faults.table import WRONG
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Outcome


class Faulty(BaseAdapter):
    """The base class of an adapter with a fault, in front of one of this package's adapters.

    `BREAKS` is the law that catches it, `ALSO` those that may be seen first; `SOUND` is the registry name of
    the adapter that it is but for its `FAULT`, and `NEEDS_ENGINE` says that only a program of an engine shows
    the fault.
    """

    FAULT: ClassVar[Fault]
    BREAKS: ClassVar[str]
    ALSO: ClassVar[tuple[str, ...]]
    SOUND: ClassVar[str]
    NEEDS_ENGINE: ClassVar[bool]

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        with in_place(self._puts()):
            super().__init__(name, config)

    def apply(self, step: int, operation: Operation) -> Outcome:
        """Carry an operation out with the fault planted."""
        with in_place(self._puts()):
            return super().apply(step, operation)

    def audit(self) -> Sequence[str]:
        """Check nothing, so that only outcomes can show the fault."""
        return ()

    @classmethod
    @functools.cache
    def _puts(cls) -> tuple[Put, ...]:
        return prepare(cls.FAULT.edits)


def _class_name(fault: Fault) -> str:
    return fault.id.removeprefix("faulty-").title().replace("-", "")


_FAULTS = {_class_name(fault): fault for fault in WRONG}

FAULTY: tuple[AdapterEntry, ...] = tuple(
    AdapterEntry(fault.id, f"{__name__}:{name}", fault.title, needs_torch=True)
    for name, fault in _FAULTS.items()
)
"""The entries of this package's faulty adapters, in the order of the table."""


@functools.cache
def _make(name: str) -> type[Faulty]:
    fault = _FAULTS[name]
    sound: Any = load_adapter(find_adapter(fault.adapters[0]))
    space = {
        "__doc__": f"{fault.title[0].upper()}{fault.title[1:]}.",
        "__module__": __name__,
        "CONFIGURATIONS": fault.shows_in(sound.CONFIGURATIONS),
        "FAULT": fault,
        "BREAKS": fault.laws[0],
        "ALSO": fault.laws[1:],
        "SOUND": fault.adapters[0],
        "NEEDS_ENGINE": fault.searchers == ("life-cycle machine",),
    }
    return type(name, (Faulty, sound), space)


def __getattr__(name: str) -> type[Faulty]:
    """Return the class of a faulty adapter, made on demand since that loads the adapted class."""
    if name not in _FAULTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _make(name)
