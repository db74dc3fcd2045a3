"""Rows whose addresses do not fit 32 bits, on the host, where a pool's pages exist once they are written."""

from __future__ import annotations

import pytest

from pymllm.adapters.far import FAR, FAR_BYTES, why_not_far
from pymllm.adapters.own_pools import GDNStates, KVBuffers, OwnPool
from pymllm.errors import InvariantViolation
from pymllm.faults.plant import Edit, planted
from pymllm.history.files import Config
from pymllm.machines.acting import ActingMachine, drive, make_machine
from pymllm.machines.pools import BufferMachine
from pymllm.machines.rows import StateMachine
from tests.stress.card import Rounds

pytestmark = pytest.mark.skipif(why_not_far() is not None, reason=why_not_far() or "")

_POOLS = "pymllm.mem_cache.pools"
_WRAPPED = "{index} * max(1, {row}.nbytes) % 2**32 // max(1, {row}.nbytes)"
PLACES: dict[str, tuple[type[OwnPool], type[ActingMachine], tuple[Edit, ...], str]] = {
    "kv-buffers": (
        KVBuffers,
        BufferMachine,
        tuple(
            Edit(
                f"{_POOLS}.kv_pool:KVPool._write_rows",
                f"self._{part}_bits[layer].index_copy_(0, index, {part}_bits)",
                f"self._{part}_bits[layer].index_copy_("
                f"0, {_WRAPPED.format(index='index', row=f'self._{part}_bits[layer][0]')}, {part}_bits)",
            )
            for part in "kv"
        ),
        "P3",
    ),
    "gdn-states": (
        GDNStates,
        StateMachine,
        (
            Edit(
                f"{_POOLS}.gdn_pool:GDNPool.copy_states",
                "view.index_copy_(1, write, rows)",
                f"view.index_copy_(1, {_WRAPPED.format(index='write', row='view[0, 0]')}, rows)",
            ),
        ),
        "P5",
    ),
}
"""By adapter: what is examined, who does, addresses of writes that are computed in 32 bits, and their law."""

of_each_pool = pytest.mark.parametrize("name", PLACES)


def test_far_rows_lie_behind_the_border() -> None:
    """Bytes and elements of every buffer pass 2**32; a program reads few of them."""
    for name, (adapter_class, _, _, _) in PLACES.items():
        (config,) = FAR[name]
        pool = adapter_class(name, config).pool
        buffers = [*pool.k_buffer, *pool.v_buffer] if name == "kv-buffers" else [*pool._states]
        assert min(buffer.nbytes for buffer in buffers) >= FAR_BYTES > 2**32
        assert max(buffer.numel() for buffer in buffers) > 2**32


@of_each_pool
def test_a_pool_of_far_rows_breaks_no_law(rounds: Rounds, seed: int, name: str) -> None:
    """P3, P4, P5, E5, X1: each row holds what was written to it."""
    _, machine, _, law = PLACES[name]
    (config,) = FAR[name]
    for number in rounds(1):
        examiner = drive(make_machine(machine, name, config), seed + number, steps=100).examiner
        assert examiner.judge.evidence.exercised[law] > 50


def breaks(machine: type[ActingMachine], name: str, config: Config, seed: int) -> str | None:
    """Return the law that a program finds broken."""
    try:
        drive(make_machine(machine, name, config), seed, steps=100)
    except InvariantViolation as violation:
        return violation.law
    return None


@of_each_pool
def test_an_address_of_32_bits_is_seen_in_far_rows_alone(seed: int, name: str) -> None:
    """P3, P5: the last rows are written where the first ones lie; in small pools nothing is wrong."""
    adapter_class, machine, edits, law = PLACES[name]
    with planted(edits):
        near = {breaks(machine, name, config, seed) for config in adapter_class.CONFIGURATIONS}
        assert near == {None}
        assert breaks(machine, name, FAR[name][0], seed) == law
