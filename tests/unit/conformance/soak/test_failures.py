"""Programs made small."""

from __future__ import annotations

import pytest

from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.row_machine import RowMachine
from pymllm.conformance.soak.player import make_short
from pymllm.errors import InvariantViolation


def test_a_long_program_becomes_a_short_one_that_can_be_run_again() -> None:
    """P2, with the ways in which it shows."""
    config = dict(load_adapter(find_adapter("faulty-dirty-rows")).CONFIGURATIONS[0])
    machine = make_machine(RowMachine, "faulty-dirty-rows", config)
    with pytest.raises(InvariantViolation):
        drive(machine, 1, 500)
    assert machine.found is not None
    finding = make_short(machine.found)
    assert (finding.law, finding.is_rerun, finding.is_judged) == ("P2", True, True)
    assert len(finding.history) <= 6
