"""The tracker on machines of the fake NVML, under the real pynvml."""

from __future__ import annotations

import time

from pymllm.instrument.nvml import NvmlTracker
from tests.fake_nvml.machine import GIB, on_machine


@on_machine(used=GIB, grow=1 << 20)
def test_growth_is_in_the_curve() -> None:
    """Memory that grows while the tracker runs is seen, sample by sample."""
    with NvmlTracker(hz=200) as tracker:
        time.sleep(0.1)
    record = tracker.summary()
    print(record)
    assert list(record.curve.used) == sorted(set(record.curve.used))
    assert len(record.curve) >= 5
