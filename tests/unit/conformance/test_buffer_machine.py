"""The machine of KV buffers finds what is wrong with a pool, and knows the calls of its adapter."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.own_buffers import KVBuffers
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.pool_machine import BufferMachine
from pymllm.errors import InvariantViolation
from pymllm.history.outcomes import Done
from pymllm.oracle.situations import expected_situations

CONFIG = KVBuffers.CONFIGURATIONS[1]


class PaddedElsewhere(KVBuffers):
    """Pads with the last slot."""

    def do_write_kv(self, step: int, operation: Any) -> Done:
        done = super().do_write_kv(step, operation)
        if 0 in operation.slots:
            self.pool.k_buffer[operation.layer][-1].copy_(self.pool.k_buffer[operation.layer][0])
            self.pool.k_buffer[operation.layer][0] = 0
        return done


class EveryLayer(KVBuffers):
    """Writes the values of one layer into all."""

    def do_write_kv(self, step: int, operation: Any) -> Done:
        done = super().do_write_kv(step, operation)
        for buffer in self.pool.v_buffer:
            buffer.copy_(self.pool.v_buffer[operation.layer])
        return done


class Rounding(KVBuffers):
    """Stores keys by way of a wider type, which quiets a NaN."""

    def do_write_kv(self, step: int, operation: Any) -> Done:
        done = super().do_write_kv(step, operation)
        buffer = self.pool.k_buffer[operation.layer]
        buffer.copy_(buffer.float().nan_to_num(1.0).to(buffer.dtype))
        return done


class KeysFirst(KVBuffers):
    """Writes the keys before it has looked at the values."""

    def do_write_kv(self, step: int, operation: Any) -> Done:
        try:
            return super().do_write_kv(step, operation)
        except ValueError:
            self.pool.k_buffer[0][1] += 1
            raise


class Overtaken(KVBuffers):
    """Moves rows one by one, so that one that moves is overwritten first."""

    def do_move_kv(self, step: int, operation: Any) -> Done:
        for buffer in (self.pool.k_buffer[operation.layer], self.pool.v_buffer[operation.layer]):
            for at in range(operation.count):
                buffer[operation.target + at] = buffer[operation.source + at]
        return Done()


class Wrapping(KVBuffers):
    """Counts layers from the end, too."""

    def do_read_kv(self, step: int, operation: Any) -> Any:
        wrapped = range(self.pool.layer_num)[operation.layer]
        return super().do_read_kv(step, type(operation)(wrapped))


def machine_of(adapter_class: type[KVBuffers]) -> type[BufferMachine]:
    build = {"make_adapter": classmethod(lambda cls: adapter_class("x", CONFIG))}
    base = make_machine(BufferMachine, "kv-buffers", CONFIG)
    made: type[BufferMachine] = type(adapter_class.__name__, (base,), build)
    return made


@pytest.mark.parametrize(
    ("adapter_class", "laws"),
    [
        (PaddedElsewhere, {"E5"}),
        (EveryLayer, {"P3"}),
        (Rounding, {"P3", "E5"}),
        (KeysFirst, {"X1"}),
        (Overtaken, {"P3"}),
        (Wrapping, {"P3"}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_pool_breaks_its_law(adapter_class: type[KVBuffers], laws: set[str], seed: int) -> None:
    """P3, E5, X1: found from each of three seeds."""
    with pytest.raises(InvariantViolation) as caught:
        drive(machine_of(adapter_class), seed, 300)
    assert caught.value.law in laws


def test_the_machine_knows_every_malformed_call_of_the_adapter() -> None:
    """X1: and no other, so that none is passed over in silence."""
    assert {(call.call, call.wrong) for call in BufferMachine.MALFORMED} == set(KVBuffers.MALFORMED)


@pytest.mark.parametrize(
    "config",
    [
        {"size": 2, "page_size": 1, "layers": 1, "k_heads": 1, "k_dim": 1, "v_heads": 1, "v_dim": 1},
        {"size": 64, "page_size": 16, "layers": 5, "k_heads": 2, "k_dim": 4, "v_heads": 1, "v_dim": 3},
    ],
)
def test_the_machine_fits_itself_to_every_size(config: dict[str, Any]) -> None:
    """P3: a small pool, and one larger than what is drawn."""
    machine = drive(make_machine(BufferMachine, "kv-buffers", {**config, "dtype": "float32"}), 5, 200)
    assert set(machine.examiner.judge.evidence.reached) <= expected_situations(
        machine.examiner.history.header
    )
