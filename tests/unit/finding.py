"""A violation to work with: that of the first seed from which a machine meets one."""

from __future__ import annotations

from pymllm.conformance.acting import ActingMachine, FoundViolation, drive
from pymllm.errors import InvariantViolation


def found_by(machine: type[ActingMachine], steps: int = 40) -> FoundViolation:
    """Drive a machine from one seed after another until a law is broken."""
    for seed in range(200):
        try:
            drive(machine, seed, steps)
        except InvariantViolation:
            break
    assert machine.found is not None
    return machine.found
