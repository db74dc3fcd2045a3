"""What spoils a run is seen, and what does not is no reproach."""

from __future__ import annotations

import pytest

from pymllm.instrument.nvml_counters import HealthWatch, why_invalid
from pymllm.instrument.nvml_device import NvmlDevice, find_device
from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.nvml_record import Health
from pymllm.instrument.reading import COUNT, Reading
from tests.fake_nvml.machine import calls, on_machine, say

NONE = Reading(0, COUNT)
SOUND = Health((), (), NONE, NONE, NONE, None)


def opened(device: int | str = 0) -> tuple[NvmlLibrary, NvmlDevice]:
    library = NvmlLibrary()
    library.open()
    return library, find_device(library, device)


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
    """After a reset of the device nobody knows how many errors there were; it is no accusation."""
    watch = HealthWatch(*opened())
    say(ecc__uncorrected=2)
    watch.close()
    assert watch.seen().ecc_uncorrected.reason == "the count fell from 6 to 2, as after a reset"
    assert why_invalid(watch.seen()) == ()


@on_machine()
def test_counts_are_unknown_until_the_end() -> None:
    """Before the end nobody has counted."""
    watch = HealthWatch(*opened())
    assert watch.seen().ecc_uncorrected.reason == "counted when the run ends"
    assert "remapped rows: counted when the run ends" in watch.unwatched()


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
    """MIG: what another instance did says nothing about this one; what concerns the GPU does."""
    watch = HealthWatch(*opened("MIG-00000000-0002"))
    watch.close()
    assert watch.seen().xids == (43, 79)


@on_machine(mig=3, xids="31@0", fail__nvmlDeviceGetGpuInstanceId=3)
def test_whose_errors_they_are_may_be_unknown() -> None:
    """Without the instance's number, errors are taken as its own: a run is rather repeated than believed."""
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
def test_the_end_of_watching_is_never_an_error() -> None:
    """A device may be lost as late as that."""
    watch = HealthWatch(*opened())
    watch.close()
    assert watch.seen().lost == "nvmlEventSetFree: GPU is lost"


@on_machine(fail__nvmlDeviceGetTotalEccErrors=15)
def test_a_device_may_be_lost_from_the_start() -> None:
    """The first question already shows it."""
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
