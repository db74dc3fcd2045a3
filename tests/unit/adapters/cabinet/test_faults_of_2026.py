"""Faults that were written down in 2026: each edit fits the code as it is."""

from __future__ import annotations

import pytest

from pymllm.adapters.cabinet.bugs_of_2026 import BUGS
from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.faults_of_2026 import FAULTS
from pymllm.adapters.cabinet.planting import planted
from pymllm.adapters.cabinet.unplanted import UNPLANTED


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_every_fault_can_be_planted_where_it_says(fault: Fault) -> None:
    """A fault whose code has changed goes stale loudly."""
    with planted(fault.edits):
        assert fault.edits


def test_each_of_these_bugs_is_planted_here_or_has_a_reason() -> None:
    """None is forgotten, and none is planted although there is a reason not to."""
    assert sorted([fault.id for fault in FAULTS] + [bug.id for bug in BUGS if bug.id in UNPLANTED]) == [
        bug.id for bug in BUGS
    ]
