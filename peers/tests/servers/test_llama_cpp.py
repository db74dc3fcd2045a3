"""llama.cpp's server: the finding is found and made small, and nothing else is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peers.tests.servers.real import broken, free_port, installed, probed, requests_in

EXACT = "-fa off --cache-type-k f32 --cache-type-v f32"
"""Without these flags warm and cold differ by rounding: up to 1e-2."""


def probe(output: Path, model: str, flags: str, *words: object) -> dict[str, Any]:
    """Probe a server that is started with these flags, anew for each try of a smaller program."""
    folder = installed("PYMLLM_LLAMA_CPP", "probe-llama")
    port = free_port()
    program, file = folder / "build" / "bin" / "llama-server", folder / "models" / f"{model}.gguf"
    where = f"--host 127.0.0.1 --port {port} -c 2048 -t 1 --metrics"
    start = f"{program} -m {file} {where} {EXACT} {flags}"
    return probed(f"http://127.0.0.1:{port}", output, "--start", start, *words)


@pytest.mark.parametrize("seed", range(3))
def test_a_window_is_taken_for_whole_that_was_moved(tmp_path: Path, seed: int) -> None:
    """With --swa-full and the default prompt cache: within 60 requests, and four show it."""
    found = probe(tmp_path, "window", "-np 1 --swa-full", "--seed", seed)
    assert found["violation"]["law"] == "V1"
    assert found["unshrunk"] is None
    assert requests_in(found["program"]) <= 4


@pytest.mark.parametrize("seed", range(3))
def test_without_the_prompt_cache_nothing_is_broken(tmp_path: Path, seed: int) -> None:
    """The same model and flags, with --cache-ram 0."""
    found = probe(tmp_path, "window", "-np 1 --swa-full --cache-ram 0", "--seed", seed)
    assert broken(found) == []


@pytest.mark.parametrize("model", ["dense", "hybrid", "window"])
def test_by_default_nothing_is_broken(tmp_path: Path, model: str) -> None:
    """Four slots, which share prompts through the prompt cache."""
    assert broken(probe(tmp_path, model, "-np 4", "--requests", 100)) == []


def test_shifted_keys_are_no_exact_reuse(tmp_path: Path) -> None:
    """--cache-reuse breaks this claim, and no other."""
    flags = "-np 1 --cache-reuse 8"
    assert set(broken(probe(tmp_path, "dense", flags))) <= {"V1", "V3"}
    assert broken(probe(tmp_path, "dense", flags, "--without", "exact-reuse")) == []
