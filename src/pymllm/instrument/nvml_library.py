"""The access to NVML, which is opened on demand, or the reason why it is unavailable."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from pymllm.instrument.reading import Unreadable

# Of NVML's errors, those that mean something here.
TIMED_OUT = 10
FUNCTION_NOT_FOUND = 13
LOST = 15

PATIENCE = 30.0
"""Seconds after which a driver call counts as hung; the slowest calls take tens of milliseconds."""

Answer = TypeVar("Answer")

_PACKAGE = "nvidia-ml-py is not installed; python -m pip install nvidia-ml-py brings it"

# Who holds NVML open: process and object. A forked child inherits the entries of its parent, whose library it
# cannot use. Entries come and go in one step each, so that no fork finds a lock held.
_open: set[tuple[int, int]] = set()
_hung: list[str] = []  # why nobody asks again in this process


class NvmlFailure(Unreadable):
    """Raised for an error from NVML; ``code`` is its number."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


class NvmlLibrary:
    """NVML on this machine, initialised while this process uses it, for any thread.

    Nothing says that it survives a fork, so a child that was forked while its parent had it open gets a
    reason and no library. Cost: the first opening loads the driver's library, tens of milliseconds.
    """

    def __init__(self) -> None:
        self._pynvml: ModuleType | None = None
        self._pid = 0
        self._calling: str | None = None  # the function of the driver that has not answered yet

    def open(self, patience: float | None = PATIENCE) -> None:
        """Load and initialise NVML; raise `Unreadable` without package, library, driver or permission.

        A driver that hangs is `Unreadable`, too, after so many seconds; with ``None`` the call hangs with it.
        """
        if any(pid != os.getpid() for pid, _ in tuple(_open)):
            raise Unreadable(
                "this process was forked while its parent had NVML open; start it with spawn instead"
            )
        try:
            import pynvml  # type: ignore[import-untyped]
        except ImportError:
            raise Unreadable(_PACKAGE) from None
        self._pynvml = pynvml
        try:
            self._initialise(patience)
        except Unreadable:
            self._pynvml = None
            raise
        self._pid = os.getpid()
        _open.add((self._pid, id(self)))

    def _initialise(self, patience: float | None) -> None:
        if patience is None:
            self.call("nvmlInit")
        else:
            self.within(lambda: self.call("nvmlInit"), patience)

    def within(self, ask: Callable[[], Answer], patience: float | None = None) -> Answer:
        """Return the result of a function that calls the driver; raise `Unreadable` if that takes too long.

        The function has a thread of its own, which can be left alone in a driver that never answers. Nobody
        of this process asks the driver again then. Cost: some hundred microseconds.
        """
        if _hung:
            raise Unreadable(_hung[0])
        answers: list[Answer] = []
        failed: list[BaseException] = []

        def answer() -> None:
            try:
                answers.append(ask())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=answer, name="pymllm-nvml-call", daemon=True)
        thread.start()
        self.join(thread, patience)
        if failed:
            raise failed[0]
        return answers[0]

    def join(self, thread: threading.Thread, patience: float | None = None) -> None:
        """Wait for a thread in a driver call; raise `Unreadable` if that takes too long, and ever after."""
        seconds = PATIENCE if patience is None else patience
        thread.join(seconds)
        if thread.is_alive():
            where = self._calling or "NVML"
            _hung.append(f"{where}: no answer within {seconds:g} s, the driver hangs; see pymllm doctor")
            raise Unreadable(_hung[0])

    def close(self) -> None:
        """Release the library; in a forked child, which holds nothing, do nothing."""
        if self._pynvml is None or self._pid != os.getpid():
            return
        try:
            self.within(lambda: self.call("nvmlShutdown"))
        except Unreadable:
            pass  # A device that was lost takes the library with it; there is nothing left to close.
        finally:
            self._pynvml = None
            _open.discard((self._pid, id(self)))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of pynvml; raise `Unreadable` with its name and the reason if it fails."""
        if self._pynvml is None:
            raise Unreadable("NVML is not open")
        function = getattr(self._pynvml, name, None)
        if function is None:
            raise NvmlFailure(f"{name}: this nvidia-ml-py lacks it", FUNCTION_NOT_FOUND)
        self._calling = name
        try:
            return function(*arguments)
        except self._pynvml.NVMLError as error:
            raise NvmlFailure(f"{name}: {_said(error)}", error.value) from None
        # What pynvml raises where the driver is older than it; it is no NVMLError.
        except self._pynvml.NVMLLibraryMismatchError:
            raise NvmlFailure(f"{name}: the driver is older than nvidia-ml-py", FUNCTION_NOT_FOUND) from None

    def constant(self, name: str) -> int:
        """Return a constant of pynvml."""
        value: int = getattr(self._pynvml, name)
        return value

    def first_of(self, *calls: tuple[Any, ...]) -> Any:
        """Call the first function that the library has, given newer forms of a function first."""
        for call in calls[:-1]:
            try:
                return self.call(*call)
            except NvmlFailure as failure:
                if failure.code != FUNCTION_NOT_FOUND:
                    raise
        return self.call(*calls[-1])

    def __enter__(self) -> NvmlLibrary:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def ask_nvml(ask: Callable[[NvmlLibrary], Answer]) -> Answer:
    """Open NVML, return a function's result, and close NVML; raise `Unreadable` without a result."""
    library = NvmlLibrary()

    def answer() -> Answer:
        library.open(None)
        try:
            return ask(library)
        finally:
            library.close()

    return library.within(answer)


def _said(error: Exception) -> str:
    """Return the library's description of an error, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
