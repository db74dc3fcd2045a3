"""The runner of a tiny model, with the KV and states of an engine's requests in this package's pools."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from pymllm.mem_cache.memory_pool import GDNPool, KVPool
from pymllm.serving.tiny_model import CONV_KERNEL, HEAD_DIM, HEADS, Layer, RecurrentState, TinyModel
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_pools import EnginePools, make_engine_pools, mamba_kind
from pymllm.workloads.live_request import LiveRequest

Choose = Callable[[LiveRequest, int, torch.Tensor], int]
"""A function that chooses the token at a position of a request from logits ``(VOCABULARY,)`` float64."""


def make_model_pools(config: EngineConfig, model: TinyModel) -> EnginePools:
    """Return the cache and the pools of a rounded configuration, with room for a model's states."""
    recurrent = model.layers.count(Layer.RECURRENT)
    if not recurrent:
        return make_engine_pools(config)
    states = GDNPool(
        config.max_running,
        num_gdn_layers=recurrent,
        num_v_heads=HEADS,
        head_k_dim=HEAD_DIM,
        head_v_dim=HEAD_DIM,
        conv_dim=3 * HEADS * HEAD_DIM,
        conv_kernel_size=CONV_KERNEL,
        device=config.device,
        dtype=torch.float64,
        max_track_slots=config.track_slots or 0,
    )
    return make_engine_pools(config, lambda it, allocator: mamba_kind(it, allocator, states))


class ModelRunner:
    """A runner of a model on the rows, slots and states of an engine, as the engine's `Model`.

    Keys and values of the layers with full attention lie in one `KVPool`, those of the layers with a window
    in another, at the SWA slots behind the full ones; states of recurrent layers lie in the engine's
    `GDNPool`, at the request's row. ``choose`` is asked for each token that a request produces.
    """

    def __init__(self, model: TinyModel, config: EngineConfig, pools: EnginePools, choose: Choose) -> None:
        self._model = model
        self._pools = pools
        self._choose = choose
        self._places = [model.layers[:at].count(kind) for at, kind in enumerate(model.layers)]
        sizes = {Layer.FULL: config.capacity, Layer.WINDOW: config.swa_capacity or 0}
        self._kv = {
            kind: KVPool(
                size,
                layer_num=model.layers.count(kind),
                k_head_num=HEADS,
                k_head_dim=HEAD_DIM,
                device=config.device,
                dtype=torch.float64,
                pin_memory=False,
                page_size=config.page_size,
            )
            for kind, size in sizes.items()
            if kind in model.layers
        }

    def compute(self, live: LiveRequest, start: int, end: int) -> None:
        """Compute tokens ``start .. end`` of a request, and the next token unless the prompt has it."""
        tokens = torch.from_numpy(live.tokens[start:end].astype(np.int64)).to(self._model.device)
        hidden = self._model.embed(tokens)
        for layer, kind in enumerate(self._model.layers):
            if kind is Layer.RECURRENT:
                hidden = self._recur(layer, hidden, live.row)
            else:
                hidden = self._attend(layer, hidden, live.row, start, end)
        if end >= live.prompt_length:
            token = self._choose(live, end, self._model.logits(hidden[-1]))
            if end < live.final_length:
                live.tokens[end] = token

    def _attend(self, layer: int, hidden: torch.Tensor, row: int, start: int, end: int) -> torch.Tensor:
        kind, place = self._model.layers[layer], self._places[layer]
        pool, first = self._kv[kind], 0
        if kind is Layer.WINDOW and self._model.window is not None:
            first = max(0, start - self._model.window)
        slots = self._pools.rows.req_to_token[row, first:end]
        if kind is Layer.WINDOW and self._pools.swa_allocator is not None:
            slots = self._pools.swa_allocator.translate_to_swa(slots)
        slots = slots.to(torch.int64)
        queries, keys, values = self._model.project(layer, hidden, start)
        pool.set_kv_buffer(place, slots[start - first :], keys.contiguous(), values.contiguous())
        known_keys, known_values = pool.get_kv_buffer(place)
        return self._model.attend(layer, hidden, queries, known_keys[slots], known_values[slots])

    def _recur(self, layer: int, hidden: torch.Tensor, row: int) -> torch.Tensor:
        pool, place = self._pools.kind.state_pool, self._places[layer]
        assert pool is not None  # an engine of a model with such layers has one
        matrices, columns = pool.recurrent_state[place], pool.conv_state[place]
        before = RecurrentState(matrices[row].double(), columns[row].double())
        hidden, after = self._model.recur(layer, hidden, before)
        matrices[row], columns[row] = after.matrix, after.columns
        return hidden
