"""The gate to a GPU: tests run only where there is a GPU, one at a time among all processes of a machine."""

from __future__ import annotations

import functools
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pymllm.instrument.nvml_device import VARIABLE, find_device, shown_names, visible_devices
from pymllm.instrument.nvml_library import ask_nvml
from pymllm.instrument.reading import Unreadable

FOLDER = "PYMLLM_GPU_LOCKS"
"""Environment variable: the folder of the locks, where it is not that of temporary files."""

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


SECONDS = 3600.0
"""How long somebody waits for a GPU at most."""

_LOOK = 0.01  # seconds between two tries: no test waits long for its turn


class GpuBusyError(Exception):
    """The lock of a GPU has another holder; the message names the holder as far as known."""


class GpuLock:
    """A lock on a file named by the device, which the system releases when its holder dies.

    The folder is the same for everybody who shares the device: what ``PYMLLM_GPU_LOCKS`` names, else that of
    temporary files. The file stays when the lock goes: who removed it would take it from whoever waits. A
    forked child does not keep it.
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

    def acquire(
        self,
        *,
        wait: bool = True,
        seconds: float = SECONDS,
        before_waiting: Callable[[str], object] | None = None,
    ) -> None:
        """Acquire the lock, or raise `GpuBusyError`: at once, or after so many ``seconds`` of waiting.

        ``before_waiting`` is told who has it.
        """
        if self._file is not None:
            return
        file = self._open()
        try:
            until = time.monotonic() + (seconds if wait else 0)
            is_told = False
            while not _try_lock(file):
                who = f"{self.device} is in use by {_holder(file)}"
                if time.monotonic() >= until:
                    waited = f", for which {seconds:.1f} s were waited" if wait else ""
                    raise GpuBusyError(f"{who}{waited}; its lock is {self.path}")
                if before_waiting is not None and not is_told:
                    before_waiting(who)
                    is_told = True
                time.sleep(_LOOK)
            self._sign()
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def release(self) -> None:
        """Release the lock; do nothing where it is not held."""
        if self._file is None:
            return
        import fcntl

        file, self._file = self._file, None
        fcntl.flock(file, fcntl.LOCK_UN)  # by name: a forked child may have the descriptor still
        os.close(file)

    def _open(self) -> int:
        """Open any user's lock file, or make it; a lock needs no right to write."""
        with suppress(FileNotFoundError):
            return os.open(self.path, _FLAGS)
        return os.open(self.path, _FLAGS | os.O_CREAT, 0o644)

    def _sign(self) -> None:
        """Write the holder's process number for others to read, where the file is this user's."""
        with suppress(OSError):
            self.path.write_text(f"process {os.getpid()}\n", encoding="ascii")


def _try_lock(file: int) -> bool:
    import fcntl  # Not at the top: a system without it can still load the plugin.

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: int) -> str:
    """Return the last process that signed the file: whoever has the lock, if the file is that user's."""
    return os.pread(file, 64, 0).decode("ascii", "replace").strip() or "another process"


MODES = ("wait", "fail", "off")
"""What a test does whose GPU is in use: wait for it, fail, or run all the same."""


@functools.cache
def why_no_cuda() -> str | None:
    """Return why torch has no CUDA device and how to get one, or ``None``; loads torch."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA; pytorch.org/get-started has builds with it"
    with warnings.catch_warnings(record=True) as said:  # an error at set-up where warnings are errors
        warnings.simplefilter("always")
        try:
            if torch.cuda.is_available():
                return None
        except RuntimeError as error:
            return f"CUDA cannot be asked: {' '.join(str(error).split())}"
    shown = os.environ.get(VARIABLE)
    if shown is not None and not shown_names(shown):
        return f"{VARIABLE}={shown!r} shows no device; unset it, or name one, such as {VARIABLE}=0"
    told = "; ".join(dict.fromkeys(" ".join(str(it.message).split()) for it in said))
    return f"CUDA does not start: {told}" if told else f"torch.cuda.is_available() is False; {_driver_says()}"


def _driver_says() -> str:
    """Describe the driver and its number of devices, with the next step to take."""
    try:
        count = ask_nvml(lambda library: library.call("nvmlDeviceGetCount"))
    except Unreadable as reason:
        return (
            f"the NVIDIA driver cannot be asked either ({reason}): nvidia-smi must list a GPU first, and a"
            " container be started with one, as by docker run --gpus all"
        )
    return f"the driver lists {count} of them: pymllm doctor shows more"


def device_names() -> list[str]:
    """Return the UUIDs of the devices that this process may use, from NVML, without initialising CUDA."""
    indices = visible_devices()
    try:
        return ask_nvml(lambda library: [find_device(library, it).identity.uuid for it in indices])
    except Unreadable:
        import torch

        return [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in indices]


class GpuGate:
    """The gate that lets one test at a time use the GPUs of a process, by one of `MODES`.

    It takes their locks in the order of their names, so that nobody waits for a process that waits for it;
    ``before_waiting`` is told who has one.
    """

    def __init__(
        self,
        mode: str,
        before_waiting: Callable[[str], object],
        name_devices: Callable[[], list[str]] | None = None,
        seconds: float = SECONDS,
    ) -> None:
        self._seconds = seconds
        self._mode = mode
        self._before_waiting = before_waiting
        self._name_devices = name_devices or device_names
        self._locks: list[GpuLock] | None = None

    def enter(self) -> None:
        """Take the GPUs for a test; with the mode ``"fail"``, `GpuBusyError` if one has another holder."""
        if self._mode == "off":
            return
        if self._locks is None:
            self._locks = [GpuLock(name) for name in sorted(set(self._name_devices()))]
        try:
            until = time.monotonic() + self._seconds
            for lock in self._locks:
                lock.acquire(
                    wait=self._mode == "wait",
                    seconds=max(0.0, until - time.monotonic()),
                    before_waiting=self._before_waiting,
                )
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Release the GPUs for the next test; do nothing where none is held."""
        for lock in self._locks or ():
            lock.release()
