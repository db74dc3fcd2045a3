"""The plugin as other people's tests meet it."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch  # Before any run inside this process, which forgets the modules that it has loaded.

from pymllm.adapters.process.adapter import end_idle_programs
from pymllm.adapters.process.reaper import end_reaper
from pymllm.pytest_plugin import gpu_gate
from pymllm.pytest_plugin.gpu_gate import FOLDER, GpuLock
from tests.fake_nvml.machine import GIB, ROOT
from tests.warm_workers import stop_warm

pytest_plugins = ["pytester"]

PLUGIN = "pymllm.pytest_plugin"
HAS_GPU = """
from pymllm.pytest_plugin import gpu_gate
gpu_gate.why_no_cuda = lambda: None
gpu_gate.device_names = lambda: ["GPU-1"]
"""
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run pytest on a test file in this process, with the plugin and without a GPU."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(gpu_gate, "why_no_cuda", lambda: "torch.cuda.is_available() is False")

    def run_pytest(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess("-p", PLUGIN, "-p", "no:cacheprovider", "-rs", *options)

    return run_pytest


@pytest.fixture
def with_gpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same on a machine that says it has a GPU."""
    monkeypatch.setattr(gpu_gate, "why_no_cuda", lambda: None)
    monkeypatch.setattr(gpu_gate, "device_names", lambda: ["GPU-1"])
    return run


# -- loading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [PLUGIN, f"{PLUGIN}.gpu_gate", "pymllm.instrument.gpu_memory"])
def test_loading_the_plugin_loads_nothing_heavy(module: str) -> None:
    """A run that uses none of it does not wait for torch, Hypothesis or NVML."""
    heavy = ["torch", "numpy", "hypothesis", "pynvml", "click", "rich", "msgspec", "psutil", "filelock"]
    code = f"import sys, {module}; print(*[name for name in sys.argv[1:] if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_run_that_uses_none_of_it_loads_nothing_of_it(pytester: pytest.Pytester) -> None:
    """Installed for something else, it stays out of the way: not even its own parts are loaded."""
    pytester.makepyfile(
        """
        import sys
        def test_x():
            assert not {"torch", "pynvml"} & set(sys.modules)
            own = ("pymllm.instrument", "pymllm.pytest_plugin.gpu")
            assert not [it for it in sys.modules if it.startswith(own)]
        """
    )
    result = pytester.runpytest_subprocess("-p", PLUGIN, "-p", "no:hypothesispytest", "-p", "no:pytest_cov")
    result.assert_outcomes(passed=1)


def test_an_installed_plugin_is_found_and_may_be_named_too(pytester: pytest.Pytester) -> None:
    """The entry point alone will do, and -p beside it is no second registration."""
    site = pytester.mkdir("site")
    folder = site / "pymllm-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: pymllm\nVersion: 0\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(f"[pytest11]\n{PLUGIN} = {PLUGIN}\n", encoding="utf-8")
    paths = [str(site), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    pytester._monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    pytester.makepyfile("def test_x(pytestconfig): assert pytestconfig.getoption('--gpu-lock') == 'wait'")
    for options in ([], ["-p", PLUGIN]):
        pytester.runpytest_subprocess(*options, "-W", "error").assert_outcomes(passed=1)


def test_the_markers_are_known(run: Run) -> None:
    """--strict-markers accepts them, and --markers explains them."""
    result = run("", "--markers", "--strict-markers")
    result.stdout.fnmatch_lines(
        ["@pytest.mark.pymllm_gpu:*", "@pytest.mark.gpu_memory_limit(*", "@pytest.mark.no_leak(*"]
    )
    assert result.ret == 0


# -- projects that have not asked for any of it ----------------------------------------------------------

STRANGER = """
import json, os, sys, warnings
import pytest
@pytest.mark.gpu
def test_z():
    told = [sorted(os.environ), os.environ.get("OMP_NUM_THREADS"), list(map(str, warnings.filters))]
    loaded = sorted(it for it in sys.modules if it.partition(".")[0] in ("torch", "numpy", "pynvml"))
    with open("told.json", "w") as file:
        json.dump([told, loaded, sorted(it for it in sys.modules if it.startswith("pymllm."))], file)
@pytest.mark.gpu
@pytest.mark.parametrize("n", [2, 1])
def test_a(n): warnings.warn("theirs")
@pytest.mark.skip(reason="theirs")
def test_b(): pass
"""
THEIRS = "[pytest]\nmarkers =\n    gpu: what we call it\n"


@pytest.mark.parametrize("options", [(), ("--strict-markers",), ("-n1",)], ids=str)
def test_a_stranger_notices_nothing_of_it(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    """The same report, line for line, the same order, environment and warnings; their gpu tests run."""
    pytester.makeini(THEIRS)
    pytester.makepyfile(STRANGER)
    pytester._monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    reports, told = [], []
    for plugin in (PLUGIN, f"no:{PLUGIN}"):
        result = pytester.runpytest_subprocess("-p", plugin, "-p", "no:cacheprovider", "-v", "-ra", *options)
        result.assert_outcomes(passed=3, skipped=1, warnings=2)
        lines = [line for line in result.outlines if not line.startswith("plugins: ")]
        reports.append([re.sub(r" in [\d.]+s |=+|\[gw0\] *\[ *\d+%\] *", "", line) for line in lines])
        told.append(json.loads((pytester.path / "told.json").read_text(encoding="utf-8")))
    assert reports[0] == reports[1]
    assert told[0][:2] == told[1][:2]
    added = set(told[0][2]) - set(told[1][2])
    assert PLUGIN in added
    assert all(name.startswith(PLUGIN) for name in added)


def test_a_marker_that_nobody_registered_stays_unknown(pytester: pytest.Pytester) -> None:
    """--strict-markers finds a stranger's forgotten gpu marker as it did before."""
    pytester.makepyfile("import pytest\n@pytest.mark.gpu\ndef test_x(): pass")
    result = pytester.runpytest_subprocess("-p", PLUGIN, "--strict-markers")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*'gpu' not found in `markers` configuration option*"])


def test_switches_that_a_project_has_already_stay_its_own(pytester: pytest.Pytester) -> None:
    """Both mean what the project means by them, with and without a value, and no run ends over the name."""
    pytester.makeconftest(
        """
        def pytest_addoption(parser):
            parser.addoption("--require-gpu", action="store_true", default=7)
            parser.addoption("--gpu-strict", metavar="HOW")
        """
    )
    pytester.makepyfile(
        """
        import pytest
        def test_x(pytestconfig):
            assert pytestconfig.getoption("--require-gpu") is True
            assert pytestconfig.getoption("--gpu-strict") == "much"
        @pytest.mark.gpu_memory_limit("2 GiB")
        def test_y(): pass
        """
    )
    options = ("--require-gpu", "--gpu-strict", "much")
    pytester.runpytest_subprocess("-p", PLUGIN, *options).assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--require-gpu"], "--require-gpu: no test that ran is marked pymllm_gpu; *pymllm_gpu_marker = gpu"),
        (["--gpu-lock=off"], "--gpu-lock: no test that ran is marked pymllm_gpu; *pymllm_gpu_marker = gpu"),
        (["--gpu-timeout=9"], "--gpu-timeout: no test that ran is marked pymllm_gpu; *pymllm_gpu_marker*"),
        (["--gpu-shard=1/2"], "--gpu-shard: no test that ran is marked pymllm_gpu; *pymllm_gpu_marker*"),
        (["--gpu-memory-log=x"], "--gpu-memory-log: *x is empty; gpu_memory_limit and gpu_memory watch*"),
    ],
)
def test_an_option_without_effect_says_so(run: Run, options: list[str], line: str) -> None:
    """Nobody takes a run for one that required a GPU; the bare marker is not ours."""
    text = "import pytest\n@pytest.mark.gpu\ndef test_x(): pass"
    result = run(text, *options)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*without effect (pymllm)*", line])
    run(text).stdout.no_fnmatch_line("*without effect*")
    run(text, *options, "--collect-only").stdout.no_fnmatch_line("*without effect*")


# -- projects that have ----------------------------------------------------------------------------------


def opted_in(pytester: pytest.Pytester, marker: str = "gpu") -> None:
    pytester.makeini(f"[pytest]\npymllm_gpu_marker = {marker}\n")


def test_a_project_names_its_own_marker(run: Run, pytester: pytest.Pytester) -> None:
    """It means what ours does, is known to --strict-markers, and selects the tests of kv_device, too."""
    opted_in(pytester)
    text = GPU_TESTS.replace("pymllm_gpu", "gpu")
    run(text, "--strict-markers").assert_outcomes(passed=1, skipped=2)
    run(text, "--require-gpu").assert_outcomes(passed=1, errors=2)
    run(text, "-m", "gpu").assert_outcomes(skipped=2, deselected=1)
    run(text, "-m", "pymllm_gpu").assert_outcomes(skipped=1, deselected=2)
    run(text, "--require-gpu", "-m", "not gpu").stdout.no_fnmatch_line("*without effect*")
    result = run(text, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.gpu: the test needs a CUDA device, and runs while no other*"])


@pytest.mark.parametrize("marker", ["two words", "gpu or cuda", "0", "a-b"])
def test_a_name_that_no_marker_has_is_refused(run: Run, pytester: pytest.Pytester, marker: str) -> None:
    """One line, before any test."""
    opted_in(pytester, marker)
    result = run(GPU_TESTS)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = f"ERROR: pymllm_gpu_marker: '{marker}' is no marker's name; give one, such as gpu"
    assert [line for line in result.stderr.lines if line] == [said]


@pytest.mark.parametrize("options", [(), ("-n1",)], ids=str)
def test_a_skip_stands_where_the_test_does(run: Run, options: tuple[str, ...]) -> None:
    """File and line of the test in -rs, as for pytest's own marks, and none of the plugin's."""
    result = run(GPU_TESTS, *options)
    lines = [line.partition(" device; ")[0] for line in result.outlines if line.startswith("SKIPPED")]
    name = "test_a_skip_stands_where_the_test_does.py"
    assert sorted(lines) == [f"SKIPPED [1] {name}:{line}: needs a CUDA" for line in (2, 4)]


# -- who may run -----------------------------------------------------------------------------------------

GPU_TESTS = """
import pytest
@pytest.mark.pymllm_gpu
def test_alone(): pass
def test_both(kv_device): assert kv_device.type in ("cpu", "cuda")
"""


def test_without_a_gpu_its_tests_are_skipped_or_fail(run: Run) -> None:
    """Green with the reason, or red where the runner should have had one."""
    result = run(GPU_TESTS)
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["*needs a CUDA device; torch.cuda.is_available() is False*"])
    run(GPU_TESTS, "--require-gpu").assert_outcomes(passed=1, errors=2)


def test_with_a_gpu_they_run(with_gpu: Run, tmp_path: Path) -> None:
    """Each has the lock while it runs, and nobody afterwards."""
    result = with_gpu(
        GPU_TESTS
        + f"""
from pathlib import Path
from pymllm.pytest_plugin.gpu_gate import GpuBusyError, GpuLock
@pytest.fixture
def late():
    yield
    with pytest.raises(GpuBusyError): GpuLock("GPU-1", Path({str(tmp_path)!r})).acquire(wait=False)
@pytest.mark.pymllm_gpu
def test_locked(late): pass
def test_free():
    lock = GpuLock("GPU-1", Path({str(tmp_path)!r}))
    lock.acquire(wait=False)
    lock.release()
""",
        "--require-gpu",
    )
    result.assert_outcomes(passed=5)


def test_a_gpu_in_use_fails_a_test_that_does_not_wait(with_gpu: Run) -> None:
    """Or not, where the lock is off."""
    lock = GpuLock("GPU-1")
    lock.acquire()
    result = with_gpu(GPU_TESTS, "--gpu-lock=fail")
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines([f"*GPU-1 is in use by process {os.getpid()}*--gpu-lock=wait*"])
    with_gpu(GPU_TESTS, "--gpu-lock=off").assert_outcomes(passed=3)
    lock.release()


def test_a_test_that_waits_says_so(with_gpu: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the terminal, captured output or not."""
    held = GpuLock("GPU-1")
    held.acquire()
    acquire = GpuLock.acquire

    def acquire_then(self: GpuLock, *, before_waiting: Callable[[str], object], **how: Any) -> None:
        def say(who: str) -> None:
            before_waiting(who)
            held.release()

        acquire(self, before_waiting=say, **how)

    monkeypatch.setattr(GpuLock, "acquire", acquire_then)
    result = with_gpu(GPU_TESTS)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([f"waiting for a GPU: GPU-1 is in use by process {os.getpid()}"])


def test_workers_of_xdist_take_turns(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """Two processes, one GPU: no two of its tests overlap, and the others do not wait."""
    pytester.makeconftest(HAS_GPU)
    log = tmp_path / "log"
    pytester.makepyfile(
        f"""
        import os, time
        import pytest
        @pytest.mark.pymllm_gpu
        @pytest.mark.parametrize("n", range(6))
        def test_x(n):
            began = time.monotonic()
            time.sleep(0.05)
            with open({str(log)!r}, "a") as file:
                print(began, time.monotonic(), os.getpid(), file=file)
        """
    )
    pytester._monkeypatch.setenv(FOLDER, str(tmp_path))
    result = pytester.runpytest_subprocess("-p", PLUGIN, "-n2", "--dist=each")
    result.assert_outcomes(passed=12)
    spans = sorted(tuple(map(float, line.split())) for line in log.read_text(encoding="utf-8").splitlines())
    assert len({pid for _, _, pid in spans}) == 2
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


SHARDED = """
import pytest
@pytest.mark.pymllm_gpu
@pytest.mark.parametrize("n", range(20))
def test_gpu(n): pass
def test_cpu(): pass
"""


def test_shards_have_each_gpu_test_once(with_gpu: Run) -> None:
    """By its id; tests that need no GPU are none of their business."""
    ran: list[str] = []
    for number in (1, 2, 3):
        result = with_gpu(SHARDED, "-v", f"--gpu-shard={number}/3")
        ran += [line.split()[0] for line in result.outlines if "::test_gpu" in line and "PASSED" in line]
        assert any("::test_cpu PASSED" in line for line in result.outlines)
    assert len(ran) == len(set(ran)) == 20
    with_gpu(SHARDED, "--gpu-shard", "1/2", "-k", "cpu").assert_outcomes(passed=1, deselected=20)


@pytest.mark.parametrize("shard", ["0/3", "4/3", "3", "a/b", "-1/3", "1/0"])
def test_a_shard_that_there_is_not_is_refused(run: Run, shard: str) -> None:
    """One line, before any test."""
    result = run(SHARDED, f"--gpu-shard={shard}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*'{shard}' is no shard N/M, N in 1..M; 1/3 is the first of three"])


# -- whether they use it, and give it back ---------------------------------------------------------------


def test_a_test_that_touches_no_gpu_is_told(with_gpu: Run, pytester: pytest.Pytester) -> None:
    """At the end, and in the log; a strict run fails it. One that failed, or has children, is not accused."""
    text = """
import pytest, subprocess
pytestmark = pytest.mark.pymllm_gpu
def test_nothing(): pass
def test_watched(gpu_memory): pass
def test_failing(): assert False
def test_skipping(): pytest.skip("it has a reason")
def test_child(): subprocess.run(["true"])
"""
    for end in (end_idle_programs, end_reaper, stop_warm):  # children of this process may have used a GPU
        end()
    name = "test_a_test_that_touches_no_gpu_is_told.py"
    result = with_gpu(text, "--gpu-memory-log=gpu.jsonl")
    result.assert_outcomes(passed=3, failed=1, skipped=1)
    title = "need a GPU and touched none (pymllm)"
    place = next(at for at, line in enumerate(result.outlines) if title in line)
    why = "CUDA was not used in this process"
    assert result.outlines[place + 1 : place + 3] == [
        f"{name}::{it}: {why}" for it in ("test_nothing", "test_watched")
    ]
    assert result.outlines[place + 3].startswith("=")
    lines = [json.loads(line) for line in (pytester.path / "gpu.jsonl").read_text("utf-8").splitlines()]
    assert [(it["test"].split("::")[1], it["untouched"]) for it in lines] == [
        ("test_nothing", why),
        ("test_watched", why),
    ]
    result = with_gpu(text, "--gpu-strict")
    result.assert_outcomes(passed=1, failed=3, skipped=1)
    result.stdout.fnmatch_lines([f"needs a GPU and touched none, which --gpu-strict forbids: {why}"])
    result.stdout.no_fnmatch_line(f"*{title}*")


RETURNED = """
import os, time
import pytest
from tests.fake_nvml.machine import GIB, say
from tests.fake_nvml.machine import MIB
from pymllm.pytest_plugin import gpu_gate
gpu_gate.why_no_cuda = lambda: None
pytestmark = pytest.mark.pymllm_gpu

@pytest.fixture
def engine():
    say(used=3 * GIB)
    yield
    say(used=GIB)

def test_returned(engine, wait_for_gpu_memory):
    with pytest.raises(pytest.fail.Exception, match="has not come back: after 0 s [24].0 GiB more"):
        say(used=5 * GIB)
        wait_for_gpu_memory(seconds=0)

def test_kept(request): say(used=5 * GIB, processes=f"{os.getpid()}:{GIB}")

def test_after(wait_for_gpu_memory):
    say(used=GIB)
    wait_for_gpu_memory(seconds=0, slack=0)
"""


@pytest.mark.usefixtures("sees_fake_gpus")
def test_memory_that_does_not_come_back_is_an_error_with_who_has_it(pytester: pytest.Pytester) -> None:
    """At the end of the test that took it, its fixtures gone; of each that needs a GPU, by a setting."""
    pytester.makepyfile(RETURNED)
    pytester.runpytest_subprocess("-p", PLUGIN).assert_outcomes(passed=3)
    result = pytester.runpytest_subprocess("-p", PLUGIN, "-o", "pymllm_gpu_wait=0")
    result.assert_outcomes(passed=3, errors=1)
    name = "test_memory_that_does_not_come_back_is_an_error_with_who_has_it.py::test_kept"
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_kept*",
            f"GPU memory of {name} has not come back: after 0 s 3.0 GiB more are in use than before it; it is"
            " held by process * (this one: *) 1.0 GiB",
        ]
    )


def test_where_memory_cannot_be_read_nobody_waits(with_gpu: Run) -> None:
    """The end of the run says so, and a strict one fails."""
    text = "import pytest\n@pytest.mark.pymllm_gpu\ndef test_x(wait_for_gpu_memory): wait_for_gpu_memory()"
    result = with_gpu(text)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*not judged (pymllm)*", "1 test: wait_for_gpu_memory: *"])
    with_gpu(text, "--gpu-strict").assert_outcomes(errors=1)


@pytest.mark.parametrize("seconds", ["-1", "soon", "nan", "4000"])
def test_a_wait_without_sense_is_refused(run: Run, seconds: str) -> None:
    """One line, before any test."""
    result = run(GPU_TESTS, "-o", f"pymllm_gpu_wait={seconds}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = f"ERROR: pymllm_gpu_wait: '{seconds}' is no number of seconds in 0..3600; 30 is usual"
    assert [line for line in result.stderr.lines if line] == [said]


# -- how much they use -----------------------------------------------------------------------------------

GROWTH = """
import os, time
import pytest
from tests.fake_nvml.machine import GIB, say

@pytest.fixture(autouse=True)
def alone():
    say(used=GIB, processes=f"{os.getpid()}:{GIB}")

def grow(memory, size):
    say(used=size, processes=f"{os.getpid()}:{GIB}")
    while max(memory.curve.used) < size:
        time.sleep(0.01)
    say(used=GIB, processes=f"{os.getpid()}:{GIB}")
    print("grown")

@pytest.mark.gpu_memory_limit("2 GiB")
def test_too_much(gpu_memory):
    grow(gpu_memory, 4 * GIB)

@pytest.mark.gpu_memory_limit("2 GiB")
def test_enough(gpu_memory):
    grow(gpu_memory, 3 * GIB)

def test_other_failure(gpu_memory):
    grow(gpu_memory, 3 * GIB)
    assert gpu_memory.summary().device.value == 5

@pytest.mark.gpu_memory_limit("2 GiB")
def test_without_the_fixture():
    say(used=5 * GIB, processes=f"{os.getpid()}:{GIB}")

@pytest.mark.gpu_memory_limit("100 GiB")
def test_timed(gpu_memory, benchmark):
    benchmark(lambda: None)
    assert len(gpu_memory.curve) == 1
"""


@pytest.mark.usefixtures("sees_fake_gpus")
def test_a_broken_limit_fails_and_shows_the_curve(pytester: pytest.Pytester) -> None:
    """Numbers, curve and device are in the report of whatever fails, and in the log of everything."""
    pytester.makepyfile(GROWTH)
    result = pytester.runpytest_subprocess("-p", PLUGIN, "--gpu-memory-log=gpu.jsonl", "--benchmark-disable")
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines(
        [
            "GPU memory: 3.0 GiB on top of what was in use before; the limit is 2.0 GiB (this process alone*",
            "*- Captured GPU memory call -*",
            "3.0 GiB on top*",
            "*▁*█*",
            "1.0 GiB to 4.0 GiB, highest after *",
            "Fake GPU (GPU-00000000-fake), driver 599.01",
            "*test_other_failure*",
            "*- Captured GPU memory call -*",
            "1.0 GiB to 3.0 GiB*",
            "*test_without_the_fixture*",
            "GPU memory: 4.0 GiB on top*",
        ]
    )
    lines = [json.loads(line) for line in (pytester.path / "gpu.jsonl").read_text("utf-8").splitlines()]
    outcomes = {line["test"].split("::")[1]: line["limit"] and line["limit"]["outcome"] for line in lines}
    assert outcomes == {
        "test_too_much": "exceeded",
        "test_enough": "kept",
        "test_other_failure": None,
        "test_without_the_fixture": "exceeded",
        "test_timed": "kept",
    }
    assert max(lines[0]["nvml"]["curve"]["used"]) == 4 * GIB


def test_a_limit_that_nobody_can_judge_is_told_at_the_end(run: Run) -> None:
    """No GPU, no verdict: the test passes, and the summary says what was not examined."""
    text = """
import pytest
@pytest.mark.gpu_memory_limit("2 GiB")
@pytest.mark.parametrize("n", [1, 2])
def test_x(n): pass
"""
    result = run(text)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*not judged (pymllm)*", "2 tests: gpu_memory_limit: *"])


def test_where_a_gpu_is_required_such_a_limit_fails(with_gpu: Run) -> None:
    """A runner whose counters have gone does not pass by not looking."""
    text = """
import pytest
@pytest.mark.pymllm_gpu
@pytest.mark.gpu_memory_limit("2 GiB")
def test_x(): pass
"""
    result = with_gpu(text, "--require-gpu")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*not judged, which --require-gpu forbids: gpu_memory_limit:*"])
    with_gpu(text).assert_outcomes(passed=1)


UNJUDGED = """
import pytest
@pytest.mark.gpu_memory_limit("2 GiB")
def test_limit(): pass
def test_leaks(leak_check): leak_check(lambda: None)
@pytest.mark.no_leak
def test_forgets(): pass
def test_slots(leak_check): leak_check(lambda: None, slots=lambda: 0)
"""


@pytest.mark.parametrize("missing", [(), ("pynvml",), ("torch", "pynvml")], ids=str)
def test_what_nothing_here_can_judge_is_told_and_strict_runs_fail(
    pytester: pytest.Pytester, missing: tuple[str, ...]
) -> None:
    """No GPU, no NVML, a torch for the CPU or none at all: never green without a word."""
    pytester.makeconftest(f"import sys\nfor name in {missing}: sys.modules[name] = None")
    pytester.makepyfile(UNJUDGED)
    pytester._monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = pytester.runpytest_subprocess("-p", PLUGIN)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*not judged (pymllm)*", "2 tests: leaks: *", "1 test: gpu_memory_limit: *"])
    result = pytester.runpytest_subprocess("-p", PLUGIN, "--gpu-strict")
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["*not judged, which --gpu-strict forbids: leaks: *"])
    result.stdout.no_fnmatch_line("*not judged (pymllm)*")
    pytester.makeini("[pytest]\npymllm_gpu_strict = true\n")
    result = pytester.runpytest_subprocess("-p", PLUGIN)
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["*not judged, which pymllm_gpu_strict forbids: gpu_memory_limit: *"])


def test_without_torch_a_device_cannot_be_had(pytester: pytest.Pytester) -> None:
    """The fixture for a device names torch as its need, and the way to get it."""
    pytester.makeconftest("import sys\nsys.modules['torch'] = None")
    pytester.makepyfile("def test_x(kv_device): pass")
    result = pytester.runpytest_subprocess("-p", PLUGIN)
    result.assert_outcomes(errors=1, skipped=1)
    result.stdout.fnmatch_lines(["kv_device needs torch; pip install 'pymllm[[]torch[]]' brings it: *"])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("gpu_memory_limit", "*marker gpu_memory_limit: *missing 1 required*"),
        ("gpu_memory_limit('2 potatoes')", "*marker gpu_memory_limit: size is '2 potatoes'*"),
        ("gpu_memory_limit(1, 2)", "*marker gpu_memory_limit: *takes 1 positional*"),
        ("no_leak(epochs=3)", "*marker no_leak: epochs must be at least 10, got 3*"),
        ("no_leak(epochs=12.0)", "*marker no_leak: epochs must be a whole number, got 12.0*"),
        ("no_leak(rounds=30)", "*marker no_leak: *unexpected keyword*"),
    ],
)
def test_a_marker_without_sense_fails_before_the_test_runs(run: Run, marker: str, message: str) -> None:
    """X1: a limit that was mistyped is not one that holds."""
    result = run(f"import pytest\n@pytest.mark.{marker}\ndef test_x(): print('has run')")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])
    for noise in ("*has run*", "*During handling*", "*<locals>*"):
        result.stdout.no_fnmatch_line(noise)


def test_a_log_that_cannot_be_written_ends_the_run_at_once(run: Run) -> None:
    """One line, before any test."""
    result = run("def test_x(): pass", "--gpu-memory-log=nowhere/x.jsonl")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --gpu-memory-log=*nowhere*: No such file or directory"])


# -- what they leave -------------------------------------------------------------------------------------


def test_a_leak_of_slots_is_found_and_named(run: Run) -> None:
    """leak_check runs the work, and fails with the layer and its slope."""
    result = run(
        """
def test_leaks(leak_check):
    lost = []
    leak_check(lambda: lost.append(1), slots=lambda: len(lost))
def test_clean(leak_check):
    verdict = leak_check(lambda: None, slots=lambda: 0, epochs=10)
    assert not verdict.leaking
"""
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "memory leaks: slots: leak of 1 slots per epoch*; in process *, test *::test_leaks",
            "*- Captured leaks call -*",
            "live bytes: unknown*",
            f"in process {os.getpid()} (this one: *); of the GPU's memory: *",
        ]
    )


def test_a_wrong_call_is_shown_where_it_stands(run: Run) -> None:
    """X1: the line of the test and what would do, not the insides of the plugin."""
    result = run("def test_x(leak_check): leak_check(lambda: None, epochs=3)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *ValueError: epochs must be at least 10, got 3*"])
    result.stdout.no_fnmatch_line("*leaks.py*")


def test_no_leak_repeats_a_test(run: Run) -> None:
    """With the fixtures of one test; a failure in a later run is a failure."""
    result = run(
        """
import pytest
done = []
@pytest.fixture
def seven(): return 7
@pytest.mark.no_leak
def test_x(seven): done.append(seven)
def test_after(): assert done == [7] * 12
@pytest.mark.no_leak(epochs=10)
def test_y():
    done.append(0)
    assert len(done) < 15
def test_last(): assert len(done) == 15
"""
    )
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*not judged (pymllm)*", "1 test: leaks: *"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("async def test_x(): pass", "*cannot repeat a coroutine*"),
        (
            "class TestX(unittest.TestCase):\n    def test_x(self): pass",
            "*no_leak can repeat only pytest's test functions*",
        ),
    ],
)
def test_what_cannot_be_repeated_fails(run: Run, text: str, message: str) -> None:
    """A promise that would silently not be examined."""
    result = run(f"import pytest, unittest\npytestmark = pytest.mark.no_leak\n{text}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([message])


def test_reports_of_workers_reach_the_summary(run: Run) -> None:
    """Under xdist, what was not judged is told by the process that writes the report."""
    text = "import pytest\n@pytest.mark.gpu_memory_limit('2 GiB')\ndef test_x(): pass"
    result = run(text, "-n1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*not judged (pymllm)*", "1 test: gpu_memory_limit: *"])


assert torch  # loaded, see above
