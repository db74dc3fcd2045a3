"""The plugin where CUDA is in use: whom it accuses and acquits, and of what it says that it is unknown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch  # Before any run inside this process, which forgets the modules that it has loaded.

from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.reading import Unreadable
from pymllm.pytest_plugin import gpu_gate
from pymllm.pytest_plugin.gpu_gate import FOLDER, GpuLock
from pymllm.pytest_plugin.settings import show_one_gpu
from tests.fake_cuda import UNCACHED, FakeCuda
from tests.fake_nvml.machine import say

pytest_plugins = ["pytester"]

PLUGIN = "pymllm.pytest_plugin"
HEAD = """
import pytest
from tests.fake_cuda import GIB, cuda
pytestmark = pytest.mark.pymllm_gpu
"""
HAS_GPU = """
from pymllm.pytest_plugin import gpu_gate
gpu_gate.why_no_cuda = lambda: None
gpu_gate.device_names = lambda: ["GPU-1"]
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
    """Return the outcome of each test, by its name, in a run with ``-v``."""
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
    assert {name for name, it in found.items() if it == "FAILED"} == {
        "test_too_large[0]",
        "test_too_large[1]",
    }
    assert len(found) == 9


# -- what leaks --------------------------------------------------------------------------------------------

KEPT = """
def make_table(): cuda().devices[1].allocate(3 << 20, "make_table")
@pytest.mark.no_leak
def test_leaks():
    make_table()
    for size in range(1, 7): cuda().devices[1].allocate(size << 10, f"keep_{size}")
@pytest.mark.no_leak
def test_pinned():
    cuda().host["active_bytes.current"] = cuda().host.get("active_bytes.current", 0) + 4096
@pytest.mark.no_leak
def test_graphs():
    cuda().devices[0].private += 2 << 20
"""


def test_a_leak_names_its_allocations(run: Run, fake: FakeCuda) -> None:
    """The five largest, with the code that took them; torch records stacks only once there is a leak."""
    fake.host["active_bytes.current"] = 0
    result = run(KEPT)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "memory leaks: live bytes of cuda:1: leak of *",
            "the largest allocations that stayed in 3 more epochs:",
            "9.0 MiB in 3 blocks, by model.py:7 in make_table",
            *[f"{3 * size}.0 KiB in 3 blocks, by model.py:7 in keep_{size}" for size in (6, 5, 4, 3)],
            "and 2 smaller ones",
            "memory leaks: pinned host memory: leak of 4,096 bytes per epoch *",
            "memory leaks: *private pools of cuda:0: leak of *",
        ]
    )
    assert fake.recorded[-1] is None


# -- what the driver says of this process ------------------------------------------------------------------

TOLD = """
from pymllm.pytest_plugin import gpu_gate
from tests.fake_cuda import FakeCuda
gpu_gate.why_no_cuda = lambda: None
FakeCuda(1).install().is_in_use = False
"""
BESIDE = """
import os
import pytest
from tests.fake_cuda import cuda
from tests.fake_nvml.machine import GIB, MIB, say
pytestmark = pytest.mark.pymllm_gpu
mine = others = 0
def take(size, *, for_others=0):
    global mine, others
    mine, others = mine + size, others + for_others
    if cuda().is_in_use:  # by torch, too, or the test has touched no GPU
        cuda().devices[0].allocate(512)
        cuda().devices[0].free(512)
    bytes_told = mine if os.environ["TOLD"] == "true" else 0
    say(used=GIB + mine + others, processes=f"{os.getpid()}:{bytes_told}")
def test_starts_cuda(wait_for_gpu_memory):
    cuda().is_in_use = True
    take(520 * MIB)
@pytest.mark.gpu_memory_limit("64 MiB")
def test_small(): take(32 * MIB)
@pytest.mark.no_leak
def test_leaks(): take(64 * MIB)
@pytest.mark.no_leak
def test_steady(): take(0)
@pytest.mark.no_leak
def test_beside_one_that_grows(): take(0, for_others=64 * MIB)
@pytest.fixture
def without_torch():
    cuda().is_in_use = False
@pytest.mark.gpu_memory_limit("64 MiB")
def test_large_without_torch(without_torch): take(520 * MIB)
@pytest.mark.gpu_memory_limit("64 MiB")
def test_small_without_torch(without_torch): take(32 * MIB)
@pytest.mark.no_leak
def test_leaks_without_torch(without_torch): take(64 * MIB)
@pytest.mark.no_leak
def test_steady_without_torch(without_torch): take(0)
"""


@pytest.mark.usefixtures("sees_fake_gpus")
def test_what_the_driver_says_of_this_process_is_judged(pytester: pytest.Pytester) -> None:
    """Beside torch and without it: the guilty are found, and nobody answers for another process."""
    pytester.makeconftest(TOLD)
    pytester.makepyfile(BESIDE)
    pytester._monkeypatch.setenv("TOLD", "true")
    result = pytester.runpytest_subprocess("-p", PLUGIN, "-p", "no:cacheprovider", "-v", "--gpu-strict")
    failed = {name for name, it in outcomes(result).items() if it == "FAILED"}
    assert failed == {"test_leaks", "test_large_without_torch", "test_leaks_without_torch"}
    result.stdout.fnmatch_lines(
        [
            "memory leaks: device: leak of 6.71089e+07 bytes per epoch *",
            "GPU memory: 520.0 MiB on top of *; the limit is 64.0 MiB (this process*, by NVML*)",
            "memory leaks: device: leak of 6.71089e+07 bytes per epoch *",
        ]
    )


@pytest.mark.usefixtures("sees_fake_gpus")
def test_no_bytes_of_this_process_accuse_and_acquit_nobody(pytester: pytest.Pytester) -> None:
    """As some drivers tell in a container, where they hide what runs in others: unknown, with this reason."""
    pytester.makeconftest(TOLD)
    pytester.makepyfile(BESIDE)
    pytester._monkeypatch.setenv("TOLD", "0")
    options = ("-p", PLUGIN, "-p", "no:cacheprovider", "-v")
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=9)
    reason = "the driver lists this process with 0 bytes, which no context has"
    result.stdout.fnmatch_lines(["*not judged (pymllm)*"])
    result.stdout.fnmatch_lines([f"2 tests: gpu_memory_limit: *{reason}*"])
    result.stdout.fnmatch_lines([f"2 tests: leaks: device: unknown (*{reason}*)"])
    result.stdout.fnmatch_lines([f"1 test: leaks: *device memory grows, but it may be another*{reason}*"])
    strict = outcomes(pytester.runpytest_subprocess(*options, "--gpu-strict"))
    failed = {name for name, it in strict.items() if it == "FAILED"}
    unjudged = {"test_leaks", "test_beside_one_that_grows", "test_leaks_without_torch"}
    assert failed == unjudged | {"test_large_without_torch", "test_small_without_torch"}


# -- several GPUs ------------------------------------------------------------------------------------------

SECOND = """
@pytest.mark.gpu_memory_limit("1 GiB")
def test_elsewhere():
    cuda().devices[1].allocate(10 * GIB)
    cuda().devices[1].free(10 * GIB)
@pytest.mark.gpu_memory_limit("11 GiB")
def test_chooses():
    cuda().devices[0].allocate(10 * GIB)
    cuda().set_device(1)
    cuda().devices[1].allocate(10 * GIB)
    for it in cuda().devices: it.free(10 * GIB)
@pytest.mark.no_leak
def test_leaks(): cuda().devices[1].allocate(1 << 20)
@pytest.mark.no_leak
def test_clean(gpu_memory): pass
"""


def test_a_test_is_judged_on_each_gpu_that_it_touched(run: Run, pytester: pytest.Pytester) -> None:
    """A limit and a leak on the second GPU count, and one device is not taken for two."""
    result = run(SECOND, "-v", "--gpu-memory-log=gpu.jsonl")
    assert outcomes(result) == {
        "test_elsewhere": "FAILED",
        "test_chooses": "PASSED",
        "test_leaks": "FAILED",
        "test_clean": "PASSED",
    }
    result.stdout.fnmatch_lines(
        [
            "GPU memory: 10.0 GiB on top of what was in use before; the limit is 1.0 GiB (tensors, by torch's"
            " allocator, on cuda:1)",
            "*Captured GPU memory of cuda:1 call*",
            "memory leaks: live bytes of cuda:1: leak of *",
        ]
    )
    lines = [json.loads(line) for line in (pytester.path / "gpu.jsonl").read_text("utf-8").splitlines()]
    told = [(line["test"].split("::")[1], line["index"]) for line in lines]
    assert sorted(told) == [
        ("test_chooses", 0),
        ("test_chooses", 1),
        ("test_clean", 1),
        ("test_elsewhere", 1),
    ]


def test_a_test_has_all_gpus_alone(run: Run, tmp_path: Path) -> None:
    """A test holds the lock of each device that it may use, and no other lock."""
    text = f"""
from pathlib import Path
from xml.etree import ElementTree
from pymllm.pytest_plugin.gpu_gate import GpuBusyError, GpuLock
@pytest.mark.parametrize("n", [0, 1])
def test_held(n):
    with pytest.raises(GpuBusyError):
        GpuLock(f"GPU-0000000{{n}}-fake", Path({str(tmp_path)!r})).acquire(wait=False)
"""
    run(text).assert_outcomes(passed=2)


def test_each_worker_has_a_gpu_of_its_own(run: Run, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker has a GPU by its number; a run without workers, or too late, is told."""
    fake.is_in_use = False
    seen = []
    for worker in ("gw0", "gw1", "gw2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,7")
        show_one_gpu(worker)
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert seen == ["GPU-a", "7", "GPU-a"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    def without_driver(library: NvmlLibrary, patience: float | None) -> None:
        raise Unreadable("no driver")

    monkeypatch.setattr(NvmlLibrary, "open", without_driver)
    with pytest.raises(pytest.UsageError, match="no driver; name the GPUs in CUDA_VISIBLE_DEVICES"):
        show_one_gpu("gw0")
    fake.is_in_use = True
    with pytest.raises(pytest.UsageError, match="CUDA is in use before the first test; let"):
        show_one_gpu("gw0")
    result = run("def test_x(): cuda().devices[0].allocate(1)", "--gpu-per-worker")
    result.stdout.fnmatch_lines(["--gpu-per-worker: there is no worker; -n 2 of pytest-xdist makes two"])


# -- faults ------------------------------------------------------------------------------------------------

FAULTS = """
def test_guilty(): cuda().devices[1].break_down("CUDA error: device-side assert")
def test_innocent(): pass
@pytest.fixture
def careless():
    yield
    cuda().devices[0].break_down("CUDA error: in the end")
def test_leaves_a_fault(careless): pass
def test_innocent_too(gpu_memory): pass
def test_failing():
    cuda().devices[0].break_down("CUDA error: the cause")
    assert False, "its own failure"
"""


def test_a_fault_is_told_in_the_name_of_the_test_that_caused_it(run: Run, fake: FakeCuda) -> None:
    """Its kernels are waited for at its end, on each GPU that it uses, and the next test is innocent."""
    fake.devices[1].has_context = True
    result = run(FAULTS, "-v", "-W", "error")
    result.assert_outcomes(passed=3, failed=2, errors=1)
    innocent = [name for name, it in outcomes(result).items() if it == "PASSED"]
    assert innocent == ["test_innocent", "test_innocent_too"]
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_leaves_a_fault*",
            "the GPU failed during this test, on cuda:0: CUDA error: in the end",
            "*_ test_guilty _*",
            "the GPU failed during this test, on cuda:1: CUDA error: device-side assert",
            "*its own failure*",
            "*Captured GPU fault call*",
            "on cuda:0: CUDA error: the cause",
        ]
    )


DEADLY = """
def test_before(): cuda().devices[0].allocate(1)
def test_guilty(): cuda().devices[0].break_down("CUDA error: an illegal memory access", is_deadly=True)
def test_after(): cuda().devices[0].allocate(1)
"""


def test_after_a_dead_context_gpu_tests_are_not_run_and_say_why(run: Run, pytester: pytest.Pytester) -> None:
    """One failure, not one for each test after it; tests without a GPU go on."""
    pytester.makepyfile(test_without="def test_cpu(): pass")
    result = run(DEADLY, "-rs", "--require-gpu")
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    name = "test_after_a_dead_context_gpu_tests_are_not_run_and_say_why.py"
    said = "on cuda:0: CUDA error: an illegal memory access; the CUDA context of this process is dead"
    result.stdout.fnmatch_lines(
        [
            f"the GPU failed during this test, {said}",
            f"SKIPPED [[]1] {name}:7: not run, as the CUDA context of this process is dead:"
            f" {name}::test_guilty ended with a fault {said}",
        ]
    )


def test_a_worker_with_a_dead_context_is_replaced(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """By another one, which runs what is left; the guilty test is the only one that fails."""
    pytester.makeconftest(
        HAS_GPU
        + """
from pymllm.pytest_plugin import gpu_fault
faults = []
gpu_fault.wait_for_gpus = lambda: faults[0] if faults else None
"""
    )
    pytester.makepyfile(
        """
        import pytest
        from conftest import faults
        from pymllm.pytest_plugin.gpu_fault import GpuFault
        pytestmark = pytest.mark.pymllm_gpu
        def test_before(): pass
        def test_guilty(): faults.append(GpuFault(0, "illegal memory access", is_deadly=True))
        def test_after(): pass
        """
    )
    pytester._monkeypatch.setenv(FOLDER, str(tmp_path))
    result = pytester.runpytest_subprocess("-p", PLUGIN, "-n1", "-rf", "--max-worker-restart=1")
    result.assert_outcomes(passed=2, failed=2)  # its fault, and the end of its worker
    failed = [line.split()[1].split("::")[1] for line in result.outlines if line.startswith("FAILED")]
    assert failed == ["test_guilty", "test_guilty"]
    result.stdout.fnmatch_lines(["replacing crashed worker gw0"])
    result.stderr.fnmatch_lines(
        ["gw0: this worker ends, another goes on: *::test_guilty ended with a fault*"]
    )


def test_a_test_that_hangs_ends_with_its_stack(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """After so many seconds; without a worker it takes the run along."""
    pytester.makeconftest(HAS_GPU)
    pytester.makepyfile(
        """
        import time, pytest
        @pytest.mark.pymllm_gpu
        def test_hangs():
            time.sleep(60)
        """
    )
    pytester._monkeypatch.setenv(FOLDER, str(tmp_path))
    result = pytester.runpytest_subprocess("-p", PLUGIN, "--gpu-timeout=2", "-p", "no:cacheprovider")
    assert result.ret == 1
    result.stderr.fnmatch_lines(["Timeout (0:00:02)!", '*test_*.py", line 4 in test_hangs'])


# -- the health of the GPU ---------------------------------------------------------------------------------

ILL = """
import pytest
from tests.fake_nvml.machine import say
from pymllm.pytest_plugin import gpu_gate
gpu_gate.why_no_cuda = lambda: None
pytestmark = pytest.mark.pymllm_gpu
def test_xid(): say(xids="31")
def test_well(): say()
def test_memory(): say(ecc__uncorrected=2)
@pytest.fixture
def careless():
    yield
    say(clocks=0x40)
def test_hot(careless): pass
def test_failing():
    say(lost=1)
    assert False
"""
SEEN = {
    "test_xid": "the driver reported XID 31",
    "test_memory": "2 uncorrected memory errors",
    "test_hot": "clocks were lowered: hardware thermal slowdown",
    "test_failing": "the device was lost *",
}


@pytest.mark.usefixtures("sees_fake_gpus")
def test_what_happens_to_a_gpu_is_a_verdict(pytester: pytest.Pytester) -> None:
    """In the terminal and in JUnit's file, in the name of the test that had the GPU; failing when strict."""
    pytester.makepyfile(ILL)
    options = ("-p", PLUGIN, "-p", "no:cacheprovider", "-v")
    result = pytester.runpytest_subprocess(*options, "--junit-xml=junit.xml")
    result.assert_outcomes(passed=4, failed=1)
    name = "test_what_happens_to_a_gpu_is_a_verdict.py"
    title = next(at for at, line in enumerate(result.outlines) if "not healthy (pymllm)" in line)
    told = result.outlines[title + 1 : title + 1 + len(SEEN)]
    for line, (test, why) in zip(told, SEEN.items(), strict=True):
        assert fnmatch(line, f"{name}::{test}: GPU-00000000-fake: {why}"), line
    cases = ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
    ill = "properties/property[@name='gpu_health']"
    noted = [it.get("name") for it in cases if it.find(ill) is not None]
    assert noted == list(SEEN)
    say()  # the machine is well again
    result = pytester.runpytest_subprocess(*options, "--gpu-strict", "-k", "xid or hot")
    result.assert_outcomes(failed=2, errors=1, deselected=3)  # both touched no GPU
    forbidden = "the GPU was not healthy, which --gpu-strict forbids: GPU-00000000-fake"
    result.stdout.fnmatch_lines([f"{forbidden}: the driver reported XID 31"])


# -- waiting for a GPU -------------------------------------------------------------------------------------


def test_a_wait_for_a_gpu_has_an_end(run: Run) -> None:
    """The error of a wait for a GPU names the holder, the time, and the way out."""
    held = GpuLock("GPU-00000001-fake")
    held.acquire()
    result = run("def test_x(): pass", "--gpu-lock=wait:0.1")
    held.release()
    result.assert_outcomes(errors=1)
    said = f"GPU-00000001-fake is in use by process {os.getpid()}"
    result.stdout.fnmatch_lines(
        [
            f"waiting for a GPU: {said}",
            f"{said}, for which 0.1 s were waited; its lock is *; --gpu-lock=wait:SECONDS waits longer",
        ]
    )


def test_a_worker_that_waits_says_so(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """A run with workers is not mute while all of them wait."""
    pytester.makeconftest(HAS_GPU)
    pytester.makepyfile("import pytest\n@pytest.mark.pymllm_gpu\ndef test_x(): pass")
    pytester._monkeypatch.setenv(FOLDER, str(tmp_path))
    held = GpuLock("GPU-1")
    held.acquire()
    result = pytester.runpytest_subprocess("-p", PLUGIN, "-n1", "--gpu-lock=wait:0.1")
    held.release()
    result.assert_outcomes(errors=1)
    result.stderr.fnmatch_lines([f"gw0: waiting for a GPU: GPU-1 is in use by process {os.getpid()}"])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--gpu-lock=never", "'never' is none of wait, fail, off and wait:SECONDS"),
        ("--gpu-lock=off:3", "'off:3' is none of wait, fail, off and wait:SECONDS"),
        ("--gpu-lock=wait:soon", "'soon' is no number of seconds in 0..86400"),
        ("--gpu-timeout=-1", "'-1' is no number of seconds in 0..86400"),
    ],
)
def test_a_limit_without_sense_is_refused(run: Run, option: str, said: str) -> None:
    """One line, before any test."""
    result = run("def test_x(): pass", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{said}"])


assert torch  # loaded, see above
