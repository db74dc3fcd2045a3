"""mllm's and Megatron-LM's classes under a short search: nothing but what has a page is broken.

They run where `PYMLLM_MLLM` and `PYMLLM_MEGATRON` name checkouts.
"""

from __future__ import annotations

import pytest

from pymllm.adapters.registry import PEERS, AdapterEntry, load_adapter, make_adapter
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.machines import load_machine, machines_for
from pymllm.conformance.smoke import smoke_test
from pymllm.errors import InvariantViolation
from pymllm.history.files import Config

ENTRIES = [entry for entry in PEERS if entry.variable]
KNOWN = {
    "mllm-radix": {"R3", "R7"},
    "mllm-radix-window": {"R2", "R3", "R7"},
    "mllm-mamba": {"R3", "R7"},
    "mllm-rows": {"P1"},
    "mllm-buffers": {"P3"},
}
"""Laws with a page in docs/findings that a search without anything special breaks."""
BEHIND = {"whole_keys", "matched_first", "padded"}
"""Keys of configurations with which a search goes on behind those."""


@pytest.fixture(autouse=True)
def has_a_checkout(entry: AdapterEntry) -> None:
    """Skip, with the reason, what nobody has checked out."""
    missing = entry.find_missing()
    if missing is not None:
        pytest.skip(missing)


def search(entry: AdapterEntry, config: Config) -> tuple[set[str], dict[str, str]]:
    """Return the laws that were tested with a configuration, and those that were broken."""
    laws: set[str] = set()
    broken: dict[str, str] = {}
    for place in machines_for(load_adapter(entry).KIND, make_adapter(entry.name, config).capabilities):
        machine = make_machine(load_machine(place), entry.name, config)
        for seed in range(4):
            try:
                laws.update(drive(machine, seed, 60).examiner.judge.evidence.exercised)
            except InvariantViolation as violation:
                broken.setdefault(violation.law, str(violation))
    return laws, broken


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_adapter_is_sane(entry: AdapterEntry) -> None:
    """Before its implementation is judged."""
    assert smoke_test(entry).kind == load_adapter(entry).KIND


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_nothing_is_broken_but_what_has_a_page(entry: AdapterEntry) -> None:
    """Every machine that can drive it, on every configuration; and nothing at all behind what is known."""
    laws: set[str] = set()
    for config in load_adapter(entry).CONFIGURATIONS:
        tested, broken = search(entry, dict(config))
        laws |= tested
        is_behind = bool(BEHIND & config.keys()) and (
            entry.name != "mllm-radix-window" or "matched_first" in config
        )
        assert broken.keys() <= (set() if is_behind else KNOWN.get(entry.name, set())), (config, broken)
    assert len(laws) >= 2
