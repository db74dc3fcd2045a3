"""Bytes mean what they are found to mean on this machine."""

from __future__ import annotations

import os

from pymllm.instrument.nvml_counters import MemoryGauge, NvmlMemory, process_memory
from pymllm.instrument.nvml_device import NvmlDevice, find_device
from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.nvml_record import UsedMeans
from pymllm.instrument.reading import Reading, Unreadable
from tests.fake_nvml.machine import GIB, MIB, calls, on_machine, raised, say, users

LIST = "nvmlDeviceGetComputeRunningProcesses"


def opened() -> tuple[NvmlLibrary, NvmlDevice]:
    library = NvmlLibrary()
    library.open()
    return library, find_device(library, 0)


# -- what used means -------------------------------------------------------------------------------


@on_machine(used=GIB, reserved=GIB // 2)
def test_the_drivers_reserve_is_never_in_what_is_read() -> None:
    """The second form's used has the reserve or not; the same bytes are read either way, and which it was."""
    library, device = opened()
    for kind, means in (("without", UsedMeans.WITHOUT_RESERVED), ("with", UsedMeans.WITH_RESERVED)):
        say(used=GIB, reserved=GIB // 2, v2__used=kind)
        gauge = MemoryGauge(library, device)
        assert (gauge.means, gauge.read(), gauge.reserved.value) == (means, GIB, GIB // 2), kind


@on_machine(v2__used="odd", used=GIB)
def test_parts_that_do_not_add_up_are_said_to() -> None:
    """Nothing is taken away on a guess."""
    gauge = MemoryGauge(*opened())
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
    """What NVML writes for no value is no device of 16 EiB."""
    library, device = opened()
    assert "no value for this device" in raised(Unreadable, MemoryGauge, library, device)


# -- whose -----------------------------------------------------------------------------------------


@on_machine()
def test_this_process_is_told_from_others() -> None:
    """Its bytes, once for each context that it has, and how many others there are."""
    library, device = opened()
    say(processes=f"1:{GIB} {os.getpid()}:{MIB} {os.getpid()}:{2 * MIB} 2:none")
    memory = process_memory(library, device)
    assert memory.mine.value == 3 * MIB
    assert memory.others == Reading(2, "processes")


@on_machine(processes=f"1:{GIB} 2:{GIB}")
def test_a_process_that_is_not_listed_is_not_zero() -> None:
    """Inside a container, the list has the numbers from outside: neither own nor others are known."""
    memory = process_memory(*opened())
    assert "not among the 2 that the driver lists" in str(memory.mine.reason)
    assert memory.others.reason == memory.mine.reason


@on_machine()
def test_a_process_without_its_memory_is_not_zero() -> None:
    """All ones in the list is what Windows and WSL write; the others are still counted."""
    library, device = opened()
    say(processes=f"{os.getpid()}:none 7:{MIB}")
    memory = process_memory(library, device)
    assert memory.mine.reason == "the driver lists this process without its memory"
    assert memory.others.value == 1


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
    """What could not be opened is tried again; nothing stays open between."""
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
