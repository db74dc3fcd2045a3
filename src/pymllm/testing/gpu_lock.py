"""One test at a time on a GPU, among all processes of a machine."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["FOLDER", "GpuBusyError", "GpuLock"]

FOLDER = "PYMLLM_GPU_LOCKS"
"""Environment variable: the folder of the locks, where it is not that of temporary files."""

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class GpuBusyError(Exception):
    """Somebody else holds the lock of a GPU; the message says who, as far as that is known."""


class GpuLock:
    """A lock that is a file, named by the device, which the system lets go of when its holder dies.

    Parameters
    ----------
    device : str
        UUID, or whatever names the device among all programs of this machine.
    folder : Path, optional
        Where the file is; the same for everybody who shares the device. By default what the environment
        variable ``PYMLLM_GPU_LOCKS`` names, else the folder of temporary files.

    Notes
    -----
    The file stays when the lock goes: who removed it would take it from whoever waits. A child that was
    forked by the holder does not keep the lock.
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        name = re.sub(r"[^\w.-]", "_", device)
        place = folder or Path(os.environ.get(FOLDER) or tempfile.gettempdir())
        self.device = device
        self.path = place / f"pymllm-{name}.lock"
        self._file: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._file is not None

    def acquire(self, *, wait: bool = True, before_waiting: Callable[[str], object] | None = None) -> None:
        """Take the lock.

        Parameters
        ----------
        wait : bool, default True
            Whether to wait for as long as somebody else has it.
        before_waiting : callable, optional
            Told who has it, once, before the wait begins.

        Raises
        ------
        GpuBusyError
            Somebody else has it, and ``wait`` is false.
        OSError
            The file can be neither made nor opened.
        """
        import fcntl  # Not at the top: a system without it can still load the plugin.

        if self._file is not None:
            return
        file = self._open()
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = f"{self.device} is in use by {_holder(file)}"
                if not wait:
                    raise GpuBusyError(f"{who}; its lock is {self.path}") from None
                if before_waiting is not None:
                    before_waiting(who)
                fcntl.flock(file, fcntl.LOCK_EX)
            self._sign()
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def release(self) -> None:
        """Let the lock go; nothing where it is not held."""
        if self._file is None:
            return
        import fcntl

        file, self._file = self._file, None
        fcntl.flock(file, fcntl.LOCK_UN)  # by name: a forked child may have the descriptor still
        os.close(file)

    def _open(self) -> int:
        """Open the file of whichever user, or make it; a lock needs no right to write."""
        with suppress(FileNotFoundError):
            return os.open(self.path, _FLAGS)
        return os.open(self.path, _FLAGS | os.O_CREAT, 0o644)

    def _sign(self) -> None:
        """Leave the holder's number for others to read, where the file is this user's."""
        with suppress(OSError):
            self.path.write_text(f"process {os.getpid()}\n", encoding="ascii")


def _holder(file: int) -> str:
    """Return who signed the file last: whoever has the lock, if the file is that user's."""
    return os.pread(file, 64, 0).decode("ascii", "replace").strip() or "another process"
