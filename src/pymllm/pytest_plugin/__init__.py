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
import zlib
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pymllm.pytest_plugin.faults import (
    begin_limit,
    end_limit,
    let_go,
    look_at_health,
    own_faults,
    pytest_enter_pdb,
    pytest_runtest_protocol,
    say,
    why_dead,
)
from pymllm.pytest_plugin.growth import judge_epochs
from pymllm.pytest_plugin.promises import (
    expect_memory,
    expects_memory,
    look_before,
    note_unjudged,
    note_untouched,
    pytest_terminal_summary,
    wait_for_memory,
    why_untouched,
)
from pymllm.pytest_plugin.settings import (
    GPU,
    is_on,
    lock_of,
    log_of,
    marker_of,
    needs_gpu,
    pytest_addoption,
    pytest_configure,
    pytest_load_initial_conftests,
    seconds_of,
)

if TYPE_CHECKING:
    import torch

    from pymllm.instrument.gpu_memory import GpuMemory, GpuMemoryRecord, LimitVerdict
    from pymllm.instrument.leaks import LeakVerdict
    from pymllm.pytest_plugin.gpu_gate import GpuGate

Answer = TypeVar("Answer")

# Pytest finds hooks and fixtures by name; these are from the modules beside this one.
__all__ = [
    "pytest_addoption",
    "pytest_configure",
    "pytest_enter_pdb",
    "pytest_load_initial_conftests",
    "pytest_runtest_protocol",
    "pytest_terminal_summary",
]

_gate: pytest.StashKey[GpuGate] = pytest.StashKey()
_memory: pytest.StashKey[GpuMemory] = pytest.StashKey()
_skipped: pytest.StashKey[str] = pytest.StashKey()
_failed: pytest.StashKey[bool] = pytest.StashKey()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Release a GPU that an interrupted test held."""
    _leave(config)
    let_go(config)


# -- who may run -------------------------------------------------------------------------------------------


def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the project's own marker to tests with this plugin's, so that -m with it selects all GPU tests."""
    theirs = marker_of(item.config)
    if theirs and item.get_closest_marker(GPU) is not None and item.get_closest_marker(theirs) is None:
        item.add_marker(theirs)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect GPU tests of other shards: by their ids, whatever else is collected."""
    shard = config.getoption("--gpu-shard")
    if shard is None:
        return
    number, count = shard
    others = {it for it in items if needs_gpu(it) and zlib.crc32(it.nodeid.encode()) % count != number - 1}
    if others:
        config.hook.pytest_deselected(items=[it for it in items if it in others])
        items[:] = [it for it in items if it not in others]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse markers with wrong arguments; give a GPU test the GPU alone, or skip it without a GPU."""
    _limit_of(item)
    _epochs_of(item)
    if not needs_gpu(item):
        return
    dead = why_dead(item.config)
    if dead is not None:
        item.stash[_skipped] = f"not run, as the CUDA context of this process is dead: {dead}"
        pytest.skip(item.stash[_skipped])
    from pymllm.pytest_plugin.gpu_gate import why_no_cuda

    reason = why_no_cuda()
    if reason is None:
        _enter(item.config)
        look_at_health(item)
        look_before(item)
        begin_limit(item)
    elif is_on(item.config, "--require-gpu"):
        pytest.fail(f"needs a CUDA device, and --require-gpu forbids a skip; {reason}", pytrace=False)
    else:
        item.stash[_skipped] = f"needs a CUDA device; {reason}"
        pytest.skip(item.stash[_skipped])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skipped GPU test at its own file and line, not at this file's."""
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    if report.when == "setup" and report.skipped and _skipped in item.stash:
        path, line, _ = item.reportinfo()
        report.longrepr = (os.fspath(path), (line or 0) + 1, f"Skipped: {item.stash[_skipped]}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the test's memory to come back if requested, then give the GPU to the next test."""
    try:
        with own_faults(item):
            result = yield
        if expects_memory(item):
            wait_for_memory(
                item, seconds_of(item.config), has_failed=item.stash.get(_failed, False), is_over=True
            )
        return result
    finally:
        if needs_gpu(item):
            end_limit()
        _leave(item.config)


def _enter(config: pytest.Config) -> None:
    from pymllm.pytest_plugin.gpu_gate import GpuBusyError, GpuGate

    mode, seconds = lock_of(config)
    if _gate not in config.stash:
        config.stash[_gate] = GpuGate(mode, functools.partial(_say_waiting, config), seconds=seconds)
    try:
        config.stash[_gate].enter()
    except GpuBusyError as error:
        remedy = "--gpu-lock=wait waits for it" if mode == "fail" else "--gpu-lock=wait:SECONDS waits longer"
        busy = f"{error}; {remedy}"
    else:
        return
    # Not inside the handler, or pytest shows the error twice.
    pytest.fail(busy, pytrace=False)


def _say_waiting(config: pytest.Config, who: str) -> None:
    say(config, f"waiting for a GPU: {who}")


def _leave(config: pytest.Config) -> None:
    gate = config.stash.get(_gate, None)
    if gate is not None:
        gate.leave()


# -- how much they use -------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Watch the memory of a test with a limit or with logging, and judge the limit."""
    limit = _limit_of(item)
    if limit is None and _memory not in item.stash:
        with own_faults(item):
            result = yield
        _judge_touch(item)
        return result
    memory = item.stash[_memory] if _memory in item.stash else _make_memory()
    is_timed = "benchmark" in getattr(item, "fixturenames", ())
    verdict: LimitVerdict | None = None
    untouched: str | None = None
    try:
        with memory, memory.paused() if is_timed else nullcontext(), own_faults(item):
            result = yield
    finally:
        verdict = None if limit is None else memory.judge(*limit)
        untouched = why_untouched(item)
        _report(item, memory, limit, untouched)
    if verdict is not None:
        _act_on(item, verdict)
    if untouched is not None:
        note_untouched(item, untouched)
    return result


def _act_on(item: pytest.Item, verdict: LimitVerdict) -> None:
    if verdict.outcome.value == "exceeded":
        pytest.fail(f"GPU memory: {verdict}", pytrace=False)
    if verdict.outcome.value == "unknown":
        note_unjudged(item, f"gpu_memory_limit: {verdict.found.reason}")


def _limit_of(item: pytest.Item) -> tuple[int, bool] | None:
    marker = item.get_closest_marker("gpu_memory_limit")
    if marker is None:
        return None
    from pymllm.instrument.gpu_memory import parse_bytes

    def read(size: int | str, *, whole_device: bool = False) -> tuple[int, bool]:
        return parse_bytes(size), whole_device

    return _read_marker(marker, read)


def _make_memory() -> GpuMemory:
    from pymllm.instrument.gpu_memory import GpuMemory

    return GpuMemory()


def _report(
    item: pytest.Item, memory: GpuMemory, limit: tuple[int, bool] | None, untouched: str | None
) -> None:
    """Write a test's use of each device that it touched into the test's report and the log."""
    from pymllm.instrument.gpu_memory import record_text

    for record in memory.touched():
        verdict = None if limit is None else record.judge(*limit)
        name = "GPU memory" if record.index is None else f"GPU memory of cuda:{record.index}"
        item.add_report_section("call", name, record_text(record, verdict))
        _log(item, record, verdict, untouched)


def _log(
    item: pytest.Item, record: GpuMemoryRecord, verdict: LimitVerdict | None, untouched: str | None
) -> None:
    """Append a line about a test to the log in one write, since other processes append to it as well."""
    path = log_of(item.config)
    if path is None:
        return
    from pymllm.instrument.gpu_memory import make_line

    line = make_line(item.nodeid, os.environ.get("PYTEST_XDIST_WORKER", "main"), record, verdict, untouched)
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def _judge_touch(item: pytest.Item) -> None:
    """Note a GPU test that passed without touching a GPU, and log it, as its memory was not watched."""
    why = why_untouched(item)
    if why is None:
        return
    if log_of(item.config) is not None:
        with _make_memory() as memory:
            pass
        _log(item, memory.summary(), None, why)
    note_untouched(item, why)


# -- what they leave ---------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Repeat a test marked ``no_leak`` as often as the marker says, and judge whether memory grew."""
    epochs = _epochs_of(pyfuncitem)
    if epochs is None:
        return (yield)
    once = pyfuncitem.obj

    @functools.wraps(once)
    def repeated(**arguments: Any) -> None:
        judge_epochs(pyfuncitem, functools.partial(once, **arguments), epochs=epochs)

    pyfuncitem.obj = repeated
    try:
        return (yield)
    finally:
        pyfuncitem.obj = once


def _epochs_of(item: pytest.Item) -> int | None:
    """Return the number of runs that ``no_leak`` demands; fail a test that cannot be repeated."""
    marker = item.get_closest_marker("no_leak")
    if marker is None:
        return None
    if not isinstance(item, pytest.Function) or issubclass(item.cls or object, unittest.TestCase):
        pytest.fail("no_leak can repeat only pytest's test functions, and this is not one", pytrace=False)
    if inspect.iscoroutinefunction(item.obj):
        pytest.fail("no_leak cannot repeat a coroutine: use leak_check inside it", pytrace=False)
    from pymllm.instrument.leaks import EPOCHS, check_epochs

    def read(*, epochs: int = EPOCHS) -> int:
        check_epochs(epochs)
        return epochs

    return _read_marker(marker, read)


# -- fixtures ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.pymllm_gpu)])
def kv_device(request: pytest.FixtureRequest) -> torch.device:
    """Run the test once on the CPU, and once on CUDA as a GPU test."""
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
    return functools.partial(judge_epochs, request.node)


@pytest.fixture
def wait_for_gpu_memory(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Wait at the test's end until GPU memory is as before, or when called: ``(seconds=30, slack=...)``."""
    expect_memory(request.node)

    def wait(seconds: float | None = None, **options: Any) -> None:
        __tracebackhide__ = True
        has_failed = request.node.stash.get(_failed, False)
        wait_for_memory(request.node, seconds, has_failed=has_failed, is_over=False, **options)

    return wait


def _read_marker(marker: pytest.Mark, read: Callable[..., Answer]) -> Answer:
    """Read a marker's arguments; one that makes no sense fails the test before it runs."""
    read.__qualname__ = marker.name  # what Python says of arguments that do not fit begins with it
    try:
        return read(*marker.args, **marker.kwargs)
    except (TypeError, ValueError) as error:
        wrong = str(error)
    # Not inside the handler, or pytest shows the error twice.
    pytest.fail(f"marker {marker.name}: {wrong}", pytrace=False)
