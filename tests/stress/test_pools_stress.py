"""Requests come and go for long, and every row is read back: aliasing keeps totals right, not contents."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch

from pymllm.invariants.pools import check_req_to_token_pool
from pymllm.mem_cache.memory_pool import GDNPool, ReqToTokenPool, make_full_attention_net_mem_pool
from tests.stress.card import Rounds

LAYERS = 2
K_ROW, V_ROW = (1, 2), (2, 1)
BATCH = 8  # tokens per write, padded with slot 0 as a graph of fixed shape would be


@dataclass
class Running:
    row: int
    tag: int
    slots: torch.Tensor
    length: int
    track_slot: int | None = None


@dataclass
class Sizes:
    slots: int
    requests: int
    context: int
    steps: int


def sizes_for(device: torch.device) -> Sizes:
    return Sizes(1_024, 12, 192, 2_000) if device.type == "cpu" else Sizes(262_144, 64, 8_192, 1_000)


def fingerprint(tag: int, positions: torch.Tensor, layer: int, half: int) -> torch.Tensor:
    """Return the contents of a token's row: they depend on its owner, its place, the layer and the half."""
    mixed = positions + tag * 1_000_003 + layer * 7_919 + half * 104_729
    return mixed * -7_046_029_254_386_353_131 + 1


@dataclass
class Workload:
    """Admit, write, extend, snapshot, restore, finish, in an order drawn from a seed."""

    device: torch.device
    page_size: int
    seed: int
    running: dict[int, Running] = field(default_factory=dict)
    next_tag: int = 1

    def __post_init__(self) -> None:
        self.sizes = sizes_for(self.device)
        self.source = random.Random(self.seed)
        self.kv, self.allocator = make_full_attention_net_mem_pool(
            self.sizes.slots, LAYERS, *K_ROW, *V_ROW, self.device, torch.int64, self.page_size
        )
        self.rows = ReqToTokenPool(self.sizes.requests, self.sizes.context, self.device)
        self.gdn = GDNPool(
            self.sizes.requests, LAYERS, 1, 2, 2, 3, 3, self.device, torch.float32, max_track_slots=4
        )

    def step(self) -> None:
        if self.running and self.source.random() < 0.4:
            self.source.choice((self.extend, self.finish, self.snapshot, self.restore))(self.pick())
        elif not self.admit() and self.running:
            self.finish(self.pick())

    def pick(self) -> Running:
        return self.running[self.source.choice(sorted(self.running))]

    def admit(self) -> bool:
        length = self.source.randrange(1, self.sizes.context // 2)
        rows = self.rows.alloc()
        if rows is None:
            return False
        slots = self.allocator.alloc(-(-length // self.page_size) * self.page_size)
        if slots is None:
            self.rows.free(rows[0])
            return False
        request = Running(rows[0], self.next_tag, slots, 0)
        self.next_tag += 1
        self.running[request.row] = request
        self.gdn.reset_states(request.row)
        self.write(request, length)
        return True

    def extend(self, request: Running) -> None:
        """Grow into the page, or take another; a request that cannot grow stays as it is."""
        length = min(request.length + self.source.randrange(1, 40), self.sizes.context)
        missing = -(-length // self.page_size) * self.page_size - len(request.slots)
        if missing > 0:
            more = self.allocator.alloc(missing)
            if more is None:
                return
            request.slots = torch.cat([request.slots, more])
        self.write(request, length)

    def write(self, request: Running, length: int) -> None:
        """Bring the request to ``length`` tokens: its row, its KV in padded batches, its state."""
        start, request.length = request.length, length
        new = request.slots[start:length]
        self.rows.write((request.row, slice(start, length)), new)
        padding = -len(new) % BATCH
        indices = torch.cat([new, new.new_zeros(padding)]).view(-1, BATCH)
        positions = torch.arange(start, length + padding, device=self.device)
        for layer in range(LAYERS):
            k, v = (fingerprint(request.tag, positions, layer, half).repeat_interleave(2) for half in (0, 1))
            self.kv.set_kv_buffer(layer, indices, k.view(-1, BATCH, *K_ROW), v.view(-1, K_ROW[1]))
            self.gdn.get_layer_state(layer)[0][request.row] = self.state_of(request, layer)

    def state_of(self, request: Running, layer: int) -> float:
        return float(request.tag * 1_000 % 65_521 + request.length + layer * 100_000)

    def snapshot(self, request: Running) -> None:
        if request.track_slot is None:
            request.track_slot = self.gdn.alloc_track_slot()
        if request.track_slot is not None:
            self.gdn.copy_states(request.row, request.track_slot)

    def restore(self, request: Running) -> None:
        """A state that is disturbed comes back from a snapshot that was just taken."""
        self.snapshot(request)
        if request.track_slot is not None:
            self.gdn.reset_states(torch.tensor([request.row, 0], device=self.device))
            self.gdn.copy_states([request.track_slot], [request.row])

    def finish(self, request: Running) -> None:
        del self.running[request.row]
        self.allocator.free(request.slots)
        self.rows.free(request.row)
        if request.track_slot is not None:
            self.gdn.free_track_slot(request.track_slot)

    def read_back(self) -> None:
        """Follow each row to its slots and compare every element with what a cold run would write."""
        for request in self.running.values():
            slots = self.rows.req_to_token[request.row, : request.length].long()
            positions = torch.arange(request.length, device=self.device)
            for layer in range(LAYERS):
                for half, buffer in enumerate(self.kv.get_kv_buffer(layer)):
                    found = buffer[slots].flatten(start_dim=1)
                    expected = fingerprint(request.tag, positions, layer, half)
                    assert torch.equal(found, expected[:, None].expand_as(found)), (request.tag, layer, half)
                state = self.gdn.get_layer_state(layer)[0][request.row]
                assert (state == self.state_of(request, layer)).all(), (request.tag, layer)


@pytest.mark.gpu_memory_limit("256 MiB")
@pytest.mark.parametrize("page_size", [1, 16])
def test_every_row_reads_back_what_its_request_wrote(
    kv_device: torch.device, rounds: Rounds, seed: int, page_size: int
) -> None:
    """E1, E2, E5, P2, P5: through recycling, padding, exhaustion and snapshots nothing leaks into another."""
    work = Workload(kv_device, page_size, seed + page_size)
    for step in rounds(work.sizes.steps):
        work.step()
        if step % 10 == 0:
            work.read_back()
    work.read_back()
    check_req_to_token_pool(work.rows, kv_rows=work.sizes.slots + page_size)
    assert work.next_tag > 2 * work.sizes.requests, "no row was recycled"
    for request in list(work.running.values()):
        work.finish(request)
    assert work.allocator.available_size() == work.sizes.slots
    assert work.rows.available_size() == work.sizes.requests
    assert not work.rows.req_to_token.any()


def test_a_slot_that_nobody_wrote_stays_zero(kv_device: torch.device) -> None:
    """P3, E5: set_kv_buffer writes exactly the named rows, however many calls there are."""
    rows = 4_097
    pool, _ = make_full_attention_net_mem_pool(rows - 1, 1, 1, 3, 1, 2, kv_device, torch.float16)
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(rows - 1, generator=generator)[: rows // 2] + 1
    for slots in order.split(61):
        numbers = slots.to(kv_device, torch.float16)[:, None].repeat(1, 3)
        pool.set_kv_buffer(0, slots.to(kv_device), numbers, -numbers[:, :2].contiguous())
    expected = torch.zeros(rows, dtype=torch.float16, device=kv_device)
    expected[order.to(kv_device)] = order.to(kv_device, torch.float16)
    assert torch.equal(pool.k_buffer[0], expected[:, None, None].expand(-1, 1, 3))
    assert torch.equal(pool.v_buffer[0], -expected[:, None, None].expand(-1, 1, 2))
