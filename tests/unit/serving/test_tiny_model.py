"""The model computes alike in pieces of any length, and through the caches as without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pymllm.serving.runner import ModelRunner, make_model_pools
from pymllm.serving.service import ServerConfig
from pymllm.serving.tiny_model import ARCHITECTURES, TinyModel
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_report import EngineReport
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request
from pymllm.workloads.source import TraceSource

TOLERANCE = 1e-5
SMALL = ServerConfig(page_size=8, capacity=512, window=24, swa_capacity=192, max_context=256, chunk_tokens=48)

Answers = dict[int, list[tuple[int, torch.Tensor]]]


def play(
    config: ServerConfig, prompts: list[list[int]], max_tokens: int = 20, *, together: bool = False
) -> tuple[Answers, EngineReport]:
    """Run prompts one after the other, or all at once; return tokens with their log-probabilities."""
    sizes = replace(config.for_engine(), check_every=1, decode_headroom=0)
    model = TinyModel(config.layers, sizes.sliding_window_size, 0, torch.device("cpu"))
    pools = make_model_pools(sizes, model)
    answers: Answers = {}

    def choose(live: LiveRequest, at: int, logits: torch.Tensor) -> int:
        logprobs = logits.log_softmax(-1)
        token = int(logprobs.argmax())
        answers.setdefault(live.request_id, []).append((token, logprobs))
        return token

    requests = [
        Request(at, 0.0 if together else 1e6 * at, len(prompt), max_tokens, tuple(prompt), 1)
        for at, prompt in enumerate(prompts)
    ]
    runner = ModelRunner(model, sizes, pools, choose)
    report = Engine(sizes, TraceSource(requests), pools=pools, model=runner).run()
    return answers, report


def prompts_that_share(count: int) -> list[list[int]]:
    """Prompts that begin alike, up to random places."""
    rng = np.random.default_rng(0)
    base = rng.integers(32, 127, 90).tolist()
    return [base[:shared] + rng.integers(32, 127, 5).tolist() for shared in rng.integers(1, 90, count)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_warm_answer_is_that_of_a_cold_run(architecture: str) -> None:
    """Alone and in company, with evictions and retractions: each log-probability is that without a cache."""
    config, prompts = replace(SMALL, architecture=architecture), prompts_that_share(12)
    warm, report = play(config, prompts)
    small = replace(config, capacity=208, swa_capacity=136)
    beside, crowded = play(small, prompts, together=True)
    assert report.hit_tokens > 200
    assert crowded.retractions
    for at, prompt in enumerate(prompts):
        cold, _ = play(config, [prompt])
        for (token, expected), *others in zip(cold[0], warm[at], beside[at], strict=True):
            for other, found in others:
                assert other == token
                assert (found - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_wrong_slot_is_seen_in_the_answer(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that names another slot at one place of the prompt changes log-probabilities by a hundredth."""
    config, prompts = replace(SMALL, architecture=architecture), [prompts_that_share(1)[0]]
    right, _ = play(config, prompts)
    compute = ModelRunner.compute

    def compute_astray(self: ModelRunner, live: LiveRequest, start: int, end: int) -> None:
        row = self._pools.rows.req_to_token[live.row]
        sound = row.clone()
        if start > 20:
            row[start - 3] = row[start - 4]
        compute(self, live, start, end)
        row.copy_(sound)

    monkeypatch.setattr(ModelRunner, "compute", compute_astray)
    wrong, _ = play(config, prompts)
    differences = [(a - b).abs().max() for (_, a), (_, b) in zip(right[0], wrong[0], strict=True)]
    assert max(differences) > 0.01


def test_layers_of_an_unknown_architecture_are_refused() -> None:
    """The names that there are stand in the message."""
    with pytest.raises(ValueError, match="architecture is 'sparse'; choose one of dense, window, hybrid"):
        _ = ServerConfig(architecture="sparse").layers
