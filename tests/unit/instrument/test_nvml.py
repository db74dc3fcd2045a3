"""The tracker on machines of the fake NVML, under the real pynvml."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from pymllm.instrument import nvml_library
from pymllm.instrument.nvml import NvmlRun, NvmlTracker
from pymllm.instrument.nvml_counters import NvmlMemory
from pymllm.instrument.nvml_record import Channel, UsedMeans
from pymllm.instrument.reading import PERCENT, Reading, Unreadable
from tests.fake_nvml.machine import GIB, MIB, NAME, FakeNvml, calls, on_machine, raised, readers, say, users

MEMORY = "nvmlDeviceGetMemoryInfo_v2"


def until(condition: Callable[[], bool]) -> None:
    """Wait until the sampler has done something."""
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up, "the sampler did nothing for 20 seconds"
        time.sleep(0.002)


# -- what is watched -------------------------------------------------------------------------------


@on_machine(used=GIB, grow=MIB, total=8 * GIB, reserved=GIB // 2, utilization=70)
def test_growth_is_in_the_curve() -> None:
    """Memory that grows while the tracker runs is seen, sample by sample."""
    with NvmlTracker(hz=500) as tracker:
        until(lambda: len(tracker.curve) >= 5)
    record = tracker.summary()
    assert list(record.curve.used) == sorted(set(record.curve.used))
    assert list(record.curve.times) == sorted(record.curve.times)
    assert record.used_peak == record.used_end
    assert record.used_start.value == record.curve.used[0] >= GIB
    assert record.total.value == 8 * GIB
    assert record.reserved.value == GIB // 2
    assert (record.utilization_mean.value, record.utilization_peak.value) == (70, 70)
    assert record.device is not None
    assert record.device.uuid == "GPU-00000000-fake"
    assert (record.device.name, record.device.driver) == ("Fake GPU", "599.01")
    assert record.is_valid is True


@on_machine()
def test_this_process_is_looked_up_only_before_and_after() -> None:
    """The list of processes stalls a device for milliseconds: never at a sample."""
    say(processes=f"1:{GIB} {os.getpid()}:{2 * MIB}")
    with NvmlTracker(hz=500) as tracker:
        before = calls("nvmlDeviceGetComputeRunningProcesses_v3")
        until(lambda: tracker.summary().cost.samples >= 5)
        assert calls("nvmlDeviceGetComputeRunningProcesses_v3") == before
        say(processes=f"1:{GIB} {os.getpid()}:{5 * MIB}")
    record = tracker.summary()
    assert record.process_end.minus(record.process_start).value == 3 * MIB


@on_machine()
def test_a_change_between_two_samples_is_seen_at_the_end() -> None:
    """The last sample is taken when the run ends, at any rate; its cost is told, as plain data, too."""
    msgspec = pytest.importorskip("msgspec")
    say(slow_ms=5)
    with NvmlTracker(hz=0.001) as tracker:
        say(slow_ms=5, used=3 * GIB)
    record = tracker.summary()
    assert (record.used_start.value, record.used_end.value) == (GIB, 3 * GIB)
    assert record.used_peak.value == 3 * GIB
    assert record.cost.samples == 2
    assert record.cost.total_ns >= 2 * 5_000_000
    assert record.cost.longest_ns >= 5_000_000
    assert record.cost.ends_ns > 0
    assert "2 samples of" in str(record)
    plain = json.loads(msgspec.json.encode(record))
    assert plain["used_start"] == {"value": GIB, "unit": "bytes", "reason": None}
    assert plain["used_means"] == "without reserved"
    assert plain["device"]["is_mig"] is False


@on_machine()
def test_nothing_is_loaded_or_left_behind() -> None:
    """Neither torch nor a user of the library stays when the last tracker has gone."""
    with NvmlTracker(), NvmlTracker():
        assert users() == 2
    assert users() == 0
    assert "torch" not in sys.modules
    assert [thread.name for thread in threading.enumerate()] == ["MainThread"]


# -- pauses ----------------------------------------------------------------------------------------


@on_machine()
def test_no_sample_is_taken_in_a_pause() -> None:
    """A timed region is not disturbed, whatever the rate; of two, the last to end lets sampling go on."""
    with NvmlTracker(hz=1000) as tracker:
        until(lambda: tracker.summary().cost.samples >= 3)
        with tracker.paused():
            with tracker.paused():
                before = calls(MEMORY)
            time.sleep(0.05)
            assert calls(MEMORY) == before
        until(lambda: calls(MEMORY) > before + 1)
    cost = tracker.summary().cost
    assert cost.pauses == 2
    assert cost.paused_ns >= 50_000_000


@on_machine()
def test_a_pause_waits_for_the_sample_under_way() -> None:
    """A region that is timed does not begin in the middle of a call of the driver."""
    say(slow_ms=30)
    with NvmlTracker(hz=1000) as tracker:
        until(lambda: readers() == 1)
        with tracker.paused():
            assert readers() == 0


@on_machine()
def test_what_a_long_pause_left_is_seen_when_it_ends() -> None:
    """A region longer than the distance of two samples ends with one."""
    with NvmlTracker(hz=50) as tracker:
        with tracker.paused():
            say(used=2 * GIB)
            time.sleep(0.03)
        before = tracker.curve.used[-1]
    assert before == 2 * GIB


@on_machine()
def test_a_run_that_ends_in_a_pause_asks_for_nothing_slow() -> None:
    """The end of the tracker must not disturb another thread's timed region."""
    with NvmlTracker(hz=1000) as tracker:
        pause = tracker.paused()
        pause.__enter__()
        before = calls(MEMORY), calls("nvmlDeviceGetComputeRunningProcesses_v3")
        time.sleep(0.005)
    assert (calls(MEMORY), calls("nvmlDeviceGetComputeRunningProcesses_v3")) == before
    record = tracker.summary()
    pause.__exit__(None, None, None)
    assert record.process_end.reason == "the run ended while it was paused"
    assert record.used_end.value == GIB
    assert tracker.summary().cost.samples == record.cost.samples, "nothing is sampled after the end"


# -- how it is used --------------------------------------------------------------------------------


@on_machine(grow=MIB)
def test_a_decorated_function_is_watched_at_each_call() -> None:
    """Each outermost call is a run of its own; a call within a call belongs to it."""
    tracker = NvmlTracker(hz=0.001)

    @tracker
    def countdown(number: int) -> int:
        """Count."""
        return number and countdown(number - 1)

    assert countdown(3) == 0
    first = tracker.summary()
    assert first.cost.samples == 2
    countdown(0)
    assert tracker.summary().used_start.value > first.used_end.value  # type: ignore[operator]
    assert countdown.__doc__ == "Count."
    assert users() == 0


@on_machine()
def test_what_only_begins_when_called_is_not_decorated() -> None:
    """A coroutine's work happens after the call: the tracker would see none of it."""

    async def coroutine() -> None: ...

    async def asynchronous() -> object:
        yield

    def generator() -> object:
        yield

    for function in (coroutine, generator, asynchronous):
        assert "only begins when called" in raised(TypeError, NvmlTracker(), function)


@on_machine()
def test_threads_share_a_tracker() -> None:
    """From the first to enter to the last to leave it is one run."""
    tracker = NvmlTracker(hz=1000)
    leave = threading.Event()
    entered = threading.Barrier(5)

    def work() -> None:
        with tracker:
            entered.wait(20)
            leave.wait(20)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    entered.wait(20)
    assert users() == 1
    leave.set()
    for thread in threads:
        thread.join()
    assert users() == 0
    assert tracker.summary().process_end.reason is not None


@on_machine()
def test_an_error_inside_ends_the_run_and_goes_on() -> None:
    """The tracker never hides what happened, and makes up no record before it has run."""
    tracker = NvmlTracker()
    assert "has not run yet" in raised(ValueError, tracker.summary)
    assert "has not run yet" in raised(ValueError, tracker.paused().__enter__)

    def fail() -> None:
        with tracker:
            raise KeyError("inside")

    assert raised(KeyError, fail) == "'inside'"
    assert users() == 0


@on_machine()
def test_bad_arguments_are_refused_before_anything_runs() -> None:
    """X1: rate and device are checked when the tracker is made."""
    for hz in (0, -1.0, 1001, float("nan")):
        assert "at most 1000" in raised(ValueError, lambda hz=hz: NvmlTracker(hz=hz))
    assert "no CUDA device" in raised(ValueError, lambda: NvmlTracker("cpu"))
    assert "at least 0" in raised(ValueError, lambda: NvmlTracker(-1))
    assert "must be an index" in raised(TypeError, lambda: NvmlTracker(1.5))
    for rate in ("x", None, True, 1j):
        assert "hz must be a number" in raised(TypeError, lambda rate=rate: NvmlTracker(hz=rate))
    assert users() == 0


# -- what is missing -------------------------------------------------------------------------------


def test_without_the_library_everything_is_unknown(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """A machine without a driver is no error, and no zero."""
    (tmp_path / NAME).write_text("no library")
    code = """if True:
        from pymllm.instrument.nvml import NvmlTracker
        with NvmlTracker() as tracker, tracker.paused():
            pass
        record = tracker.summary()
        assert record.reason == "nvmlInit: NVML Shared Library Not Found", record.reason
        used, own, rows = record.used_peak, record.process_end, record.health.remapped_rows
        assert used.reason == own.reason == rows.reason == record.reason
        assert record.is_valid is None and len(record.curve) == 0 and record.cost.samples == 0
        assert str(record) == "not watched: nvmlInit: NVML Shared Library Not Found"
    """
    done = fake_nvml.run([sys.executable, "-c", code], tmp_path, {})
    assert done.returncode == 0, done.stderr


@on_machine(init=9)
def test_without_driver_or_device_everything_is_unknown() -> None:
    """A library without its driver is as good as none, and so is a driver without a GPU."""
    with NvmlTracker() as tracker:
        pass
    assert tracker.summary().reason == "nvmlInit: Driver Not Loaded"
    say(gpus=0)
    with NvmlTracker() as tracker:
        assert users() == 0
    assert tracker.summary().reason == "the driver shows 0 devices, so none has index 0"


@on_machine(fail__nvmlDeviceGetUtilizationRates=3, fail__nvmlDeviceGetTotalEccErrors=3, supports_xids=0)
def test_a_missing_counter_leaves_the_others() -> None:
    """Each unknown has its own reason; what was unwatched is listed, and the rest is read."""
    with NvmlTracker(hz=500) as tracker:
        until(lambda: tracker.summary().cost.samples >= 4)
    record = tracker.summary()
    assert record.utilization_peak.reason == "nvmlDeviceGetUtilizationRates: Not Supported"
    assert record.health.ecc_corrected.reason == "nvmlDeviceGetTotalEccErrors: Not Supported"
    assert record.health.remapped_rows.value == 0
    assert record.used_peak.value == GIB
    assert record.is_valid is None
    assert any("XID errors: the driver does not report them" in line for line in record.unwatched)
    assert calls("nvmlDeviceGetUtilizationRates") == 1, "what never worked is asked once"
    assert record.cost.failures == 0


@on_machine(without=["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"])
def test_without_memory_the_rest_is_watched() -> None:
    """No memory to read is a reason, not an empty device."""
    with NvmlTracker(hz=0.001) as tracker:
        pass
    record = tracker.summary()
    assert record.used_means is UsedMeans.UNKNOWN
    assert record.used_peak.reason == "nvmlDeviceGetMemoryInfo: Function Not Found"
    assert record.total.reason == record.used_start.reason == record.used_peak.reason
    assert record.utilization_peak.value == 50
    assert record.unwatched == ("device memory: nvmlDeviceGetMemoryInfo: Function Not Found",)


@on_machine()
def test_a_device_that_is_lost_spoils_the_run() -> None:
    """The curve ends where the device did, and the record says why."""
    with NvmlTracker(hz=500) as tracker:
        until(lambda: len(tracker.curve) >= 3)
        say(lost=1)
        until(lambda: tracker.summary().health.lost is not None)
    record = tracker.summary()
    assert record.is_valid is False
    assert "the device was lost" in record.invalid[-1]
    assert record.used_peak.value == GIB
    assert record.used_end.reason == "nvmlDeviceGetMemoryInfo: GPU is lost"
    assert record.health.ecc_uncorrected.reason == "nvmlDeviceGetTotalEccErrors: GPU is lost"
    assert record.cost.failures >= 1
    assert users() == 0


@on_machine()
def test_a_counter_that_fails_now_and_then_is_asked_again() -> None:
    """One failure is a gap in the curve, not its end."""
    with NvmlTracker(hz=0.001) as tracker:
        for fails in (True, False, True):
            say(**({f"fail.{MEMORY}": 999} if fails else {"used": 2 * GIB}))
            with tracker.paused():
                tracker._run._due = 0.0  # type: ignore[union-attr]
        say(used=3 * GIB)
    record = tracker.summary()
    assert record.curve.used == (GIB, 2 * GIB, 3 * GIB)
    assert record.cost.failures == 2
    assert record.used_end.value == 3 * GIB
    assert record.unwatched == ("device memory: nvmlDeviceGetMemoryInfo: Unknown Error",)


# -- forks -----------------------------------------------------------------------------------------


def in_fork(act: Callable[[], None]) -> int:
    """The exit status of a forked child that does something."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@on_machine()
def test_a_forked_child_has_nothing_and_breaks_nothing() -> None:
    """In the child of a fork there is no thread and no library: it says so, and the parent's run goes on."""
    refused = "forked while its parent had NVML open"
    with NvmlTracker(hz=1000) as tracker:

        def watch_anew() -> None:
            with tracker.paused():
                assert "forked from the one that watches" in str(tracker.summary().reason)
            with tracker as again, NvmlTracker() as new:
                pass
            assert refused in str(again.summary().reason)
            assert refused in str(new.summary().reason)
            tracker.__exit__(None, None, None)
            assert users() == 1

        def leave() -> None:
            tracker.__exit__(None, None, None)
            with tracker:
                pass
            assert refused in str(tracker.summary().reason)
            assert users() == 1

        for act in (watch_anew, leave):
            assert in_fork(act) == 0
        samples = tracker.summary().cost.samples
        until(lambda: tracker.summary().cost.samples > samples)
    assert users() == 0


@on_machine()
def test_a_child_forked_before_may_watch_by_itself() -> None:
    """Where the parent has let go of the library, a child opens its own."""
    with NvmlTracker():
        pass

    def watch() -> None:
        with NvmlTracker(hz=0.001) as tracker:
            pass
        assert tracker.summary().used_peak.value == GIB

    assert in_fork(watch) == 0


# -- on a device -------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_an_allocation_on_a_device_is_in_the_curve() -> None:
    """256 MiB that are taken while the tracker runs are seen by the driver."""
    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    with NvmlTracker(hz=100) as tracker:
        held = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        time.sleep(0.1)
        del held
        torch.cuda.empty_cache()
        time.sleep(0.1)
    record = tracker.summary()
    print(record)
    assert record.used_means in set(UsedMeans) - {UsedMeans.UNKNOWN}
    assert max(record.curve.used) - min(record.curve.used) >= 256 * MIB
    assert record.used_peak.minus(record.used_start).value == max(record.curve.used) - record.curve.used[0]
    assert record.cost.samples >= 10


def test_a_channel_remembers_mean_and_peak() -> None:
    """A channel tells the mean and the peak of the values that were added."""
    channel = Channel(PERCENT)
    for value in (10, 20, 60):
        channel.add(value)
    assert (channel.mean(), channel.peak()) == (Reading(30, PERCENT), Reading(60, PERCENT))


def test_a_channel_that_never_worked_is_closed_at_once() -> None:
    """A channel that fails the first time is unsupported, and counts no failures among its samples."""
    channel = Channel(PERCENT)
    assert channel.mean().reason == "no sample was taken"
    channel.fail(Unreadable("not supported"))
    assert not channel.is_open
    assert channel.failures == 0
    assert channel.peak() == Reading.unknown(PERCENT, "not supported")


def test_a_channel_is_given_three_chances() -> None:
    """A channel that worked is closed after three failures in a row."""
    channel = Channel(PERCENT)
    channel.add(10)
    for _ in range(5):
        channel.fail(Unreadable("busy"))
        channel.fail(Unreadable("busy"))
        assert channel.is_failing
        channel.add(10)
        assert not channel.is_failing
    for _ in range(3):
        assert channel.is_open
        channel.fail(Unreadable("busy"))
    assert not channel.is_open
    assert channel.failures == 13
    assert channel.mean() == Reading(10, PERCENT)


def test_a_run_that_has_not_begun_has_seen_nothing() -> None:
    """A record may be asked for at any time."""
    record = NvmlRun(0, 0.1).record()
    assert record.reason == "the run has not begun"
    assert record.used_peak.reason == record.reason


@on_machine()
def test_a_record_amid_a_run_says_what_is_known_so_far() -> None:
    """A reading that is made at the end is unknown until then."""
    run = NvmlRun(0, 1000.0)
    run.start()
    say(used=2 * GIB)
    record = run.record()
    assert record.used_end.value == GIB
    assert record.process_end.reason == "read when the run ends"
    assert record.is_valid is None
    run.stop()
    assert run.record().used_end.value == 2 * GIB
    assert run.record().is_valid is True
    assert run.record() == run.record()


@on_machine()
def test_a_driver_that_hangs_in_the_middle_holds_nobody() -> None:
    """Neither the end of the run, nor a pause, nor a look at the record, nor whoever asks after it."""
    nvml_library.PATIENCE = 0.2
    began = time.monotonic()
    with NvmlTracker(hz=500) as tracker:
        say(hang__nvmlDeviceGetMemoryInfo_v2=1)
        while not tracker._started()._is_sampling:
            time.sleep(0.001)
        time.sleep(0.05)
        for _ in range(100):
            with tracker.paused():
                assert tracker.summary().device is not None
    hung = "nvmlDeviceGetMemoryInfo: no answer within 0.2 s, the driver hangs; see pymllm doctor"
    assert hung in tracker.summary().unwatched
    assert tracker.summary().is_valid is None
    for reason in (NvmlMemory().read().used.reason, NvmlMemory().holders()):
        assert reason == hung
    with NvmlTracker() as tracker:
        pass
    assert tracker.summary().reason == hung
    assert time.monotonic() - began < 10


@on_machine(hang__nvmlDeviceGetMemoryInfo_v2=1)
def test_a_driver_that_hangs_at_the_start_holds_nobody() -> None:
    """The first question has a limit, too."""
    nvml_library.PATIENCE = 0.2
    reason = "nvmlDeviceGetMemoryInfo: no answer within 0.2 s, the driver hangs; see pymllm doctor"
    assert NvmlMemory().read().own.reason == reason
    with NvmlTracker() as tracker:
        pass
    assert tracker.summary().reason == reason
