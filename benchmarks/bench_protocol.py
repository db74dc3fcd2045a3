"""The rate at which a program in another language answers operations: examples/protocol/page_cache.c."""

from __future__ import annotations

import gc
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pymllm.adapters.process.adapter import ProcessAdapter
from pymllm.adapters.registry import make_adapter
from pymllm.history.operations import Evict, Insert, Key, Lock, Match, Operation, Span, Unlock
from pymllm.history.outcomes import Evicted, Matched, Outcome

EXAMPLE = Path(__file__).parents[1] / "examples" / "protocol" / "page_cache.c"
CONFIG = {"page_size": 16, "window": None, "pool": "none", "slots": 0, "swa_slots": 0}
OPERATIONS = 20_000
KEYS = 200
TOKENS = 32


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out, since only this benchmark keeps tens of thousands of outcomes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler; there is neither cc nor gcc")
    program = tmp_path_factory.mktemp("protocol") / "page_cache"
    subprocess.run([compiler, "-O2", "-o", program, EXAMPLE], check=True)
    return f"command:{program}"


def steps() -> Iterator[tuple[int, Operation]]:
    """Match, insert, hold and release keys of 32 tokens, and evict a page now and then."""
    source = random.Random(0)
    step = 0
    while step < OPERATIONS:
        number = source.randrange(KEYS)
        key = Key((*range(TOKENS // 2), *range(number, number + TOKENS // 2)))
        slots = Span(0, step * TOKENS, (step + 1) * TOKENS)
        first = step + 1
        for operation in (Match(key), Insert(key, (slots,)), Lock(first + 1), Unlock(first + 2), Evict(1)):
            step += 1
            yield step, operation


def check(outcomes: list[Outcome]) -> None:
    """Every answer is there, and what was said to be cached adds up."""
    assert len(outcomes) == OPERATIONS
    matched = [outcome.result.prefix_len for outcome in outcomes if isinstance(outcome.result, Matched)]
    evicted = [outcome.result.full for outcome in outcomes if isinstance(outcome.result, Evicted)]
    assert len(matched) == len(evicted) == OPERATIONS // 5
    assert set(matched) <= {0, TOKENS // 2, TOKENS}
    assert sum(matched) > 0
    assert set(evicted) == {TOKENS // 2}


def restart(command: str) -> tuple[tuple[ProcessAdapter], dict[str, object]]:
    """Make the argument of a round: a new cache in the same process."""
    adapter = make_adapter(command, dict(CONFIG))
    assert isinstance(adapter, ProcessAdapter)
    return (adapter,), {}


def note(benchmark: BenchmarkFixture) -> None:
    """Add what a reader wants to know."""
    stats = benchmark.stats
    if stats is not None:  # None while benchmarks run untimed
        benchmark.extra_info.update(operations_per_second=OPERATIONS / stats.stats.min)


def test_batches(benchmark: BenchmarkFixture, command: str) -> None:
    """Operations made, written, answered, read: no oracle."""
    program = list(steps())

    def play(adapter: ProcessAdapter) -> list[Outcome]:
        outcomes = list(adapter.apply_many(program))
        adapter.close()
        return outcomes

    check(benchmark.pedantic(play, setup=lambda: restart(command), rounds=10))
    note(benchmark)


def test_lock_step(benchmark: BenchmarkFixture, command: str) -> None:
    """The same one by one, as a search asks."""
    program = list(steps())

    def play(adapter: ProcessAdapter) -> list[Outcome]:
        outcomes = [adapter.apply(step, operation) for step, operation in program]
        adapter.close()
        return outcomes

    check(benchmark.pedantic(play, setup=lambda: restart(command), rounds=10))
    note(benchmark)
