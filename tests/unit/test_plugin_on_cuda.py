"""The plugin where CUDA is in use: whom it accuses and acquits, and of what it says that it is unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch  # Before any run inside this process, which forgets the modules that it has loaded.

from pymllm.testing import gpu_gate
from pymllm.testing.gpu_gate import FOLDER
from tests.fake_cuda import UNCACHED, FakeCuda

pytest_plugins = ["pytester"]

PLUGIN = "pymllm.pytest_plugin"
HEAD = """
import pytest
from tests.fake_cuda import GIB, cuda
pytestmark = pytest.mark.pymllm_gpu
"""
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCuda:
    """Two GPUs that this process uses."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(gpu_gate, "why_no_cuda", lambda: None)
    return FakeCuda().install(monkeypatch.setattr)


@pytest.fixture
def run(pytester: pytest.Pytester, fake: FakeCuda) -> Run:
    """Run pytest in this process on tests that find CUDA by ``cuda()``."""

    def run_pytest(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(HEAD + text)
        return pytester.runpytest_inprocess("-p", PLUGIN, "-p", "no:cacheprovider", *options)

    return run_pytest


def outcomes(result: pytest.RunResult) -> dict[str, str]:
    """What became of each test, by its name, in a run with ``-v``."""
    lines = [line.split() for line in result.outlines if "::test_" in line and "%]" in line]
    return {line[0].split("::")[1]: line[1] for line in lines}


# -- what is counted ---------------------------------------------------------------------------------------

LIMITS = """
@pytest.mark.gpu_memory_limit("2 GiB")
def test_guilty():
    cuda().devices[0].allocate(3 * GIB)
    cuda().devices[0].free(3 * GIB)
@pytest.mark.gpu_memory_limit("2 GiB")
def test_innocent():
    cuda().devices[0].allocate(GIB)
    cuda().devices[0].free(GIB)
"""


def test_the_guilty_and_the_innocent_are_told_apart(run: Run) -> None:
    """By the exact peak of tensors, where torch's allocator counts."""
    assert outcomes(run(LIMITS, "-v")) == {"test_guilty": "FAILED", "test_innocent": "PASSED"}


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("pluggable", "torch's allocator is pluggable, which counts nothing"),
        (UNCACHED, f"{UNCACHED} is set, so memory goes past the counters of torch's allocator"),
    ],
)
def test_an_allocator_that_counts_nothing_is_a_reason(
    run: Run, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, cause: str, reason: str
) -> None:
    """Neither an error at set-up nor a limit kept with 0 bytes, nor a GPU that nobody touched."""
    if cause == UNCACHED:
        monkeypatch.setenv(UNCACHED, "1")
    else:
        fake.backend = cause
    text = LIMITS + "def test_plain(): pass\ndef test_leaks(leak_check): leak_check(lambda: None)\n"
    result = run(text)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*not judged (pymllm)*", f"2 tests: gpu_memory_limit: {reason}"])
    result.stdout.fnmatch_lines([f"1 test: leaks: *{reason}*"])
    result.stdout.no_fnmatch_line("*touched none*")
    run(text, "--gpu-strict").assert_outcomes(passed=1, failed=3)


def test_a_workspace_of_cublas_is_charged_to_all_who_use_it(run: Run) -> None:
    """Not to the first alone: it is given back before and after a test that is watched."""
    text = """
@pytest.mark.gpu_memory_limit("9 MiB")
@pytest.mark.parametrize("n", range(3))
def test_small(n): cuda().devices[0].multiply()
@pytest.mark.gpu_memory_limit("7 MiB")
@pytest.mark.parametrize("n", range(2))
def test_too_large(n): cuda().devices[0].multiply()
def test_none_is_left(): assert not cuda().devices[0].live
def test_unwatched(): cuda().devices[0].multiply()
@pytest.mark.gpu_memory_limit("1 MiB")
def test_without_it(): cuda().devices[0].allocate(1 << 20)
def test_no_leak(leak_check):
    assert not leak_check(cuda().devices[0].multiply).leaking
    assert not cuda().devices[0].workspace
"""
    found = outcomes(run(text, "-v"))
    assert {name for name, it in found.items() if it == "FAILED"} == {"test_too_large[0]", "test_too_large[1]"}
    assert len(found) == 9


assert torch  # loaded, see above
