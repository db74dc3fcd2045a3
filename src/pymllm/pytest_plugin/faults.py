"""Faults that must end with their test: a fault of the GPU, a dead CUDA context, a test that hangs."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import pytest

from pymllm.pytest_plugin.promises import note_health
from pymllm.pytest_plugin.settings import is_worker, needs_gpu, timeout_of

if TYPE_CHECKING:
    from pymllm.pytest_plugin.gpu_health import GpuHealth

_dead: pytest.StashKey[str] = pytest.StashKey()
_health: pytest.StashKey[GpuHealth] = pytest.StashKey()
_stderr: pytest.StashKey[int] = pytest.StashKey()


# -- faults ------------------------------------------------------------------------------------------------


@contextmanager
def own_faults(item: pytest.Item) -> Iterator[None]:
    """Wait for the GPUs after a part of a test, and fail the test for faults found on them."""
    __tracebackhide__ = True
    try:
        yield
    except BaseException:
        found = _fault_of(item)
        if found is not None:
            item.add_report_section("call", "GPU fault", found)
        note_health(item, _health_of(item), may_fail=False)
        raise
    found = _fault_of(item)
    note_health(item, _health_of(item), may_fail=found is None)
    if found is not None:
        pytest.fail(f"the GPU failed during this test, {found}", pytrace=False)


def _fault_of(item: pytest.Item) -> str | None:
    if not needs_gpu(item) or _dead in item.config.stash:
        return None
    from pymllm.pytest_plugin.gpu_fault import wait_for_gpus

    fault = wait_for_gpus()
    if fault is not None and fault.is_deadly:
        item.config.stash[_dead] = f"{item.nodeid} ended with a fault {fault}"
    return None if fault is None else str(fault)


def look_at_health(item: pytest.Item) -> None:
    """Discard events of the GPUs from before this test, which are not its own."""
    if _health in item.config.stash:
        item.config.stash[_health].take()
        return
    from pymllm.pytest_plugin.gpu_health import GpuHealth

    item.config.stash[_health] = GpuHealth()


def _health_of(item: pytest.Item) -> tuple[str, ...]:
    health = item.config.stash.get(_health, None) if needs_gpu(item) else None
    return () if health is None else health.take()


def why_dead(config: pytest.Config) -> str | None:
    """Return why no test of this process can use a GPU any more; ``None`` if tests can."""
    return config.stash.get(_dead, None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End a worker of pytest-xdist whose CUDA context is dead, after its last report: another takes over."""
    result = yield
    why = why_dead(item.config)
    if why is not None and is_worker(item.config):
        say(item.config, f"this worker ends, another goes on: {why}")
        os._exit(1)
    return result


# -- tests that hang ---------------------------------------------------------------------------------------


def begin_limit(item: pytest.Item) -> None:
    """Set a timer that ends the process of a test that takes too long, with the stacks of all threads."""
    seconds = timeout_of(item.config)
    if seconds:
        faulthandler.dump_traceback_later(seconds, exit=True, file=_terminal(item.config))


def end_limit() -> None:
    """Cancel the timer that ends the process."""
    faulthandler.cancel_dump_traceback_later()


def pytest_enter_pdb() -> None:
    """Cancel the time limit while a person debugs."""
    end_limit()


# -- the terminal ------------------------------------------------------------------------------------------


def say(config: pytest.Config, line: str) -> None:
    """Write a line past any capture to the terminal, also from a worker, where the reporter is mute."""
    if is_worker(config):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        os.write(_terminal(config), f"\n{worker}: {line}\n".encode())
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        with _uncaptured(config):
            reporter.ensure_newline()
            reporter.write_line(line)


def _uncaptured(config: pytest.Config) -> AbstractContextManager[object]:
    capture = config.pluginmanager.get_plugin("capturemanager")
    return nullcontext() if capture is None else capture.global_and_fixture_disabled()


def _terminal(config: pytest.Config) -> int:
    """Return the standard error that this process began with, which no test captures."""
    if _stderr not in config.stash:
        with _uncaptured(config):
            config.stash[_stderr] = os.dup(2)
    return config.stash[_stderr]


def let_go(config: pytest.Config) -> None:
    """Release NVML and the terminal when the run ends."""
    if _health in config.stash:
        config.stash[_health].close()
        del config.stash[_health]
    if _stderr in config.stash:
        os.close(config.stash[_stderr])
        del config.stash[_stderr]
