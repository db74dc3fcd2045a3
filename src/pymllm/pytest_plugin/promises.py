"""Checks of GPU tests: no GPU touched, memory that does not come back, and limits and leaks not judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pymllm.pytest_plugin.settings import (
    GPU,
    INI_MARKER,
    TIMEOUT,
    is_on,
    log_of,
    marker_of,
    needs_gpu,
    seconds_of,
    strictness,
    timeout_of,
)

if TYPE_CHECKING:
    from pymllm.pytest_plugin.gpu_use import GpuTouch, MemoryReturn

_UNJUDGED = "pymllm unjudged"
_UNTOUCHED = "pymllm untouched"
_HEALTH = "gpu_health"

_touch: pytest.StashKey[GpuTouch] = pytest.StashKey()
_return: pytest.StashKey[list[MemoryReturn]] = pytest.StashKey()


# -- the use of the GPU, and its memory ---------------------------------------------------------------------


def look_before(item: pytest.Item) -> None:
    """Read the state of the GPU before a test's fixtures, to compare with it later."""
    from pymllm.pytest_plugin.gpu_use import GpuTouch

    item.stash[_touch] = GpuTouch()
    if seconds_of(item.config) is not None:
        expect_memory(item)


def why_untouched(item: pytest.Item) -> str | None:
    """Return the reason why a test used no GPU; ``None`` where it did, may have, or need not."""
    return item.stash[_touch].why_untouched() if _touch in item.stash else None


def note_untouched(item: pytest.Item, why: str) -> None:
    """Report at the end of the run that a GPU test touched no GPU; a strict run fails the test."""
    for name, is_forbidden in strictness(item.config).items():
        if is_forbidden:
            pytest.fail(f"needs a GPU and touched none, which {name} forbids: {why}", pytrace=False)
    item.user_properties.append((_UNTOUCHED, f"{item.nodeid}: {why}"))


def expects_memory(item: pytest.Item) -> bool:
    """Whether memory must come back after a test."""
    return _return in item.stash


def expect_memory(item: pytest.Item) -> None:
    """Read the memory in use, above which the test may leave nothing."""
    from pymllm.instrument.nvml_device import visible_devices
    from pymllm.pytest_plugin.gpu_use import MemoryReturn

    if _return in item.stash:
        return
    item.stash[_return] = [MemoryReturn(index) for index in visible_devices()]
    unknown = dict.fromkeys(it.unknown for it in item.stash[_return] if it.unknown is not None)
    if unknown:
        note_unjudged(item, f"wait_for_gpu_memory: {'; '.join(unknown)}")


def wait_for_memory(
    item: pytest.Item, seconds: float | None, *, has_failed: bool, is_over: bool, **options: Any
) -> None:
    """Wait until a test's memory has come back; otherwise fail the test and name the holders."""
    from pymllm.pytest_plugin.gpu_use import SECONDS

    __tracebackhide__ = True
    memories = item.stash[_return]
    until = SECONDS if seconds is None else seconds
    reasons = []
    try:
        for memory in memories:
            if memory.unknown is None:
                reasons.append(memory.wait(until, without_own=has_failed, **options))
    finally:
        if is_over:
            for memory in memories:
                memory.close()
            del item.stash[_return]
    found = "; ".join(reason for reason in reasons if reason is not None)
    if found:
        pytest.fail(f"GPU memory of {item.nodeid} has not come back: {found}", pytrace=False)


# -- the health of the GPU ---------------------------------------------------------------------------------


def note_health(item: pytest.Item, found: Sequence[str], *, may_fail: bool) -> None:
    """Report at the end of the run and in JUnit's file the events of a GPU; a strict run fails the test."""
    if not found:
        return
    why = "; ".join(found)
    item.add_report_section("call", "GPU health", why)
    item.user_properties.append((_HEALTH, f"{item.nodeid}: {why}"))
    for name, is_forbidden in strictness(item.config).items():
        if is_forbidden and may_fail:
            pytest.fail(f"the GPU was not healthy, which {name} forbids: {why}", pytrace=False)


# -- what nobody could judge -------------------------------------------------------------------------------


def note_unjudged(item: pytest.Item, why: str, *, is_partly_judged: bool = False) -> None:
    """Report at the end of the run that a limit or leaks could not be judged; a strict run fails the test.

    ``--require-gpu`` fails a test of which nothing was judged, as where the GPU is lost.
    """
    forbidden = strictness(item.config)
    is_lost = is_on(item.config, "--require-gpu") and needs_gpu(item)
    forbidden["--require-gpu"] = is_lost and not is_partly_judged
    for name, is_forbidden in forbidden.items():
        if is_forbidden:
            pytest.fail(f"not judged, which {name} forbids: {why}", pytrace=False)
    item.user_properties.append((_UNJUDGED, why))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List tests that touched no GPU, reasons why tests were not judged, and options without effect."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    seen = [it for report in reports for it in report.user_properties]
    ill = dict.fromkeys(str(value) for name, value in seen if name == _HEALTH)
    if ill:
        terminalreporter.section("GPUs that were not healthy (pymllm)")
        for one in ill:
            terminalreporter.write_line(one)
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
    """Yield a line for each given option of this plugin that had no effect, with the way out."""
    if not marker_of(config) and not any(GPU in report.keywords for report in reports):
        given = {
            "--require-gpu": is_on(config, "--require-gpu"),
            "--gpu-lock": config.getoption("--gpu-lock") != "wait",
            "--gpu-shard": config.getoption("--gpu-shard") is not None,
            "--gpu-timeout": timeout_of(config) != TIMEOUT,
        }
        for name, is_given in given.items():
            if is_given:
                yield (
                    f"{name}: no test that ran is marked {GPU}; where this project has a marker of its own"
                    f" for such tests, name it in its settings: {INI_MARKER} = gpu"
                )
    if config.getoption("--gpu-per-worker") and not config.getoption("tx", None):
        yield "--gpu-per-worker: there is no worker; -n 2 of pytest-xdist makes two"
    log = log_of(config)
    if log is not None and not log.stat().st_size:
        yield f"--gpu-memory-log: {log} is empty; gpu_memory_limit and gpu_memory watch a test"
