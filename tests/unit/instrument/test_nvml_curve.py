"""A curve stays small, whatever the length of the run."""

from __future__ import annotations

import itertools

import pytest

from pymllm.instrument.nvml_record import CurveRecorder


def test_a_short_run_is_kept_in_full() -> None:
    """Nothing is dropped while there is room."""
    recorder = CurveRecorder(4)
    for at in range(4):
        recorder.add(at / 10, at)
    assert recorder.curve().times == (0.0, 0.1, 0.2, 0.3)
    assert recorder.curve().used == (0, 1, 2, 3)
    assert len(recorder.curve()) == 4


@pytest.mark.parametrize("samples", [5, 100, 1001])
def test_a_long_run_is_thinned_evenly(samples: int) -> None:
    """The kept samples have one distance, and begin with the first."""
    recorder = CurveRecorder(8)
    for at in range(samples):
        recorder.add(float(at), at)
    times = recorder.curve().times
    steps = {later - sooner for sooner, later in itertools.pairwise(times)}
    assert len(times) <= 8
    assert len(steps) == 1
    assert times[0] == 0
    assert times[-1] > samples - 1 - 2 * steps.pop()


def test_the_peak_counts_samples_that_are_not_kept() -> None:
    """A peak between two kept samples is a peak."""
    recorder = CurveRecorder(2)
    for at, used in enumerate([5, 1, 1, 9, 1, 1, 2]):
        recorder.add(float(at), used)
    assert 9 not in recorder.curve().used
    assert (recorder.first, recorder.peak, recorder.last) == (5, 9, 2)


def test_without_samples_there_is_no_peak() -> None:
    """Nothing seen is not zero bytes."""
    recorder = CurveRecorder()
    assert (recorder.first, recorder.peak, recorder.last) == (None, None, None)
    assert len(recorder.curve()) == 0


@pytest.mark.parametrize("most", [0, 1, 7])
def test_an_odd_room_is_refused(most: int) -> None:
    """Half of the samples go at a time."""
    with pytest.raises(ValueError, match="must be even"):
        CurveRecorder(most)
