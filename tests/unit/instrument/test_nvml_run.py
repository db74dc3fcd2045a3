"""One run from its start to its end, without a thread's help."""

from __future__ import annotations

from pymllm.instrument.nvml import Channel, NvmlRun
from pymllm.instrument.reading import PERCENT, Reading, Unreadable
from tests.fake_nvml.machine import GIB, on_machine, say


def test_a_channel_remembers_mean_and_peak() -> None:
    """What was added is what is told."""
    channel = Channel(PERCENT)
    for value in (10, 20, 60):
        channel.add(value)
    assert (channel.mean(), channel.peak()) == (Reading(30, PERCENT), Reading(60, PERCENT))


def test_a_channel_that_never_worked_is_closed_at_once() -> None:
    """What fails the first time is not supported here; it has no failures among its samples."""
    channel = Channel(PERCENT)
    assert channel.mean().reason == "no sample was taken"
    channel.fail(Unreadable("not supported"))
    assert not channel.is_open
    assert channel.failures == 0
    assert channel.peak() == Reading.unknown(PERCENT, "not supported")


def test_a_channel_is_given_three_chances() -> None:
    """What worked may fail now and then; three times in a row is for good."""
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
    """What is read at the end is unknown until then."""
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
