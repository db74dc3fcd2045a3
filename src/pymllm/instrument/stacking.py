"""Wrappers around an adapter that have its interface, so that they stack in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pymllm.adapters.base import Adapter
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Outcome

__all__ = ["AdapterWrapper", "layers"]

_INTERFACE = ("name", "kind", "config", "capabilities", "apply", "audit", "close")


class AdapterWrapper:
    """Looks like the adapter inside, and hands everything on to it.

    Parameters
    ----------
    adapter : Adapter
        What is wrapped; it may be a wrapper itself.

    Raises
    ------
    TypeError
        It is none.

    Notes
    -----
    An instrument derives from this and watches `apply`. Whoever runs a program cannot tell it from the
    adapter: outcomes, errors and audits are those of the adapter.
    """

    def __init__(self, adapter: Adapter) -> None:
        missing = [name for name in _INTERFACE if not hasattr(adapter, name)]
        if missing:
            raise TypeError(
                f"adapter must have {', '.join(missing)}, got {adapter!r}; "
                "make_adapter of pymllm.adapters.registry makes one of a name"
            )
        self.adapter = adapter
        self.name = adapter.name
        self.kind = adapter.kind
        self.config = adapter.config
        self.capabilities = adapter.capabilities

    def apply(self, step: int, operation: Operation) -> Outcome:
        """Have the adapter carry an operation out."""
        return self.adapter.apply(step, operation)

    def audit(self) -> Sequence[str]:
        """Have the adapter look inside."""
        return self.adapter.audit()

    def close(self) -> None:
        """Close the adapter."""
        self.adapter.close()


def layers(adapter: Adapter) -> Iterator[Adapter]:
    """Give what is stacked, from the outermost wrapper to the adapter itself."""
    yield adapter
    while isinstance(adapter, AdapterWrapper):
        adapter = adapter.adapter
        yield adapter
