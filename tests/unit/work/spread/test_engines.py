"""Tests of engines, which play shards: each is opened by its name; a missing package is one line."""

from __future__ import annotations

import re
import sys
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pymllm.errors import UsageError
from pymllm.work.spread.engines import Engine, open_engine
from tests.unit.work.spread.fake_executor import FakeExecutor

HERE = __name__


def two_threads() -> Executor:
    return ThreadPoolExecutor(2)


def no_executor() -> list[int]:
    return [1]


def raises() -> Executor:
    raise ValueError("no cluster\ntoday")


def leaves() -> Executor:
    raise SystemExit


def interrupts() -> Executor:
    raise KeyboardInterrupt


def test_an_interrupt_is_nobodys_refusal(tmp_path: Path) -> None:
    """Whoever presses Ctrl-C while an engine is opened wants the command to end."""
    with pytest.raises(KeyboardInterrupt):
        open_engine(f"{HERE}:interrupts", 1, tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("spark", "must be one of ray, ray:ADDRESS, dask:ADDRESS, slurm, slurm:PARTITION, or module:factory"),
        ("", "must be one of"),
        ("no_such_module:make", "no_such_module cannot be imported (No module named 'no_such_module')"),
        (f"{HERE}:nothing", f"{HERE} has no nothing"),
        (f"{HERE}:no_executor", "gave list, which is no concurrent.futures.Executor"),
        (f"{HERE}:raises", f"--executor {HERE}:raises: ValueError: no cluster today"),
        (f"{HERE}:leaves", f"--executor {HERE}:leaves: SystemExit"),
        (f"{HERE}:HERE", f"--executor {HERE}:HERE: TypeError: 'str' object is not callable"),
        (":make", "--executor :make: ValueError: Empty module name"),
    ],
)
def test_a_name_that_is_no_engine_is_refused(name: str, words: str, tmp_path: Path) -> None:
    """With what would be one."""
    with pytest.raises(UsageError, match=re.escape(words)):
        open_engine(name, 1, tmp_path)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("ray", "ray", "ray"),
        ("ray:auto", "ray", "ray"),
        ("dask:tcp://node:8786", "distributed", "dask"),
        ("slurm", "submitit", "slurm"),
    ],
)
def test_a_package_that_is_missing_is_named(
    name: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the extra that has it."""
    monkeypatch.setitem(sys.modules, package, None)
    for module in ("ray_executor", "slurm_executor"):
        monkeypatch.delitem(sys.modules, f"pymllm.work.spread.{module}", raising=False)
    words = f"--executor {name} needs the package {package}, which cannot be imported"
    with pytest.raises(UsageError, match=re.escape(words)) as refused:
        open_engine(name, 1, tmp_path)
    assert str(refused.value).endswith(f"pip install 'pymllm[{extra}]'")


def test_any_executor_is_an_engine(tmp_path: Path) -> None:
    """With as many workers as it says."""
    engine = open_engine(f"{HERE}:two_threads", 1, tmp_path)
    assert (engine.workers, engine.room) == (2, 2)
    assert engine.executor.submit(len, "abc").result() == 3
    engine.close()
    with pytest.raises(RuntimeError):
        engine.executor.submit(len, "abc")
    pool = open_engine("concurrent.futures:ProcessPoolExecutor", 1, tmp_path)
    assert isinstance(pool.executor, ProcessPoolExecutor)
    assert pool.workers
    pool.close(at_once=True)


def test_an_executor_that_does_not_tell_its_workers_gets_all(tmp_path: Path) -> None:
    """So does one that has a queue; one that says 0, as a cluster that grows, gets one."""
    assert Engine(FakeExecutor).room is None
    assert Engine(FakeExecutor, lambda executor: 3, queues=True).room is None
    assert Engine(FakeExecutor, lambda executor: 0).room == 1


def test_an_engine_that_no_longer_answers_has_the_workers_that_it_had() -> None:
    """Asking is no reason to end a campaign, and neither is letting go."""
    answers: list[Any] = [4, OSError("gone")]

    def count(executor: Executor) -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    def end(executor: Executor, at_once: bool) -> None:
        raise OSError("gone")

    engine = Engine(FakeExecutor, count, end)
    assert (engine.workers, engine.workers) == (4, 4)
    engine.close()


def test_a_broken_executor_is_replaced_if_another_can_be_had() -> None:
    """A broken executor is replaced if another can be made, and otherwise stays."""
    made: list[Any] = [FakeExecutor(), FakeExecutor()]
    first, second = made
    engine = Engine(lambda: made.pop(0))
    engine.restart()
    assert (engine.executor, first.closed) == (second, [(False, True)])
    engine.restart()
    assert engine.executor is second


def test_dask_is_asked_by_address_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own retries are off; a scheduler that does not answer is one line."""
    asked: list[dict[str, Any]] = []
    closed: list[str] = []

    class Client:
        def __init__(self, **words: Any) -> None:
            asked.append(words)
            if "nobody" in str(words):
                raise OSError("Timed out\nafter 20 s")

        def get_executor(self, **words: Any) -> Executor:
            asked.append(words)
            return FakeExecutor()

        def nthreads(self) -> dict[str, int]:
            return {"tcp://a": 2, "tcp://b": 3}

        def close(self) -> None:
            closed.append("client")

    module: Any = ModuleType("distributed")
    module.Client = Client
    monkeypatch.setitem(sys.modules, "distributed", module)
    engine = open_engine("dask:tcp://node:8786", 1, tmp_path)
    executor: Any = engine.executor
    assert asked[0]["address"] == "tcp://node:8786"
    assert asked[1] == {"pure": False, "retries": 0}
    assert (engine.workers, engine.room) == (5, 5)
    engine.close(at_once=True)
    assert (executor.closed, closed) == ([(False, False)], ["client"])
    open_engine("dask:cluster/scheduler.json", 1, tmp_path)
    assert asked[2]["scheduler_file"] == "cluster/scheduler.json"
    with pytest.raises(UsageError, match=r"dask:nobody: no scheduler answers there \(Timed out after 20 s\)"):
        open_engine("dask:nobody", 1, tmp_path)
    with pytest.raises(UsageError, match="needs the scheduler's address, such as dask:tcp://HOST:8786"):
        open_engine("dask", 1, tmp_path)


def test_ray_and_slurm_get_what_follows_the_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address with colons of its own, or a partition; and the processors of a shard."""
    asked: list[tuple[Any, ...]] = []

    def make(*words: Any) -> Any:
        asked.append(words)
        return SimpleNamespace(workers=6)

    for name, cls in (("ray_executor", "RayExecutor"), ("slurm_executor", "SlurmExecutor")):
        module: Any = ModuleType(name)
        setattr(module, cls, make)
        monkeypatch.setitem(sys.modules, f"pymllm.work.spread.{name}", module)
    assert open_engine("ray:ray://head:10001", 2, tmp_path).room == 6
    open_engine("ray", 1, tmp_path)
    assert open_engine("slurm:short", 2, tmp_path).room is None
    open_engine("slurm", 1, tmp_path)
    assert asked == [
        ("ray://head:10001", 2),
        (None, 1),
        (tmp_path, 2, "short"),
        (tmp_path, 1, None),
    ]
