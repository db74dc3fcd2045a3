"""A pytest plugin for tests that use GPU memory: who may run where, how much they use, and what they leave.

Installing pymllm makes pytest load it; from a source tree, ``-p pymllm.pytest_plugin`` does. It costs a run
that uses none of it next to nothing: neither torch, Hypothesis nor pynvml is loaded before a test needs them.
Nothing of a project changes until it opts in, by a marker or fixture of this plugin, or by naming a marker of
its own in the ini option ``pymllm_gpu_marker``: what others mean by ``gpu`` is theirs.

``docs/pytest.md`` has the fixtures, markers and options.
"""

from __future__ import annotations

import functools
import inspect
import os
import unittest
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    import torch

    from pymllm.instrument.leaks import LeakVerdict
    from pymllm.testing.gpu_gate import GpuGate
    from pymllm.testing.gpu_memory import GpuMemory, GpuMemoryRecord, LimitVerdict

Answer = TypeVar("Answer")

__all__: list[str] = []  # pytest finds what it needs by name

_GPU = "pymllm_gpu"
_GPU_MEANS = (
    "needs a CUDA device and has it alone; skipped with the reason where there is none, failed there under"
    " --require-gpu."
)
_MARKERS = (
    f"{_GPU}: {_GPU_MEANS}",
    'gpu_memory_limit(size, whole_device=False): fails if the test uses more GPU memory, such as "2 GiB", on'
    " top of what was in use before; with whole_device whoever uses it.",
    "no_leak(epochs=12): runs the test so often and fails if GPU memory grows with each run.",
)
_UNJUDGED = "pymllm unjudged"
_GROUP = ("pymllm", "GPU tests and GPU memory (pymllm)")
_SWITCHES = {
    "--require-gpu": "fail tests that need a GPU where no CUDA device is found, instead of skipping them",
    "--gpu-strict": "fail a test whose limit or leaks nobody could judge, such as on a machine without a GPU",
}
_INI_MARKER = "pymllm_gpu_marker"
_INI_STRICT = "pymllm_gpu_strict"

_gate: pytest.StashKey[GpuGate] = pytest.StashKey()
_memory: pytest.StashKey[GpuMemory] = pytest.StashKey()
_skipped: pytest.StashKey[str] = pytest.StashKey()


# -- options -----------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    group = parser.getgroup(*_GROUP)
    group.addoption(
        "--gpu-lock",
        choices=("wait", "fail", "off"),
        default="wait",
        help="what a test that needs a GPU does while another one, of any process, has it (default: wait)",
    )
    group.addoption(
        "--gpu-memory-log",
        metavar="FILE",
        help="write what each watched test used of a GPU to FILE, a line of JSON each",
    )
    parser.addini(
        _INI_MARKER,
        f"the marker of this project, such as gpu, that means what {_GPU} does (default: none)",
        default="",
    )
    parser.addini(_INI_STRICT, "whether --gpu-strict is always on", type="bool", default=False)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, object, object]:
    """Add the switches whose names a project may have for itself already; then they stay the project's.

    An option with a value is added before: pytest must know it in time to tell its value from a path.
    """
    try:
        return (yield)
    finally:
        for name, help in _SWITCHES.items():
            if not _is_taken(parser, name):
                parser.getgroup(*_GROUP).addoption(name, action="store_true", dest=_dest(name), help=help)


def _is_taken(parser: pytest.Parser, name: str) -> bool:
    try:
        return name not in parser.parse_known_and_unknown_args([name])[1]
    except pytest.UsageError:  # it has a value there
        return True


def _is_on(config: pytest.Config, name: str) -> bool:
    return bool(config.getoption(_dest(name), False))


def _dest(name: str) -> str:
    return "pymllm" + name.replace("-", "_").replace("__", "_")


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known and the log empty."""
    for line in _MARKERS:
        config.addinivalue_line("markers", line)
    theirs = _marker_of(config)
    if theirs:
        if not theirs.isidentifier():
            raise pytest.UsageError(f"{_INI_MARKER}: {theirs!r} is no marker's name; give one, such as gpu")
        config.addinivalue_line("markers", f"{theirs}: {_GPU_MEANS}")
    log = _log_of(config)
    if log is not None and not _is_worker(config):
        try:
            log.write_bytes(b"")
        except OSError as error:
            raise pytest.UsageError(f"--gpu-memory-log={log}: {error.strerror or error}") from None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let go of a GPU that an interrupted test had."""
    _leave(config)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _marker_of(config: pytest.Config) -> str:
    """Return what the project calls its tests that need a GPU; empty where it has not said so."""
    return str(config.getini(_INI_MARKER)).strip()


def _needs_gpu(item: pytest.Item) -> bool:
    theirs = _marker_of(item.config)
    return any(item.get_closest_marker(name) is not None for name in (_GPU, theirs) if name)


def _log_of(config: pytest.Config) -> Path | None:
    name = config.getoption("--gpu-memory-log")
    return None if name is None else Path(config.invocation_params.dir, name)


# -- who may run -------------------------------------------------------------------------------------------


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test of ours the project's marker, too, so that -m finds all that need a GPU by one name."""
    theirs = _marker_of(item.config)
    if theirs and item.get_closest_marker(_GPU) is not None and item.get_closest_marker(theirs) is None:
        item.add_marker(theirs)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse markers without sense, skip a gpu test without a GPU, and else give it the GPU alone."""
    _limit_of(item)
    _epochs_of(item)
    if not _needs_gpu(item):
        return
    from pymllm.testing.gpu_gate import why_no_cuda

    reason = why_no_cuda()
    if reason is None:
        _enter(item.config)
    elif _is_on(item.config, "--require-gpu"):
        pytest.fail(f"needs a CUDA device, and --require-gpu forbids a skip; {reason}", pytrace=False)
    else:
        item.stash[_skipped] = f"needs a CUDA device; {reason}"
        pytest.skip(item.stash[_skipped])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a skip stand where the test does, and not in this file."""
    report = yield
    if report.when == "setup" and report.skipped and _skipped in item.stash:
        path, line, _ = item.reportinfo()
        report.longrepr = (os.fspath(path), (line or 0) + 1, f"Skipped: {item.stash[_skipped]}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Give the GPU to the next test once everything of this one is gone."""
    try:
        return (yield)
    finally:
        _leave(item.config)


def _enter(config: pytest.Config) -> None:
    from pymllm.testing.gpu_gate import GpuBusyError, GpuGate

    if _gate not in config.stash:
        config.stash[_gate] = GpuGate(config.getoption("--gpu-lock"), functools.partial(_say_waiting, config))
    try:
        config.stash[_gate].enter()
    except GpuBusyError as error:
        pytest.fail(f"{error}; --gpu-lock=wait waits for it", pytrace=False)


def _leave(config: pytest.Config) -> None:
    gate = config.stash.get(_gate, None)
    if gate is not None:
        gate.leave()


def _say_waiting(config: pytest.Config, who: str) -> None:
    """Tell a person why nothing happens; a worker of xdist has nobody to tell."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter is not None:
        with nullcontext() if capture is None else capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(f"waiting for a GPU: {who}")


# -- how much they use -------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Watch the memory of a test that has a limit or asks for it, and judge the limit."""
    limit = _limit_of(item)
    if limit is None and _memory not in item.stash:
        return (yield)
    from pymllm.testing.memory_text import record_text

    memory = item.stash[_memory] if _memory in item.stash else _make_memory()
    is_timed = "benchmark" in getattr(item, "fixturenames", ())
    record: GpuMemoryRecord | None = None
    verdict: LimitVerdict | None = None
    try:
        with memory, memory.paused() if is_timed else nullcontext():
            result = yield
    finally:
        record = memory.summary()
        verdict = None if limit is None else record.judge(*limit)
        item.add_report_section("call", "GPU memory", record_text(record, verdict))
        _log(item, record, verdict)
    if verdict is not None:
        _act_on(item, verdict)
    return result


def _act_on(item: pytest.Item, verdict: LimitVerdict) -> None:
    if verdict.outcome.value == "exceeded":
        pytest.fail(f"GPU memory: {verdict}", pytrace=False)
    if verdict.outcome.value == "unknown":
        _note_unjudged(item, f"gpu_memory_limit: {verdict.found.reason}")


def _limit_of(item: pytest.Item) -> tuple[int, bool] | None:
    marker = item.get_closest_marker("gpu_memory_limit")
    if marker is None:
        return None
    from pymllm.testing.gpu_memory import parse_bytes

    def read(size: int | str, *, whole_device: bool = False) -> tuple[int, bool]:
        return parse_bytes(size), whole_device

    return _read_marker(marker, read)


def _make_memory() -> GpuMemory:
    from pymllm.testing.gpu_memory import GpuMemory

    return GpuMemory()


def _log(item: pytest.Item, record: GpuMemoryRecord, verdict: LimitVerdict | None) -> None:
    """Add a line to the log in one piece, whoever else adds lines."""
    path = _log_of(item.config)
    if path is None:
        return
    from pymllm.testing.memory_text import make_line

    line = make_line(item.nodeid, os.environ.get("PYTEST_XDIST_WORKER", "main"), record, verdict)
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


# -- what they leave ---------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run a test that may not leak so often, and judge."""
    epochs = _epochs_of(pyfuncitem)
    if epochs is None:
        return (yield)
    once = pyfuncitem.obj

    @functools.wraps(once)
    def repeated(**arguments: Any) -> None:
        _judge_epochs(pyfuncitem, functools.partial(once, **arguments), epochs=epochs)

    pyfuncitem.obj = repeated
    try:
        return (yield)
    finally:
        pyfuncitem.obj = once


def _epochs_of(item: pytest.Item) -> int | None:
    """Return how often a test is to be run; a test that cannot be repeated fails here."""
    marker = item.get_closest_marker("no_leak")
    if marker is None:
        return None
    if not isinstance(item, pytest.Function) or issubclass(item.cls or object, unittest.TestCase):
        pytest.fail("no_leak repeats test functions only, and this is none of pytest's", pytrace=False)
    if inspect.iscoroutinefunction(item.obj):
        pytest.fail("no_leak cannot repeat a coroutine: use leak_check inside it", pytrace=False)
    from pymllm.testing.leak_epochs import EPOCHS, check_epochs

    def read(*, epochs: int = EPOCHS) -> int:
        check_epochs(epochs)
        return epochs

    return _read_marker(marker, read)


def _judge_epochs(item: pytest.Item, work: Callable[[], object], **options: Any) -> LeakVerdict:
    """Run the epochs, put the verdict into the report, and fail for a leak."""
    from pymllm.testing.leak_epochs import run_epochs, why_unknown

    __tracebackhide__ = True  # what is wrong with the work, or with a call, is in the test
    verdict = run_epochs(work, **options)
    item.add_report_section("call", "leaks", str(verdict))
    if verdict.leaking:
        pytest.fail("memory leaks: " + "; ".join(map(str, verdict.leaking)), pytrace=False)
    reason = why_unknown(verdict)
    if reason is not None:
        _note_unjudged(item, f"leaks: {reason}")
    return verdict


# -- fixtures ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.pymllm_gpu)])
def kv_device(request: pytest.FixtureRequest) -> torch.device:
    """Each device that a test is to run on: the CPU always, CUDA as a test that needs a GPU."""
    try:
        import torch
    except ModuleNotFoundError as error:
        pytest.fail(f"kv_device needs torch; pip install 'pymllm[torch]' brings it: {error}", pytrace=False)
    return torch.device(request.param)


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> GpuMemory:
    """Watch GPU memory while the test's body runs: ``summary()``, ``curve``, ``paused()``."""
    memory = _make_memory()
    request.node.stash[_memory] = memory
    return memory


@pytest.fixture
def leak_check(request: pytest.FixtureRequest) -> Callable[..., LeakVerdict]:
    """Run work again and again and fail if it leaks: ``leak_check(work, epochs=12, slots=None)``."""
    return functools.partial(_judge_epochs, request.node)


# -- what nobody could judge -------------------------------------------------------------------------------


def _note_unjudged(item: pytest.Item, why: str) -> None:
    """Keep a promise in mind that was not examined; where that is forbidden, it is a failure."""
    config = item.config
    forbidden = {
        "--gpu-strict": _is_on(config, "--gpu-strict"),
        _INI_STRICT: config.getini(_INI_STRICT),
        "--require-gpu": _is_on(config, "--require-gpu") and _needs_gpu(item),
    }
    for name, is_forbidden in forbidden.items():
        if is_forbidden:
            pytest.fail(f"not judged, which {name} forbids: {why}", pytrace=False)
    item.user_properties.append((_UNJUDGED, why))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which limits and leaks nobody could judge, and why, and which options had nothing to act on."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    reasons = Counter(
        value
        for report in reports
        if report.when == "call"
        for name, value in report.user_properties
        if name == _UNJUDGED
    )
    if reasons:
        terminalreporter.section("not judged (pymllm)")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count} {'test' if count == 1 else 'tests'}: {reason}")
    idle = [] if config.option.collectonly else list(_idle_options(config, reports))
    if idle:
        terminalreporter.section("without effect (pymllm)")
        for line in idle:
            terminalreporter.write_line(line)


def _idle_options(config: pytest.Config, reports: Sequence[pytest.TestReport]) -> Iterator[str]:
    """Yield which options of this plugin were given and changed nothing, and what it takes."""
    if not _marker_of(config) and not any(_GPU in report.keywords for report in reports):
        given = {
            "--require-gpu": _is_on(config, "--require-gpu"),
            "--gpu-lock": config.getoption("--gpu-lock") != "wait",
        }
        for name, is_given in given.items():
            if is_given:
                yield (
                    f"{name}: no test that ran is marked {_GPU}; where this project has a marker of its own"
                    f" for such tests, name it in its settings: {_INI_MARKER} = gpu"
                )
    log = _log_of(config)
    if log is not None and not log.stat().st_size:
        yield f"--gpu-memory-log: {log} is empty; gpu_memory_limit and gpu_memory watch a test"


def _read_marker(marker: pytest.Mark, read: Callable[..., Answer]) -> Answer:
    """Read a marker's arguments; one that makes no sense fails the test before it runs."""
    read.__qualname__ = marker.name  # what Python says of arguments that do not fit begins with it
    try:
        return read(*marker.args, **marker.kwargs)
    except (TypeError, ValueError) as error:
        wrong = str(error)
    # Not inside the handler, or pytest shows the error twice.
    pytest.fail(f"marker {marker.name}: {wrong}", pytrace=False)
