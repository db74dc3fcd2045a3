"""Random traffic through a `DynamicInferenceContext`; every read is compared with what a cold run wrote."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from exact_recurrence import ExactRecurrence

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.forward_batch import ForwardBatch, RequestStep
from pymllm.core.inference.contexts.kv_block_allocator import PrefixCachingEvictionPolicy
from pymllm.core.inference.contexts.live_request import Region
from pymllm.errors import CapacityError
from pymllm.invariants.dynamic_context import check_dynamic_context
from pymllm.mem_cache.base_prefix_cache import hash_token_ids
from pymllm.workloads.fingerprint import prefix_fingerprints

NUM_BLOCKS = 21
LAYERS, CONV, SSM = 2, (3,), (2, 2)
CONV_DTYPE, SSM_DTYPE = torch.bfloat16, torch.float32


def weak_hash(digits: int) -> Callable[[Any, str | None], str]:
    """Make a hash function of so few hexadecimal digits that every context has collisions."""

    def hash_page(tokens: Any, prior: str | None) -> str:
        return hash_token_ids(tokens, prior)[:digits].rjust(16, "0")

    return hash_page


@dataclass(eq=False)
class ServedRequest:
    """A request and what the server wants of it."""

    prompt_tokens: np.ndarray
    output_length: int
    finished_chunk_token_count: int = 0

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt_tokens)

    @property
    def is_finished(self) -> bool:
        return len(self.tokens) >= len(self.prompt_tokens) + self.output_length


class InjectedFault(Exception):
    """What a test makes an allocation raise."""


class BlockServer:
    """A scheduler that makes random choices, and a model that notices everything it reads."""

    def __init__(
        self,
        seed: int,
        *,
        block_size: int,
        mamba_chunk_size: int,
        slots: int,
        policy: PrefixCachingEvictionPolicy,
        hash_digits: int | None = None,
        is_recurrent: bool = True,
        device: str | torch.device = "cpu",
        check_every: int = 1,
    ) -> None:
        self.draw = random.Random(seed)
        self.block_size = block_size
        self.chunk_size = mamba_chunk_size
        self.check_every = check_every
        recurrent = {
            "mamba_chunk_size": mamba_chunk_size,
            "mamba_slots": slots,
            "num_mamba_layers": LAYERS,
            "conv_states_shape": CONV,
            "ssm_states_shape": SSM,
            "conv_states_dtype": CONV_DTYPE,
            "ssm_states_dtype": SSM_DTYPE,
        }
        self.context = DynamicInferenceContext(
            max_requests=6,
            num_blocks=NUM_BLOCKS,
            max_blocks_per_request=10,
            block_size_tokens=block_size,
            prefix_caching_eviction_policy=policy,
            paused_limit=12,
            hash_page=weak_hash(hash_digits) if hash_digits else None,
            device=device,
            **(recurrent if is_recurrent else {}),
        )
        self.models = (
            ExactRecurrence(LAYERS, CONV, CONV_DTYPE, salt=1),
            ExactRecurrence(LAYERS, SSM, SSM_DTYPE, salt=1001),
        )
        self.kv = np.zeros(NUM_BLOCKS * block_size, np.uint64)
        self.served: list[ServedRequest] = []
        self.paused: list[ServedRequest] = []
        self.stems = [self._tokens(self.draw.randint(1, 6 * block_size)) for _ in range(4)]
        self.seen: Counter[str] = Counter()

    def _tokens(self, count: int) -> np.ndarray:
        return np.array([self.draw.randint(1, 3) for _ in range(count)], np.uint32)

    # What the scheduler does.

    def run(self, steps: int) -> None:
        """Make random choices; the context passes its checks after each, and every request ends well."""
        for step in range(steps):
            act = self.draw.choice(
                ["add", "add", "chunk", "step", "step", "step", "step", "pause", "resume", "drop"]
            )
            try:
                getattr(self, f"_{act}")()
            except InjectedFault:
                self.seen["faults"] += 1
            if step % self.check_every == 0:
                check_dynamic_context(self.context)
                self.check_cached_states()
        for req in list(self.served):
            self._release(req)
        check_dynamic_context(self.context)
        kv = self.context.kv_block_allocator
        assert kv.pool_avail + kv.evictable_blocks == kv.dummy_block_idx
        assert type(kv).allocate_memory_blocks(kv, kv.dummy_block_idx) is not None, (
            "E3: the pool owns all that is evicted"
        )
        slots = self.context.mamba_slot_allocator
        assert slots is None or slots.free_count == slots.max_slots

    def _budget(self) -> int | None:
        return self.draw.choice([None, 1, self.block_size, self.chunk_size, 2 * self.block_size + 1])

    def _add(self) -> None:
        stem = self.draw.choice(self.stems)
        stem = stem[: self.draw.choice([len(stem), self.draw.randint(1, len(stem))])]
        tail = self._tokens(self.draw.choice([0, 1, self.block_size, 2 * self.block_size]))
        req = ServedRequest(np.concatenate((stem, tail)), self.draw.randint(1, 2 * self.block_size))
        kv = self.context.kv_block_allocator
        clock, room = self.context.prefix_cache_lru_clock, kv.pool_avail + kv.evictable_blocks
        if self.context.add_request(req, self._budget()):
            self.served.append(req)
        else:
            self.seen["refused"] += 1
            assert (clock, room) == (self.context.prefix_cache_lru_clock, kv.pool_avail + kv.evictable_blocks)

    def _chunk(self) -> None:
        for req in self.context.waiting_requests:
            self.context.schedule_chunk(req, self._budget())

    def _step(self) -> None:
        self._chunk()
        held = self._held_with_state()
        try:
            self.context.step(self.forward)
            assert held <= self._held_with_state(), "C6: a block in use lost its state"
        except InjectedFault:
            # What the batch has done to its live states was not taken over.
            for req in [live.req for live in self.context._rows.of(Region.DECODE)]:
                self._release(req)
            for req in [live.req for live in self.context._rows.of(Region.PREFILL)]:
                self._release(req)
            raise
        except CapacityError:
            self.seen["out of blocks"] += 1
            self._drop()
        for req in [each for each in self.served if each.is_finished]:
            self._release(req)

    def _held_with_state(self) -> set[int]:
        slots = self.context.mamba_slot_allocator
        refs = self.context.kv_block_allocator.block_ref_counts
        return (
            set()
            if slots is None
            else set(((slots.block_to_slot >= 0) & (refs > 0)).nonzero().flatten().tolist())
        )

    def _pause(self) -> None:
        awake = [req for req in self.served if req not in self.paused]
        if awake and self.context.pause(req := self.draw.choice(awake)):
            self.paused.append(req)
            self.seen["paused"] += 1

    def _resume(self) -> None:
        if self.paused:
            self.context.resume(self.paused.pop(self.draw.randrange(len(self.paused))))

    def _drop(self) -> None:
        if self.served:
            self._release(self.draw.choice(self.served))

    def _release(self, req: ServedRequest) -> None:
        self.context.release(req)
        self.served.remove(req)
        if req in self.paused:
            self.paused.remove(req)

    # What the model computes and compares (law E1).

    def forward(self, batch: ForwardBatch) -> Sequence[int | None]:
        for step in batch.requests:
            self._read(step)
        self.seen["largest batch"] = max(self.seen["largest batch"], len(batch))
        return [self._compute(step) for step in batch.requests]

    def _read(self, step: RequestStep) -> None:
        """Every row and state that the request would read is what a cold run would have written."""
        req, stop = step.req, step.start + step.tokens.size
        known = np.array(req.tokens, np.uint32)
        assert step.tokens.size, "E4: a full hit still leaves a token to compute"
        assert np.array_equal(known[step.start : stop], step.tokens)
        written = self._slots(step, np.arange(step.start))
        assert np.array_equal(self.kv[written], prefix_fingerprints(known[: step.start])), "E1: KV rows"
        shared = np.flatnonzero(step.kv_slots >= self._dummy_start)
        if shared.size:
            positions = step.start + shared
            self.seen["recomputed shared tokens"] += shared.size
            cold = prefix_fingerprints(known[: int(positions[-1]) + 1])[positions]
            assert np.array_equal(self.kv[self._slots(step, positions)], cold), "E1: shared KV rows"
        if req.finished_chunk_token_count == 0 and step.start:
            self.seen["resumed"] += 1
        for model, live in self._live(step):
            assert torch.equal(live.cpu(), model.cold(known[: step.start])), "E1: live state"

    @property
    def _dummy_start(self) -> int:
        return self.context.kv_block_allocator.dummy_block_idx * self.block_size

    def _slots(self, step: RequestStep, positions: np.ndarray) -> np.ndarray:
        blocks = np.array(step.blocks)[positions // self.block_size]
        return blocks * self.block_size + positions % self.block_size

    def _live(self, step: RequestStep) -> list[tuple[ExactRecurrence, torch.Tensor]]:
        context = self.context
        if context.mamba_conv_states is None or context.mamba_ssm_states is None:
            return []
        states = (context.mamba_conv_states, context.mamba_ssm_states)
        return [(model, state[:, step.state_idx]) for model, state in zip(self.models, states, strict=True)]

    def _compute(self, step: RequestStep) -> int | None:
        req, stop = step.req, step.start + step.tokens.size
        known = np.array(req.tokens[:stop], np.uint32)
        self.kv[step.kv_slots] = prefix_fingerprints(known)[step.start :]
        self.kv[self._dummy_start :] = 0xBAD
        slots = self.context.mamba_slot_allocator
        for kind, (model, live) in enumerate(self._live(step)):
            state, done = model.read(live), 0
            for place, offset in enumerate(step.offsets):
                state, done = model.advance(state, step.tokens[done:offset]), offset
                assert slots is not None
                outs = (slots.intermediate_conv_out, slots.intermediate_ssm_out)[kind]
                outs[:, step.first_output + place] = model.write(state).to(outs.device)
                self.seen["extracted"] += 1
            live.copy_(model.write(model.advance(state, step.tokens[done:])))
        if not step.is_sampled:
            return None
        req.tokens.append(self.draw.randint(1, 3))
        return req.tokens[-1]

    def check_cached_states(self) -> None:
        """Every cached state is the one after the block's tokens and all before them (laws C7, E1)."""
        context, slots = self.context, self.context.mamba_slot_allocator
        if slots is None:
            return
        self.seen["most states"] = max(self.seen["most states"], slots.max_slots - slots.free_count)
        for block, slot in enumerate(slots.block_to_slot.tolist()):
            if slot < 0:
                continue
            path = [block]
            while (above := int(context.kv_block_allocator.block_parents[path[-1]])) >= 0:
                path.append(above)
            tokens = context._index._tokens[path[::-1]].reshape(-1)
            for model, states in zip(self.models, (slots.conv_states, slots.ssm_states), strict=True):
                assert torch.equal(states[:, slot].cpu(), model.cold(tokens)), f"C7: block {block}"
