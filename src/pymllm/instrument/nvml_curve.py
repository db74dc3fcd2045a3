"""A curve in bounded memory, whatever the length of the run."""

from __future__ import annotations

from array import array

from pymllm.instrument.nvml_record import MemoryCurve

__all__ = ["CurveRecorder"]


class CurveRecorder:
    """Takes samples and keeps at most so many, evenly spread.

    Parameters
    ----------
    most : int, default 16384
        Samples to keep, an even number: a full recorder drops every second one and from then on keeps half as
        many as before.

    Attributes
    ----------
    peak : int or None
        The highest of all samples, also of those not kept.
    first, last : int or None
        The first sample and the last.

    Notes
    -----
    Cost: 16 bytes a kept sample, 256 KiB at most by default; at 10 Hz that is half an hour in full.
    """

    def __init__(self, most: int = 16384) -> None:
        if most < 2 or most % 2:
            raise ValueError(f"most must be even and at least 2, got {most}; 16384 is the default")
        self._most = most
        self._stride = 1
        self._taken = 0
        self._times = array("d")
        self._used = array("Q")
        self.peak: int | None = None
        self.first: int | None = None
        self.last: int | None = None

    def add(self, seconds: float, used: int) -> None:
        """Take a sample, later than those before.

        Parameters
        ----------
        seconds : float
            Since the start.
        used : int
            Bytes.
        """
        self.first = used if self.first is None else self.first
        self.last = used
        self.peak = used if self.peak is None else max(self.peak, used)
        if self._taken % self._stride == 0:
            if len(self._times) == self._most:
                self._times, self._used = self._times[::2], self._used[::2]
                self._stride *= 2
            self._times.append(seconds)
            self._used.append(used)
        self._taken += 1

    def curve(self) -> MemoryCurve:
        """Return what is kept."""
        return MemoryCurve(tuple(self._times), tuple(self._used))
