"""Faults of blocks and their index: each edit fits the code as it is."""

from __future__ import annotations

import pytest

from pymllm.adapters.cabinet.block_faults import FAULTS
from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.planting import planted


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_every_fault_can_be_planted_where_it_says(fault: Fault) -> None:
    """A fault whose code has changed goes stale loudly."""
    assert all(edit.target.startswith("pymllm.core") for edit in fault.edits)
    with planted(fault.edits):
        assert fault.edits
