"""vLLM on a CPU: nothing is broken under bursts, aborts and preemption, and a planted fault is found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from peers.tests.servers.real import free_port, installed, probed, requests_in
from pymllm.probing.clients import make_http
from pymllm.probing.records import Burst, Drop, read_history
from pymllm.probing.started import StartedServer

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": 1,  # its cache can be emptied
    "VLLM_CPU_KVCACHE_SPACE": 1,  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": 1,
    "HF_HUB_OFFLINE": 1,
    "VLLM_NO_USAGE_STATS": 1,
}
FLAGS = "--dtype float32 --enforce-eager --enable-prompt-tokens-details --block-size 32 --max-model-len 256"
# So few blocks that four prompts at once do not fit; prompts are computed in pieces.
BLOCKS = {"dense": 12, "window": 36}
VLLM = "-m vllm.entrypoints.openai.api_server"
STALE = Path(__file__).with_name("stale_vllm.py")


@contextmanager
def serving(model: str, program: str | Path = VLLM, more: str = "") -> Iterator[str]:
    """Start a server, which takes minutes, with ``more`` words behind its own, and yield its address."""
    folder = installed("PYMLLM_VLLM_CPU", "probe-vllm")
    url = f"http://127.0.0.1:{free_port()}"
    variables = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
    words = f"--host 127.0.0.1 --port {url.rpartition(':')[2]} --model {folder / 'models' / model} {FLAGS}"
    few = f"--num-gpu-blocks-override {BLOCKS[model]} --max-num-batched-tokens 64 --max-num-seqs 8"
    python = folder / "venv" / "bin" / "python"
    started = StartedServer(f"env {variables} {python} {program} {words} {few} {more}", 1200)
    with make_http(url, 60) as http:
        try:
            started.start(http, "auto")
            yield url
        finally:
            started.end()


@pytest.mark.parametrize("model", [*BLOCKS])
def test_nothing_is_broken(model: str, tmp_path: Path) -> None:
    """Three seeds of 100 requests: all laws hold, and the load was one that could break them."""
    with serving(model) as url:
        for seed in range(3):
            document = probed(url, tmp_path, "--requests", 100, "--seed", seed, "--timeout", 300)
            assert {law["verdict"] for law in document["laws"]} == {"holds"}
            operations = [step.operation for step in read_history(tmp_path / "probe.jsonl").steps]
            assert any(isinstance(it, Drop) for it in operations)
            assert any(isinstance(it, Burst) and len(it.asks) == 4 for it in operations)
        told = httpx.get(f"{url}/metrics", trust_env=False).text
    [preemptions] = re.findall(r"^vllm:num_preemptions_total\{.*\} (\S+)$", told, flags=re.MULTILINE)
    assert float(preemptions) > 0


def test_a_block_is_told_removed_while_a_copy_is_there(tmp_path: Path) -> None:
    """vllm#55092, from its events; beside it they tell exactly what each request hits."""
    events = f"tcp://127.0.0.1:{free_port()}"
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv", "endpoint": events}
    config["endpoint"] = events.replace("127.0.0.1", "*")  # else vLLM connects, and nobody is there
    options = ("--events", events, "--requests", 100, "--timeout", 300)
    with serving("dense", more=f"--kv-events-config '{json.dumps(config)}'") as url:
        found = probed(url, tmp_path, *options)
        beside = probed(url, tmp_path, *options, "--without", "W5")
    assert found["violation"]["law"] == "W5"
    assert requests_in(found["program"]) <= 5
    laws = {law["id"]: law for law in beside["laws"]}
    assert {law["verdict"] for law in laws.values()} == {"holds", "not claimed"}
    assert laws["W8"]["tests"] >= 100


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    """Of a cache whose evicted blocks are still found: so what holds above was looked at."""
    with serving("dense", STALE) as url:
        found = probed(url, tmp_path, "--timeout", 300)
    assert found["violation"]["law"] == "V1"
    assert requests_in(found["program"]) < found["requests"]
