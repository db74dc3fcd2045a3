"""Each of several streams reads its own writes from a pool whose slots go from stream to stream."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from pymllm.mem_cache.memory_pool import GDNPool, make_full_attention_net_mem_pool
from tests.stress.bit_patterns import stamp
from tests.stress.card import Card, Lane, Rounds

LAYERS, LANES, WIDTH, STATES = 3, 4, 8, 24


@dataclass
class Held:
    """Slots and a state row, in use by one lane."""

    owner: int
    lane: Lane
    slots: torch.Tensor
    row: int


class Server:
    """A scheduler on the current stream that hands slots to lanes, and takes them back from any.

    Trackers are the scheduler's: it alone allocates and frees. A lane follows it before using new slots, and
    is followed before they are free again, as a scheduler that overlaps steps has to arrange it.
    """

    def __init__(self, card: Card, page_size: int, seed: int) -> None:
        self.card, self.page_size = card, page_size
        self.longest = 2_048 if card.is_cuda else 96
        size = 16 * self.longest
        self.draw = random.Random(seed)
        self.pool, self.allocator = make_full_attention_net_mem_pool(
            size, LAYERS, 1, WIDTH, 1, WIDTH, card.device, torch.int64, page_size
        )
        self.states = GDNPool(1, LAYERS, 1, 2, 2, 3, 3, card.device, max_track_slots=STATES)
        self.lanes = [Lane(card.device) for _ in range(LANES)]
        self.wrong = [torch.zeros((), dtype=torch.int64, device=card.device) for _ in self.lanes]
        self.held: list[Held] = []
        self.owners = 0

    def rows_of(self, it: Held, layer: int, half: int) -> torch.Tensor:
        positions = torch.arange(len(it.slots), device=self.card.device)
        return stamp(it.owner, positions, 2 * layer + half, WIDTH)

    def admit(self) -> bool:
        """Give slots to a lane, which writes to them while the scheduler goes on."""
        count = -(-self.draw.randrange(1, self.longest) // self.page_size) * self.page_size
        row = self.states.alloc_track_slot()
        if row is None:
            return False
        slots = self.allocator.alloc(count)
        if slots is None:
            self.states.free_track_slot(row)
            return False
        self.owners += 1
        it = Held(self.owners, self.draw.choice(self.lanes), slots, row)
        self.held.append(it)
        it.lane.follow_current()
        with it.lane:
            for layer in range(LAYERS):
                k, v = (self.rows_of(it, layer, half)[:, None] for half in (0, 1))
                self.pool.set_kv_buffer(layer, slots, k, v)
                self.states.get_layer_state(layer)[0][it.row] = float(it.owner)
        return True

    def read(self, it: Held) -> None:
        """Have the lane count the elements that its owner did not write, without waiting for the count."""
        wrong = self.wrong[self.lanes.index(it.lane)]
        with it.lane:
            for layer in range(LAYERS):
                for half, buffer in enumerate(self.pool.get_kv_buffer(layer)):
                    found = buffer[it.slots.long()].view(-1, WIDTH)
                    wrong += (found != self.rows_of(it, layer, half)).sum()
                wrong += (self.states.get_layer_state(layer)[0][it.row] != float(it.owner)).sum()

    def move_state(self, it: Held) -> None:
        """Copy a state to another row, in its own lane, and forget the first one."""
        row = self.states.alloc_track_slot()
        if row is None:
            return
        it.lane.follow_current()  # whoever had the row before is done with it
        with it.lane:
            self.states.copy_states(it.row, row)
            self.states.reset_states(it.row)
        it.lane.be_followed()
        self.states.free_track_slot(it.row)
        it.row = row

    def release(self, it: Held) -> None:
        self.read(it)
        it.lane.be_followed()
        self.held.remove(it)
        self.allocator.free(it.slots)
        self.states.free_track_slot(it.row)

    def step(self) -> None:
        if self.held and self.draw.random() < 0.5:
            act = self.draw.choice((self.read, self.move_state, self.release))
            act(self.draw.choice(self.held))
        elif not self.admit():
            self.release(self.draw.choice(self.held))

    def found_wrong(self) -> int:
        """Wait for all lanes, and return the number of elements so far that their owners did not write."""
        for lane in self.lanes:
            lane.be_followed()
        return int(sum(int(count) for count in self.wrong))


@pytest.mark.gpu_memory_limit("512 MiB")
@pytest.mark.parametrize("page_size", [1, 16])
def test_each_lane_reads_what_it_wrote(card: Card, rounds: Rounds, seed: int, page_size: int) -> None:
    """E1, E2, E5: slots and states change hands between streams thousands of times."""
    server = Server(card, page_size, seed)
    for _ in rounds(600 if not card.is_cuda else 3_000):
        server.step()
    for it in list(server.held):
        server.release(it)
    assert server.found_wrong() == 0
    assert server.owners > LANES * STATES
    assert server.allocator.available_size() == server.allocator.size
    assert server.states.available_track_slots() == STATES


@pytest.mark.parametrize("where", ["keys", "values", "states"])
def test_a_stray_write_is_counted(card: Card, seed: int, where: str) -> None:
    """The count above can rise: a single element of another owner is enough."""
    server = Server(card, 1, seed)
    while server.admit():
        pass
    assert server.found_wrong() == 0
    it = server.draw.choice(server.held)
    states = server.states.get_layer_state(1)[0]
    place = {"keys": server.pool.k_buffer[1][it.slots[-1]], "values": server.pool.v_buffer[2][it.slots[0]]}
    target = place.get(where, states[it.row])
    target.view(-1)[-1] += 1
    it.lane.follow_current()
    server.read(it)
    assert server.found_wrong() == 1
