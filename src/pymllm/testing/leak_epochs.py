"""Runs the same work again and again, and says whether it leaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pymllm.instrument.leaks import Layer, LeakCheck, LeakVerdict, Outcome
from pymllm.instrument.nvml_counters import DeviceUse
from pymllm.instrument.torch_memory import AllocatorSource

EPOCHS = 12
FEWEST_EPOCHS = 10
"""With fewer, no growth is certain: the first quarter is the warming up."""


def run_epochs(
    work: Callable[[], object],
    *,
    epochs: int = EPOCHS,
    slots: Callable[[], int] | None = None,
    device: Any = None,
    source: AllocatorSource | None = None,
    device_memory: Callable[[], DeviceUse] | None = None,
    bounds: Mapping[Layer, float] | Mapping[str, float] | None = None,
) -> LeakVerdict:
    """Do the same work, which leaves nothing, so often, at least 10 times, and judge as `LeakCheck` does."""
    __tracebackhide__ = True  # pytest shows the caller instead
    if not callable(work):
        raise TypeError(f"work must be a function that is called for each epoch, got {work!r}")
    check_epochs(epochs)
    with LeakCheck(
        slots=slots, device=device, source=source, device_memory=device_memory, bounds=bounds
    ) as check:
        for _ in range(epochs):
            work()
            check.checkpoint()
        return check.verdict()


def check_epochs(epochs: int) -> None:
    """Refuse a number of epochs that nothing can be judged by: fewer than 10."""
    __tracebackhide__ = True
    if isinstance(epochs, bool) or not isinstance(epochs, int):
        raise TypeError(f"epochs must be a whole number, got {epochs!r}; {EPOCHS} are usual")
    if epochs < FEWEST_EPOCHS:
        raise ValueError(f"epochs must be at least {FEWEST_EPOCHS}, got {epochs}; {EPOCHS} are usual")


def why_unknown(verdict: LeakVerdict) -> str | None:
    """Return why nothing at all is known, or ``None`` where some layer is judged."""
    if any(it.outcome is not Outcome.UNKNOWN for it in verdict.layers):
        return None
    return "; ".join(dict.fromkeys(str(it.reason) for it in verdict.layers))
