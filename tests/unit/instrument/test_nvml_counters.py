"""Tests of NVML's counters: the meaning of bytes on this machine, and events that spoil a run."""

from __future__ import annotations

import os

import pytest

from pymllm.instrument.nvml_counters import HealthWatch, MemoryGauge, NvmlMemory, process_memory, why_invalid
from pymllm.instrument.nvml_device import NvmlDevice, find_device
from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.nvml_record import Health, UsedMeans
from pymllm.instrument.reading import COUNT, Reading, Unreadable
from tests.fake_nvml.machine import GIB, MIB, calls, on_machine, raised, say, users

LIST = "nvmlDeviceGetComputeRunningProcesses"


def opened(device: int | str = 0) -> tuple[NvmlLibrary, NvmlDevice]:
    library = NvmlLibrary()
    library.open()
    return library, find_device(library, device)


# -- what used means -------------------------------------------------------------------------------


@on_machine(used=GIB, reserved=GIB // 2)
def test_the_drivers_reserve_is_never_in_what_is_read() -> None:
    """The second form's used has the reserve or not; the same bytes are read either way, and which it was."""
    library, device = opened()
    for kind, means in (("without", UsedMeans.WITHOUT_RESERVED), ("with", UsedMeans.WITH_RESERVED)):
        say(used=GIB, reserved=GIB // 2, v2__used=kind)
        gauge = MemoryGauge(library, device)
        assert (gauge.means, gauge.read(), gauge.reserved.value) == (means, GIB, GIB // 2), kind
    say(used=GIB, v2__used="odd")  # parts that do not add up: nothing is taken away on a guess
    gauge = MemoryGauge(library, device)
    assert (gauge.means, gauge.read()) == (UsedMeans.UNEXPLAINED, GIB)


@on_machine(without=["nvmlDeviceGetMemoryInfo_v2"], used=GIB, reserved=GIB // 2)
def test_the_first_form_has_the_reserve_inside() -> None:
    """An older driver does not tell how much of used is its own."""
    gauge = MemoryGauge(*opened())
    assert (gauge.means, gauge.read()) == (UsedMeans.UNSEPARATED, 3 * GIB // 2)
    assert gauge.reserved.reason is not None


@on_machine(fail__nvmlDeviceGetMemoryInfo_v2=25)
def test_a_refused_version_falls_back_to_the_first_form() -> None:
    """A driver that does not know this version of the struct still has the first."""
    gauge = MemoryGauge(*opened())
    assert gauge.means is UsedMeans.UNSEPARATED
    gauge.read()
    assert calls("nvmlDeviceGetMemoryInfo_v2") == 1, "it is tried once"


@on_machine(without=["nvmlDeviceGetMemoryInfo_v2"], v1__used="all")
def test_all_ones_are_no_number_of_bytes() -> None:
    """NVML's mark for no value is not read as a device of 16 EiB."""
    library, device = opened()
    assert "no value for this device" in raised(Unreadable, MemoryGauge, library, device)


# -- whose -----------------------------------------------------------------------------------------


@on_machine()
def test_this_process_is_told_from_others() -> None:
    """Its bytes, once for each context that it has, and how many others there are; unlisted is not zero."""
    library, device = opened()
    say(processes=f"1:{GIB} {os.getpid()}:{MIB} {os.getpid()}:{2 * MIB} 2:none")
    memory = process_memory(library, device)
    assert (memory.mine.value, memory.others) == (3 * MIB, Reading(2, "processes"))
    # Inside a container, the list has the numbers from outside: neither own nor others are known.
    say(processes=f"1:{GIB} 2:{GIB}")
    memory = process_memory(library, device)
    assert "not among the 2 that the driver lists" in str(memory.mine.reason)
    assert memory.others.reason == memory.mine.reason
    # All ones is what Windows and WSL write; the others are still counted.
    say(processes=f"{os.getpid()}:none 7:{MIB}")
    memory = process_memory(library, device)
    assert memory.mine.reason == "the driver lists this process without its memory"
    assert memory.others.value == 1
    # No bytes are what a driver writes that sees one container alone: whoever is in another is not listed.
    say(processes=f"{os.getpid()}:0")
    memory = process_memory(library, device)
    assert memory.mine.reason == "the driver lists this process with 0 bytes, which no context has"
    assert memory.others.reason == f"{memory.mine.reason}, and may leave out those of other containers"


@on_machine(without=[f"{LIST}_v3"])
def test_an_older_list_is_read_too() -> None:
    """A driver older than nvidia-ml-py has the older form."""
    library, device = opened()
    say(processes=f"{os.getpid()}:{MIB}")
    assert process_memory(library, device).mine.value == MIB
    assert calls(f"{LIST}_v2") == 2


@on_machine(without=[f"{LIST}_v3", f"{LIST}_v2"])
def test_without_a_list_nothing_is_known() -> None:
    """No list is a reason."""
    memory = process_memory(*opened())
    assert memory.mine.reason == memory.others.reason == f"{LIST}_v2: Function Not Found"


# -- now and then ----------------------------------------------------------------------------------


@on_machine()
def test_memory_is_read_now_and_then() -> None:
    """The library is opened by the first reading and closed by the last act."""
    memory = NvmlMemory("cuda:0")
    assert users() == 0
    say(used=2 * GIB, processes=f"{os.getpid()}:{MIB}")
    use = memory.read()
    assert (use.used.value, use.own.value, use.others.value) == (2 * GIB, MIB, 0)
    memory.read()
    assert users() == 1
    memory.close()
    assert users() == 0
    assert memory.read().used.value == 2 * GIB


@on_machine(gpus=0)
def test_a_device_that_comes_later_is_found_later() -> None:
    """A device that could not be opened is tried again, and nothing stays open in between."""
    memory = NvmlMemory()
    assert memory.read().own.reason == "the driver shows 0 devices, so none has index 0"
    assert users() == 0
    say(gpus=1)
    assert memory.read().used.value == GIB


@on_machine()
def test_a_device_without_memory_to_read_still_has_processes() -> None:
    """Each reading has its own reason."""
    failing = {f"fail.{name}": 999 for name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")}
    say(processes=f"{os.getpid()}:{MIB}", **failing)
    use = NvmlMemory().read()
    assert use.used.reason == "nvmlDeviceGetMemoryInfo: Unknown Error"
    assert use.own.value == MIB


NONE = Reading(0, COUNT)
SOUND = Health((), (), NONE, NONE, NONE, None)


@on_machine(ecc__corrected=5, ecc__uncorrected=6, remapped__corrected=1, remapped__uncorrected=2)
def test_only_what_is_new_counts() -> None:
    """A device with a past is not spoilt by it."""
    watch = HealthWatch(*opened())
    say(ecc__corrected=8, ecc__uncorrected=7, remapped__corrected=2, remapped__uncorrected=4)
    watch.close()
    seen = watch.seen()
    assert (seen.ecc_corrected.value, seen.ecc_uncorrected.value, seen.remapped_rows.value) == (3, 1, 3)
    assert why_invalid(seen) == ("1 uncorrected memory errors", "3 rows of memory were remapped")
    assert watch.unwatched() == ()


@on_machine(ecc__uncorrected=6)
def test_a_count_that_began_anew_is_unknown() -> None:
    """A count of errors is unknown before the end, and after a reset, and then accuses no run."""
    watch = HealthWatch(*opened())
    assert watch.seen().ecc_uncorrected.reason == "counted when the run ends"
    assert "remapped rows: counted when the run ends" in watch.unwatched()
    say(ecc__uncorrected=2)
    watch.close()
    assert watch.seen().ecc_uncorrected.reason == "the count fell from 6 to 2, as after a reset"
    assert why_invalid(watch.seen()) == ()


@on_machine()
def test_a_slowdown_between_start_and_end_is_kept() -> None:
    """Clocks that were lowered at one sample were lowered in the run."""
    watch = HealthWatch(*opened())
    for bits in (0x01, 0x44, 0x02):
        say(clocks=bits)
        watch.sample()
    watch.close()
    assert watch.seen().slowdowns == ("software power cap", "hardware thermal slowdown")
    assert why_invalid(watch.seen()) == ("clocks were lowered: hardware thermal slowdown",)


@on_machine(without=["nvmlDeviceGetCurrentClocksEventReasons"], clocks=0x08)
def test_an_older_name_of_the_clocks_is_known() -> None:
    """A driver older than the name of the function has the former one."""
    watch = HealthWatch(*opened())
    watch.sample()
    assert watch.seen().slowdowns == ("hardware slowdown",)


@on_machine(xids="31")
def test_reported_errors_are_taken_in_order() -> None:
    """Also those that came after the last sample; each once."""
    watch = HealthWatch(*opened(), xid_period=0)
    watch.sample()
    watch.sample()
    assert watch.seen().xids == (31,)
    say(xids="31 79 31")
    watch.close()
    assert watch.seen().xids == (31, 79, 31)
    assert why_invalid(watch.seen()) == ("the driver reported XID 31", "the driver reported XID 79")
    assert calls("nvmlEventSetFree") == 1


@on_machine(xids="31")
def test_reported_errors_wait_until_it_is_time() -> None:
    """Waiting for reports takes long beside a sample: once a second is enough, and once at the end."""
    watch = HealthWatch(*opened(), xid_period=1000)
    for _ in range(50):
        watch.sample()
    assert calls("nvmlEventSetWait_v2") == 0
    watch.close()
    assert watch.seen().xids == (31,)


@on_machine(mig=3, xids="31@0 43@2 79")
def test_another_instances_errors_are_not_ours() -> None:
    """MIG: those of another instance say nothing; where ours is unknown, a run is rather repeated."""
    watch = HealthWatch(*opened("MIG-00000000-0002"))
    watch.close()
    assert watch.seen().xids == (43, 79)
    say(mig=3, xids="31@0", fail__nvmlDeviceGetGpuInstanceId=3)
    watch = HealthWatch(*opened("MIG-00000000-0002"))
    watch.close()
    assert watch.seen().xids == (31,)


@on_machine()
def test_a_device_that_reports_without_end_does_not_hold_the_sampler() -> None:
    """A sample takes a bounded number of errors."""
    watch = HealthWatch(*opened(), xid_period=0)
    say(xids=" ".join(["62"] * 100))
    watch.sample()
    assert len(watch.seen().xids) == 64
    watch.sample()
    assert len(watch.seen().xids) == 100


@on_machine(fail__nvmlEventSetCreate=4, fail__nvmlDeviceGetCurrentClocksEventReasons=3)
def test_what_cannot_be_watched_is_asked_once() -> None:
    """Each has its reason, and costs nothing more."""
    watch = HealthWatch(*opened())
    watch.sample()
    watch.close()
    assert watch.unwatched() == (
        "clocks: nvmlDeviceGetCurrentClocksEventReasons: Not Supported",
        "XID errors: nvmlEventSetCreate: Insufficient Permissions",
    )
    assert calls("nvmlDeviceGetCurrentClocksEventReasons") == 1
    assert calls("nvmlEventSetWait_v2") == 0
    assert watch.seen().lost is None


@on_machine(fail__nvmlEventSetFree=15)
def test_a_device_may_be_lost_at_either_end() -> None:
    """The first question may show it, or the last, and the end of watching is never an error."""
    watch = HealthWatch(*opened())
    watch.close()
    assert watch.seen().lost == "nvmlEventSetFree: GPU is lost"
    say(fail__nvmlDeviceGetTotalEccErrors=15)
    assert HealthWatch(*opened()).seen().lost == "nvmlDeviceGetTotalEccErrors: GPU is lost"


@on_machine()
def test_a_device_that_goes_is_noticed_wherever_it_shows() -> None:
    """Lost is lost, whichever call says so first, and the end is no error."""
    watch = HealthWatch(*opened())
    say(lost=1)
    watch.sample()
    lost = watch.seen().lost
    assert lost is not None
    assert lost.endswith("GPU is lost")
    watch.close()
    assert watch.seen().lost == lost
    assert watch.seen().xids == ()
    assert len(watch.unwatched()) == 5


@pytest.mark.parametrize(
    "health",
    [
        SOUND,
        Health(("software power cap",), (), Reading(9, COUNT), NONE, NONE, None),
        Health((), (), *[Reading.unknown(COUNT, "no permission")] * 3, None),
    ],
)
def test_the_sound_and_the_unknown_are_not_accused(health: Health) -> None:
    """A power cap and corrected errors are normal, and what was not read is no fault."""
    assert why_invalid(health) == ()
