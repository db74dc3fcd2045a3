"""The door to NVML: opened when it is needed, and a reason where it cannot be."""

from __future__ import annotations

import os
from types import ModuleType, TracebackType
from typing import Any

from pymllm.instrument.reading import Unreadable

__all__ = ["LOST", "NvmlLibrary"]

LOST = "GPU is lost"
_PACKAGE = "nvidia-ml-py is not installed; pip install 'pymllm[gpu]' brings it"

# Processes that hold NVML open through this module, by how often. A forked child inherits the number of its
# parent, whose library it cannot use.
_open: dict[int, int] = {}


class NvmlLibrary:
    """NVML of this machine, initialised from the first to the last user of this process.

    Notes
    -----
    NVML counts its users, and its functions may be called from any thread. Nothing says that it survives a
    fork, so a child that was forked while its parent had it open gets a reason and no library; start
    processes with ``spawn`` and track inside them.

    Cost: the first opening loads the driver's library, tens of milliseconds; later ones are a call.
    """

    def __init__(self) -> None:
        self._pynvml: ModuleType | None = None
        self._pid = 0

    def open(self) -> None:
        """Load and initialise the library.

        Raises
        ------
        Unreadable
            Without the package, the library, the driver or the permission.
        """
        if any(pid != os.getpid() for pid in _open):
            raise Unreadable(
                "this process was forked while its parent had NVML open; start it with spawn instead"
            )
        try:
            import pynvml  # type: ignore[import-untyped]
        except ImportError:
            raise Unreadable(_PACKAGE) from None
        self._pynvml = pynvml
        try:
            self.call("nvmlInit")
        except Unreadable:
            self._pynvml = None
            raise
        self._pid = os.getpid()
        _open[self._pid] = _open.get(self._pid, 0) + 1

    def close(self) -> None:
        """Let go of the library; in a forked child, where there is nothing to let go of, do nothing."""
        if self._pynvml is None or self._pid != os.getpid():
            return
        try:
            self.call("nvmlShutdown")
        except Unreadable:
            pass  # A device that was lost takes the library with it; there is nothing left to close.
        finally:
            self._pynvml = None
            _open[self._pid] -= 1
            if not _open[self._pid]:
                del _open[self._pid]

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of pynvml.

        Parameters
        ----------
        name : str
            Its name there.
        *arguments
            Handed to it.

        Raises
        ------
        Unreadable
            With the function's name and what the library said, also where the library lacks the function.
        """
        if self._pynvml is None:
            raise Unreadable("NVML is not open")
        try:
            return getattr(self._pynvml, name)(*arguments)
        # The second is what pynvml raises where the driver is older than it; it is no NVMLError.
        except (self._pynvml.NVMLError, self._pynvml.NVMLLibraryMismatchError) as error:
            raise Unreadable(f"{name}: {_said(error)}") from None

    def constant(self, name: str) -> int:
        """Return a constant of pynvml."""
        value: int = getattr(self._pynvml, name)
        return value

    def first_of(self, *calls: tuple[Any, ...]) -> Any:
        """Make calls until one succeeds: the newest form of a function first.

        Raises
        ------
        Unreadable
            With the reason of the last call.
        """
        for call in calls[:-1]:
            try:
                return self.call(*call)
            except Unreadable:
                continue
        return self.call(*calls[-1])

    def __enter__(self) -> NvmlLibrary:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _said(error: Exception) -> str:
    """Return what the library says of an error, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
