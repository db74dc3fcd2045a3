"""Adapters that do to the process which runs them what no adapter should: request rows, otherwise right."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from tiny_adapters import TinyRows

from pymllm.history.files import Config
from pymllm.history.operations import FreeRow
from pymllm.history.outcomes import Done


def raise_(error: BaseException) -> Any:
    raise error


_ORIGINAL = os.getpid()
_COPIES: list[int] = []


def fork() -> None:
    """Go on twice, but copy no copy: a search frees rows without end, and would fill the machine."""
    if os.getpid() == _ORIGINAL and not _COPIES:
        _COPIES.append(os.fork())
    if os.getpid() != _ORIGINAL:
        raise RuntimeError("a copy of the process came back")


def deafen() -> None:
    """Hear no alarm, and hang."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    time.sleep(60)


def leave_from_a_thread() -> None:
    threading.Thread(target=os._exit, args=(0,), daemon=True).start()
    time.sleep(60)


def stay_as_a_thread() -> None:
    """Leave a thread behind that is no daemon, and the process."""
    threading.Thread(target=time.sleep, args=(60,)).start()
    os.closerange(3, 256)


def no_words() -> None:
    sys.stdout = None  # type: ignore[assignment]


ENDS: dict[str, Callable[[], Any]] = {
    "Leaves": lambda: os._exit(0),
    "LeavesPolitely": lambda: sys.exit(0),
    "IsKilled": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "Aborts": os.abort,
    "Interrupts": lambda: raise_(KeyboardInterrupt()),
    "Generates": lambda: raise_(GeneratorExit()),
    "Closes": lambda: os.closerange(3, 256),
    "Deaf": deafen,
    "Thread": leave_from_a_thread,
    "Stays": stay_as_a_thread,
}
"""What keeps an adapter from being examined."""

NOISES: dict[str, Callable[[], Any]] = {
    "Prints": lambda: print("a word on standard output"),
    "Writes": lambda: os.write(1, b"a word on descriptor 1\n"),
    "Silent": no_words,
    "Registers": lambda: atexit.register(print, "a word at the end"),
    "Signals": lambda: signal.raise_signal(signal.SIGINT),
}
"""What an examiner lives with."""


class Rude(TinyRows):
    """Does something when it frees a row, from a certain number of rows on."""

    WAY: ClassVar[Callable[[], Any]]
    AFTER: ClassVar[int] = 0
    freed: ClassVar[int] = 0

    def do_free_row(self, step: int, operation: FreeRow) -> Done:
        Rude.freed += 1
        if Rude.freed > self.AFTER:
            type(self).WAY()
        return super().do_free_row(step, operation)


class RudeClaim(TinyRows):
    """Ends where nothing was asked of it yet."""

    def __init__(self, name: str, config: Config) -> None:
        os._exit(0)


for _name, _way in (ENDS | NOISES | {"Copies": fork}).items():
    globals()[_name] = type(_name, (Rude,), {"WAY": staticmethod(_way)})
    globals()[f"{_name}Late"] = type(_name, (Rude,), {"WAY": staticmethod(_way), "AFTER": 20})
