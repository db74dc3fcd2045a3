"""A machine with GPUs that do not exist: a fake NVML, built where there is a compiler, under the real pynvml.

A test is run in a process of its own, because a process loads one ``libnvidia-ml.so.1`` and keeps it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
ROOT = Path(__file__).parents[2]
NAME = "libnvidia-ml.so.1"
STATE = "FAKE_NVML_STATE"
GIB = 1 << 30
MIB = 1 << 20


class FakeNvml:
    """Builds the library, and runs programs that find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def built(self, without: Sequence[str] = ()) -> Path:
        """The folder of a library that lacks some functions."""
        compiler = shutil.which("cc")
        missing = "a C compiler, cc" if compiler is None else "nvidia-ml-py"
        if compiler is None or importlib.util.find_spec("pynvml") is None:
            import pytest  # The processes that this starts need not pay for it.

            pytest.skip(f"needs {missing}, for the fake NVML under the real pynvml")
        folder = self.folder / "-".join(["nvml", *sorted(without)])
        if not (folder / NAME).exists():
            folder.mkdir(exist_ok=True)
            flags = ["-Wall", "-Wextra", "-Wno-unused-function", "-O1", "-shared", "-fPIC", "-pthread"]
            lacking = [f"-DWITHOUT_{name}" for name in without]
            subprocess.run([compiler, *flags, *lacking, "-o", folder / NAME, SOURCE], check=True, timeout=60)
        return folder

    def environment(self, folder: Path, **state: object) -> dict[str, str]:
        """Return the environment in which a process finds the library in ``folder``, on a machine so set."""
        path = self.folder / f"state-{os.urandom(4).hex()}"
        write_state(path, state)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
        others = [os.environ[name] for name in ("LD_LIBRARY_PATH",) if os.environ.get(name)]
        return {**kept, STATE: str(path), "LD_LIBRARY_PATH": os.pathsep.join([str(folder), *others])}

    def run(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], **state: object
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on such a machine."""
        return subprocess.run(
            command,
            env={**self.environment(folder, **state), **environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )


def on_machine(
    *, without: Sequence[str] = (), environment: Mapping[str, str] | None = None, **state: object
) -> Callable[[Callable[[], None]], Callable[[FakeNvml], None]]:
    """Run the body of a test in a process whose NVML is the fake one.

    ``state`` has the lines of its file, ``__`` standing for a dot; ``without`` the functions that it lacks.
    """

    def launched(body: Callable[[], None]) -> Callable[[FakeNvml], None]:
        def test(fake_nvml: FakeNvml) -> None:
            code = f"import importlib; importlib.import_module({body.__module__!r}).{body.__name__}.body()"
            command = [sys.executable, "-W", "error", "-c", code]
            done = fake_nvml.run(command, fake_nvml.built(without), environment or {}, **state)
            assert done.returncode == 0, done.stdout + done.stderr

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.body = body  # type: ignore[attr-defined]
        return test

    return launched


def say(**state: object) -> None:
    """Change the machine that this process runs on, as a whole: what is not said again is the default."""
    write_state(Path(os.environ[STATE]), state)


def calls(function: str) -> int:
    """How often this process has called a function of the library."""
    library = ctypes.CDLL(NAME)
    library.fake_nvml_calls.restype = ctypes.c_ulonglong
    return int(library.fake_nvml_calls(function.encode()))


def users() -> int:
    """How many have initialised the library in this process and not shut it down."""
    return int(ctypes.CDLL(NAME).fake_nvml_users())


def readers() -> int:
    """How many threads of this process are reading a device's memory now."""
    return int(ctypes.CDLL(NAME).fake_nvml_readers())


def write_state(path: Path, state: Mapping[str, object]) -> None:
    """Replace the file of a machine's state; a reader sees the old file or the new file."""
    lines = [f"{key.replace('__', '.')} {value}\n" for key, value in state.items()]
    new = path.with_suffix(".new")
    new.write_text("".join(lines), encoding="utf-8")
    new.replace(path)


def raised(kind: type[Exception], function: Callable[..., object], *arguments: object) -> str:
    """Return what an error of ``kind`` says, which a call must raise; without pytest, which loads slowly."""
    try:
        function(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")
