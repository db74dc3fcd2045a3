"""The plugin's options, markers and ini settings, and the functions that read them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

GPU = "pymllm_gpu"
_GPU_MEANS = (
    "the test needs a CUDA device, and runs while no other test has it; without a device it is skipped, or"
    " fails under --require-gpu."
)
MARKERS = (
    f"{GPU}: {_GPU_MEANS}",
    "gpu_memory_limit(size, whole_device=False): the test fails if it uses more GPU memory than size, such as"
    ' "2 GiB", on top of what was in use before; with whole_device, memory of other processes counts, too.',
    "no_leak(epochs=12): the test runs that many times, and fails if GPU memory grows with each run.",
)
_GROUP = ("pymllm", "GPU tests and GPU memory (pymllm)")
SWITCHES = {
    "--require-gpu": "fail tests that need a GPU where no CUDA device is found, instead of skipping them",
    "--gpu-strict": "fail a test whose limit or leaks nobody could judge, such as on a machine without a GPU,"
    " and one that needs a GPU and touches none",
}
INI_MARKER = "pymllm_gpu_marker"
_INI_STRICT = "pymllm_gpu_strict"
_INI_WAIT = "pymllm_gpu_wait"
_MODES = ("wait", "fail", "off")
_MOST_SECONDS = 86400
TIMEOUT = 1800.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    group = parser.getgroup(*_GROUP)
    group.addoption(
        "--gpu-lock",
        metavar="wait|wait:SECONDS|fail|off",
        type=_read_lock,
        default="wait",
        help="what a test that needs a GPU does while a test of any process has it: wait for it, at most an"
        " hour or so many seconds, fail, or run all the same (default: wait)",
    )
    group.addoption(
        "--gpu-timeout",
        metavar="SECONDS",
        type=_read_seconds,
        default=TIMEOUT,
        help="end the worker, or the run where there is none, in which a test that needs a GPU takes longer,"
        " and show the stacks of its threads; 0 never does (default: 1800)",
    )
    group.addoption(
        "--gpu-memory-log",
        metavar="FILE",
        help="write what each watched test used of a GPU to FILE, a line of JSON each",
    )
    group.addoption(
        "--gpu-shard",
        metavar="N/M",
        type=_read_shard,
        help="of the tests that need a GPU run only those of shard N of M, such as 1/3",
    )
    group.addoption(
        "--gpu-per-worker",
        action="store_true",
        help="let each worker of pytest-xdist see one of the GPUs that there are, in turn",
    )
    parser.addini(
        INI_MARKER,
        f"this project's own marker, such as gpu, for the tests that need a GPU, in place of {GPU}"
        " (default: none)",
        default="",
    )
    parser.addini(_INI_STRICT, "whether --gpu-strict is always on", type="bool", default=False)
    parser.addini(
        _INI_WAIT,
        "seconds that each test which needs a GPU waits at its end for the GPU's memory to come back, at most"
        " (default: only tests with wait_for_gpu_memory wait)",
        default="",
    )


def _read_lock(text: str) -> str:
    mode, colon, seconds = text.partition(":")
    if mode not in _MODES or (colon and mode != "wait"):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(_MODES)} and wait:SECONDS")
    if colon:
        _read_seconds(seconds)
    return text


def lock_of(config: pytest.Config) -> tuple[str, float]:
    """Return a test's action when a GPU is in use, and the longest wait in seconds."""
    mode, _, seconds = str(config.getoption("--gpu-lock")).partition(":")
    return mode, float(seconds or 3600)


def timeout_of(config: pytest.Config) -> float:
    """Return the time limit in seconds of a test that needs a GPU; 0 for none."""
    return float(config.getoption("--gpu-timeout"))


def _read_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds in 0..{_MOST_SECONDS}")
    return seconds


def _read_shard(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise argparse.ArgumentTypeError(f"{text!r} is no shard N/M, N in 1..M; 1/3 is the first of three")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, object, object]:
    """Add the plugin's switches, except those whose names the project uses itself.

    An option with a value is added before: pytest must know it in time to tell its value from a path.
    """
    try:
        return (yield)
    finally:
        for name, help in SWITCHES.items():
            if not _is_taken(parser, name):
                parser.getgroup(*_GROUP).addoption(name, action="store_true", dest=_dest(name), help=help)


def _is_taken(parser: pytest.Parser, name: str) -> bool:
    try:
        return name not in parser.parse_known_and_unknown_args([name])[1]
    except pytest.UsageError:  # it has a value there
        return True


def is_on(config: pytest.Config, name: str) -> bool:
    """Tell whether a switch of `SWITCHES` was given."""
    return bool(config.getoption(_dest(name), False))


def _dest(name: str) -> str:
    return "pymllm" + name.replace("-", "_").replace("__", "_")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and clear the log."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    theirs = marker_of(config)
    if theirs:
        if not theirs.isidentifier():
            raise pytest.UsageError(f"{INI_MARKER}: {theirs!r} is no marker's name; give one, such as gpu")
        config.addinivalue_line("markers", f"{theirs}: {_GPU_MEANS}")
    seconds_of(config)
    if config.getoption("--gpu-per-worker") and is_worker(config):
        show_one_gpu(str(config.workerinput["workerid"]))  # type: ignore[attr-defined]  # xdist's
    log = log_of(config)
    if log is not None and not is_worker(config):
        try:
            log.write_bytes(b"")
        except OSError as error:
            raise pytest.UsageError(f"--gpu-memory-log={log}: {error.strerror or error}") from None


def show_one_gpu(worker: str) -> None:
    """Let CUDA show this process one GPU, before anything uses it: the worker's number decides which."""
    from pymllm.instrument.nvml_device import VARIABLE, device_names
    from pymllm.instrument.reading import Unreadable

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise pytest.UsageError(
            "--gpu-per-worker: CUDA is in use before the first test; let fixtures start it"
        )
    try:
        names = device_names(os.environ)
    except Unreadable as reason:
        raise pytest.UsageError(f"--gpu-per-worker: {reason}; name the GPUs in {VARIABLE}") from None
    if names:
        os.environ[VARIABLE] = names[int(worker.removeprefix("gw")) % len(names)]


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def marker_of(config: pytest.Config) -> str:
    """Return the project's own marker for tests that need a GPU; empty where the project names none."""
    return str(config.getini(INI_MARKER)).strip()


def needs_gpu(item: pytest.Item) -> bool:
    """Whether a test has this plugin's marker for GPU tests, or the project's own."""
    theirs = marker_of(item.config)
    return any(item.get_closest_marker(name) is not None for name in (GPU, theirs) if name)


def seconds_of(config: pytest.Config) -> float | None:
    """Return how long each test that needs a GPU waits for memory; ``None`` where no time is set."""
    text = str(config.getini(_INI_WAIT)).strip()
    try:
        seconds = float(text) if text else None
    except ValueError:
        seconds = -1.0
    if seconds is not None and not 0 <= seconds <= 3600:
        raise pytest.UsageError(f"{_INI_WAIT}: {text!r} is no number of seconds in 0..3600; 30 is usual")
    return seconds


def log_of(config: pytest.Config) -> Path | None:
    """Return the file of ``--gpu-memory-log``, if given."""
    name = config.getoption("--gpu-memory-log")
    return None if name is None else Path(config.invocation_params.dir, name)


def strictness(config: pytest.Config) -> dict[str, bool]:
    """Return the option that makes a run strict, and whether it is on."""
    return {"--gpu-strict": is_on(config, "--gpu-strict"), _INI_STRICT: bool(config.getini(_INI_STRICT))}
