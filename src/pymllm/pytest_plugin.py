"""A pytest plugin for tests that use GPU memory: who may run where, how much they use, and what they leave.

Installing pymllm makes pytest load it; from a source tree, ``-p pymllm.pytest_plugin`` does. It costs a run
that uses none of it next to nothing: neither torch, Hypothesis nor pynvml is loaded before a test needs them.
Nothing of a project changes until it opts in, by a marker or fixture of this plugin, or by naming a marker of
its own in the ini option ``pymllm_gpu_marker``: what others mean by ``gpu`` is theirs.

``docs/pytest.md`` has the fixtures, markers and options.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import os
import unittest
import zlib
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
    from pymllm.testing.gpu_use import GpuTouch, MemoryReturn

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
_UNTOUCHED = "pymllm untouched"
_GROUP = ("pymllm", "GPU tests and GPU memory (pymllm)")
_SWITCHES = {
    "--require-gpu": "fail tests that need a GPU where no CUDA device is found, instead of skipping them",
    "--gpu-strict": "fail a test whose limit or leaks nobody could judge, such as on a machine without a GPU,"
    " and one that needs a GPU and touches none",
}
_INI_MARKER = "pymllm_gpu_marker"
_INI_STRICT = "pymllm_gpu_strict"
_INI_WAIT = "pymllm_gpu_wait"

_gate: pytest.StashKey[GpuGate] = pytest.StashKey()
_memory: pytest.StashKey[GpuMemory] = pytest.StashKey()
_skipped: pytest.StashKey[str] = pytest.StashKey()
_touch: pytest.StashKey[GpuTouch] = pytest.StashKey()
_return: pytest.StashKey[MemoryReturn] = pytest.StashKey()
_failed: pytest.StashKey[bool] = pytest.StashKey()


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
    group.addoption(
        "--gpu-shard",
        metavar="N/M",
        type=_read_shard,
        help="of the tests that need a GPU run only those of shard N of M, such as 1/3",
    )
    parser.addini(
        _INI_MARKER,
        f"the marker of this project, such as gpu, that means what {_GPU} does (default: none)",
        default="",
    )
    parser.addini(_INI_STRICT, "whether --gpu-strict is always on", type="bool", default=False)
    parser.addini(
        _INI_WAIT,
        "seconds that each test which needs a GPU waits at its end for the GPU's memory to come back, at most"
        " (default: only tests with wait_for_gpu_memory wait)",
        default="",
    )


def _read_shard(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise argparse.ArgumentTypeError(f"{text!r} is no shard N/M, N in 1..M; 1/3 is the first of three")


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
    _seconds_of(config)
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


def _seconds_of(config: pytest.Config) -> float | None:
    """Return how long each test that needs a GPU waits for memory; ``None`` where nobody has said so."""
    text = str(config.getini(_INI_WAIT)).strip()
    try:
        seconds = float(text) if text else None
    except ValueError:
        seconds = -1.0
    if seconds is not None and not 0 <= seconds <= 3600:
        raise pytest.UsageError(f"{_INI_WAIT}: {text!r} is no number of seconds in 0..3600; 30 is usual")
    return seconds


def _log_of(config: pytest.Config) -> Path | None:
    name = config.getoption("--gpu-memory-log")
    return None if name is None else Path(config.invocation_params.dir, name)


# -- who may run -------------------------------------------------------------------------------------------


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test of ours the project's marker, too, so that -m finds all that need a GPU by one name."""
    theirs = _marker_of(item.config)
    if theirs and item.get_closest_marker(_GPU) is not None and item.get_closest_marker(theirs) is None:
        item.add_marker(theirs)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that need a GPU and are in other shards: by their ids, whatever else is collected."""
    shard = config.getoption("--gpu-shard")
    if shard is None:
        return
    number, count = shard
    others = {it for it in items if _needs_gpu(it) and zlib.crc32(it.nodeid.encode()) % count != number - 1}
    if others:
        config.hook.pytest_deselected(items=[it for it in items if it in others])
        items[:] = [it for it in items if it not in others]


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
        _look_before(item)
    elif _is_on(item.config, "--require-gpu"):
        pytest.fail(f"needs a CUDA device, and --require-gpu forbids a skip; {reason}", pytrace=False)
    else:
        item.stash[_skipped] = f"needs a CUDA device; {reason}"
        pytest.skip(item.stash[_skipped])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a skip stand where the test does, and not in this file."""
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    if report.when == "setup" and report.skipped and _skipped in item.stash:
        path, line, _ = item.reportinfo()
        report.longrepr = (os.fspath(path), (line or 0) + 1, f"Skipped: {item.stash[_skipped]}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Give the GPU to the next test once all of this one is gone; where asked for, its memory, too."""
    try:
        result = yield
        if _return in item.stash:
            _wait_for_memory(item, _seconds_of(item.config))
        return result
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
        result = yield
        _judge_touch(item)
        return result
    from pymllm.testing.memory_text import record_text

    memory = item.stash[_memory] if _memory in item.stash else _make_memory()
    is_timed = "benchmark" in getattr(item, "fixturenames", ())
    record: GpuMemoryRecord | None = None
    verdict: LimitVerdict | None = None
    untouched: str | None = None
    try:
        with memory, memory.paused() if is_timed else nullcontext():
            result = yield
    finally:
        record = memory.summary()
        verdict = None if limit is None else record.judge(*limit)
        item.add_report_section("call", "GPU memory", record_text(record, verdict))
        untouched = _why_untouched(item)
        _log(item, record, verdict, untouched)
    if verdict is not None:
        _act_on(item, verdict)
    if untouched is not None:
        _note_untouched(item, untouched)
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


def _log(
    item: pytest.Item, record: GpuMemoryRecord, verdict: LimitVerdict | None, untouched: str | None
) -> None:
    """Add a line to the log in one piece, whoever else adds lines."""
    path = _log_of(item.config)
    if path is None:
        return
    from pymllm.testing.memory_text import make_line

    line = make_line(item.nodeid, os.environ.get("PYTEST_XDIST_WORKER", "main"), record, verdict, untouched)
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


# -- whether they use it, and give it back -----------------------------------------------------------------


def _look_before(item: pytest.Item) -> None:
    """Look at a GPU before the fixtures of a test that needs it."""
    from pymllm.testing.gpu_use import GpuTouch

    item.stash[_touch] = GpuTouch()
    if _seconds_of(item.config) is not None:
        _expect_memory(item)


def _why_untouched(item: pytest.Item) -> str | None:
    return item.stash[_touch].why_untouched() if _touch in item.stash else None


def _judge_touch(item: pytest.Item) -> None:
    """Note a test that needs a GPU, has passed, and touched none; nobody watched its memory for the log."""
    why = _why_untouched(item)
    if why is None:
        return
    if _log_of(item.config) is not None:
        with _make_memory() as memory:
            pass
        _log(item, memory.summary(), None, why)
    _note_untouched(item, why)


def _note_untouched(item: pytest.Item, why: str) -> None:
    for name, is_forbidden in _strictness(item.config).items():
        if is_forbidden:
            pytest.fail(f"needs a GPU and touched none, which {name} forbids: {why}", pytrace=False)
    item.user_properties.append((_UNTOUCHED, f"{item.nodeid}: {why}"))


def _expect_memory(item: pytest.Item) -> None:
    """Read the memory that a test is to leave in use, at most."""
    from pymllm.testing.gpu_use import MemoryReturn

    if _return in item.stash:
        return
    item.stash[_return] = MemoryReturn()
    if item.stash[_return].unknown is not None:
        _note_unjudged(item, f"wait_for_gpu_memory: {item.stash[_return].unknown}")


def _wait_for_memory(
    item: pytest.Item, seconds: float | None, *, is_over: bool = True, **options: Any
) -> None:
    """Wait until memory has come back, and fail a test whose memory does not, with who has it."""
    from pymllm.testing.gpu_use import SECONDS

    __tracebackhide__ = True
    memory, has_failed = item.stash[_return], item.stash.get(_failed, False)
    try:
        reason = None
        if memory.unknown is None:
            reason = memory.wait(SECONDS if seconds is None else seconds, without_own=has_failed, **options)
    finally:
        if is_over:
            memory.close()
            del item.stash[_return]
    if reason is not None:
        pytest.fail(f"GPU memory of {item.nodeid} has not come back: {reason}", pytrace=False)


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
    section = str(verdict)
    if verdict.leaking:
        from pymllm.testing.gpu_use import process_name, who_holds

        section += f"\nin {process_name(os.getpid())}; of the GPU's memory: {who_holds()}"
    item.add_report_section("call", "leaks", section)
    if verdict.leaking:
        found = "; ".join(map(str, verdict.leaking))
        pytest.fail(f"memory leaks: {found}; in process {os.getpid()}, test {item.nodeid}", pytrace=False)
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


@pytest.fixture
def wait_for_gpu_memory(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Wait after a test until GPU memory is as before; or when called, ``(seconds=30, slack="256 MiB")``."""
    _expect_memory(request.node)

    def wait(seconds: float | None = None, **options: Any) -> None:
        __tracebackhide__ = True
        _wait_for_memory(request.node, seconds, is_over=False, **options)

    return wait


# -- what nobody could judge -------------------------------------------------------------------------------


def _note_unjudged(item: pytest.Item, why: str) -> None:
    """Keep a promise in mind that was not examined; where that is forbidden, it is a failure."""
    forbidden = _strictness(item.config)
    forbidden["--require-gpu"] = _is_on(item.config, "--require-gpu") and _needs_gpu(item)
    for name, is_forbidden in forbidden.items():
        if is_forbidden:
            pytest.fail(f"not judged, which {name} forbids: {why}", pytrace=False)
    item.user_properties.append((_UNJUDGED, why))


def _strictness(config: pytest.Config) -> dict[str, bool]:
    """Return what makes a run strict, and whether it is on."""
    return {"--gpu-strict": _is_on(config, "--gpu-strict"), _INI_STRICT: bool(config.getini(_INI_STRICT))}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what nobody could judge, which tests touched no GPU, and which options had nothing to act on."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    noted = [it for report in reports if report.when == "call" for it in report.user_properties]
    untouched = [value for name, value in noted if name == _UNTOUCHED]
    if untouched:
        terminalreporter.section("need a GPU and touched none (pymllm)")
        for line in untouched:
            terminalreporter.write_line(str(line))
    reasons = Counter(value for name, value in noted if name == _UNJUDGED)
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
            "--gpu-shard": config.getoption("--gpu-shard") is not None,
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
