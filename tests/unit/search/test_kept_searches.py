"""Tests of searches in a file: written and read to the last field, for the same task only."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pymllm.adapters.registry import find_adapter
from pymllm.errors import InvariantViolation
from pymllm.faults.plant import planted
from pymllm.faults.table import PLANTED
from pymllm.history.files import Deviation
from pymllm.machines.acting import Unwanted
from pymllm.machines.adapter_calls import EndedConversation
from pymllm.machines.registry import DEV, MACHINES
from pymllm.search.kept_searches import Found, SearchOrShrink, keep_searches, pack, unpack
from pymllm.search.runner import verify
from pymllm.search.search import Crash, SearchPlan, SearchResult
from pymllm.search.shrinker import Finding
from pymllm.search.tasks import (
    SearchTask,
    ShrinkTask,
    VerifyPlan,
    is_cut_short,
    run_search,
    shrink_findings,
)
from pymllm.work.kept import KeptResults
from tests.kept_results import results_in

CONFIG = {"max_reqs": 3, "max_context_len": 4}
CLAIMS = frozenset({"pool", "zeroed_rows", "inspect"})
(ROWS,) = MACHINES["rows"]
_, ENGINE = MACHINES["prefix"]
PLAN = SearchPlan(seed=1, steps=20, examples=30, seconds=0.0, shrinks=0, driven=3)


def task_of(adapter: str, **changes: Any) -> SearchTask:
    return dataclasses.replace(SearchTask(adapter, dict(CONFIG), CLAIMS, ROWS, PLAN), **changes)


def verify_plan(*adapters: str, **changes: Any) -> VerifyPlan:
    plan = VerifyPlan(tuple(map(find_adapter, adapters)), (), DEV, seed=3, examples=10, jobs=1)
    return dataclasses.replace(plan, **changes)


def told(found: Any) -> str:
    """Return the text of a result, with the arguments of its violations, and each Counter in its order."""

    def plain(value: Any) -> Any:
        if isinstance(value, InvariantViolation):
            return value.args
        if isinstance(value, Counter):
            return list(value.items())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return type(value).__name__, [plain(getattr(value, field.name)) for field in fields]
        if isinstance(value, frozenset):
            return sorted(value)
        return tuple(map(plain, value)) if isinstance(value, tuple) else value

    return repr(plain(found))


def again(task: SearchOrShrink, found: Found) -> Found:
    """A result as the next run reads it."""
    return unpack(task, json.loads(json.dumps(pack(found))))


@pytest.mark.parametrize(
    "name", ["TinyRows", "KeepsEntries", "WrongInside", "Breaks", "GivesUp", "FailsLate"]
)
def test_a_search_is_read_as_it_was_written(tiny: str, name: str) -> None:
    """P1: whatever it found or ended with, and what finds it again."""
    task = task_of(f"{tiny}:{name}")
    found = run_search(task)
    assert told(again(task, found)) == told(found)
    assert (bool(found.found), found.crash is not None) == {
        "TinyRows": (False, False),
        "KeepsEntries": (True, False),
        "WrongInside": (True, False),
        "Breaks": (False, True),
        "GivesUp": (False, True),
        "FailsLate": (False, False),
    }[name]
    assert (found.again is not None) == bool(found.found)
    if found.crash is not None:
        assert found.crash.history is not None


@pytest.mark.parametrize("id", ["B01", "B116"])
def test_what_is_found_of_a_planted_fault_is_read_as_it_was_written(id: str) -> None:
    """R6, P2: programs of our own classes, and what is made of them."""
    (fault,) = [fault for fault in PLANTED if fault.id == id]
    with planted(fault.edits):
        report = verify(verify_plan(*fault.adapters[:1], jobs=0, examples=40))
        (adapter,) = report.adapters
        (finding, *_) = adapter.findings
        plan = dataclasses.replace(PLAN, shrinks=20)
        kind = adapter.kind
        assert kind is not None
        machine = MACHINES[kind][0]
        task = ShrinkTask(adapter.name, finding.history.header.config, machine, finding, 20, plan)
        short = shrink_findings(task)
    assert short
    assert told(again(task, short)) == told(short)


def test_acts_of_an_engine_are_read_as_they_were_written() -> None:
    """E2: with the scenario that shows again what operations do not."""
    config = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}
    (fault,) = [fault for fault in PLANTED if fault.id == "B10"]
    task = SearchTask("radix", config, CLAIMS, ENGINE, dataclasses.replace(PLAN, steps=40))
    with planted(fault.edits):
        found = run_search(task)
    assert found.found[0].history.header.scenario is not None
    assert told(again(task, found)) == told(found)


def test_how_a_conversation_ended_is_read_as_it_was_written(tiny_program: Callable[..., str]) -> None:
    """X3: the verdict and the last lines."""
    name = f"command:{tiny_program('op', 'kill')}"
    (hashes,) = MACHINES["hashes"]
    task = SearchTask(name, {}, frozenset({"extra_key"}), hashes, PLAN)
    found = run_search(task)
    assert found.crash is not None
    assert isinstance(found.crash.conversation, EndedConversation)
    assert told(again(task, found)) == told(found)


# -- keys --------------------------------------------------------------------------------------------------


def kept_in(path: Path, plan: VerifyPlan) -> KeptResults[SearchOrShrink, Found]:
    return keep_searches(path, plan)


RESULT = SearchResult(1, 2, 0.1 + 0.2, Counter(P2=3, P1=3), Counter(), Counter(), (), None)


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"max_reqs": 3, "max_context_len": 5}},
        {"capabilities": frozenset({"pool"})},
        {"machine": dataclasses.replace(ROWS, weight=2.0)},
        {"plan": dataclasses.replace(PLAN, seed=2)},
        {"plan": dataclasses.replace(PLAN, driven=4)},
        {"unwanted": Unwanted(but_for=("P2",))},
        {"unwanted": Unwanted((Deviation("x", "P2", "so"),))},
        {"laws": ("P2",)},
        {"goals": ("a row is freed twice",)},
    ],
)
def test_a_search_counts_for_the_same_task_only(tmp_path: Path, tiny: str, changes: dict[str, Any]) -> None:
    """X3: any of it may make another result."""
    name = f"{tiny}:TinyRows"
    kept_in(tmp_path / "kept", verify_plan(name)).keep(task_of(name), RESULT)
    kept = kept_in(tmp_path / "kept", verify_plan(name))
    assert kept.find(task_of(name)) == RESULT
    assert kept.find(task_of(name, **changes)) is None


def test_a_search_counts_with_the_same_time_for_a_call_and_the_same_versions(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search with another time for a call or another Hypothesis does not count; the latter is told."""
    name = f"{tiny}:TinyRows"
    kept_in(tmp_path / "kept", verify_plan(name)).keep(task_of(name), RESULT)
    later = kept_in(tmp_path / "kept", verify_plan(name, timeout=5.0))
    assert (later.find(task_of(name)), later.describe_others()) == (None, None)
    monkeypatch.setattr("pymllm.search.kept_searches.versions", lambda adapters: {"hypothesis": "0"})
    later = kept_in(tmp_path / "kept", verify_plan(name))
    assert later.find(task_of(name)) is None
    assert "1 of 1 results do not count here" in str(later.describe_others())


def test_a_search_of_a_strangers_cache_counts_until_its_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of a module that an adapter imports ends its kept searches, and no other's."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "searched_cache.py").write_text("SIZE = 1\n", encoding="utf-8")
    (tmp_path / "searched_adapter.py").write_text("import searched_cache\n", encoding="utf-8")
    names = ("searched_adapter:Cache", "rows")
    path = tmp_path / "kept"
    for name in names:
        kept_in(path, verify_plan(*names)).keep(task_of(name), RESULT)
    assert [kept_in(path, verify_plan(*names)).find(task_of(name)) for name in names] == [RESULT, RESULT]
    (tmp_path / "searched_cache.py").write_text("SIZE = 2\n", encoding="utf-8")
    assert [kept_in(path, verify_plan(*names)).find(task_of(name)) for name in names] == [None, RESULT]


_KEY = """
import sys
from pathlib import Path
from tests.unit.search.test_kept_searches import *

plan = verify_plan("rows")
task = task_of("rows", unwanted=Unwanted((Deviation("x", "P2", "so"),)), laws=("P1",))
shrinking = ShrinkTask("rows", dict(CONFIG), ENGINE, finding(), 5, PLAN)
kept = keep_searches(Path(sys.argv[1]), plan)
kept.keep(task, RESULT)
kept.keep(shrinking, (finding(),))
print(list(task.capabilities))
"""


def finding() -> Finding:
    result = run_search(task_of("faulty-dirty-rows", config={"max_reqs": 5, "max_context_len": 2}))
    return result.found[0]


def test_a_key_is_the_same_in_every_process(tmp_path: Path) -> None:
    """X3: although a set of words has another order in each."""
    keys, orders = set(), set()
    for seed in ("1", "2", "5"):
        path = tmp_path / seed
        folders = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
        variables = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": folders}
        command = [sys.executable, "-c", _KEY, str(path)]
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        orders.add(ended.stdout)
        keys.add(tuple(line["key"] for line in results_in(path)))
    assert len(orders) > 1
    ((search, shrinking),) = keys
    assert search != shrinking


# -- what is not kept, and what is not read --------------------------------------------------------------


def test_what_time_ended_is_cut_short(tiny: str) -> None:
    """Programs that were not played, or a law that was not met before all were."""
    task = task_of(f"{tiny}:TinyRows", plan=dataclasses.replace(PLAN, examples=5))
    result = dataclasses.replace(RESULT, programs=5, exercised=Counter(P1=1), reached=Counter(full=1))
    assert not is_cut_short(task, result)
    assert is_cut_short(task, dataclasses.replace(result, missing=1))
    for changes, is_cut in (
        ({"laws": ("P1",)}, False),
        ({"laws": ("P1", "P2")}, True),
        ({"goals": ("full",)}, False),
        ({"goals": ("empty",)}, True),
    ):
        second = dataclasses.replace(task, **changes)
        assert is_cut_short(second, dataclasses.replace(result, programs=4)) is is_cut
        assert not is_cut_short(second, result)
        crashed = dataclasses.replace(result, programs=4, crash=Crash("it died", None))
        assert not is_cut_short(second, crashed)


def spoilt(plain: Any, place: list[Any], value: Any) -> Any:
    copy = json.loads(json.dumps(plain))
    at = copy
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    return copy


HISTORY = ["found", 0, "history"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ([*HISTORY, "header", "adapter"], "os:system"),
        ([*HISTORY, "header", "kind"], "cells"),
        ([*HISTORY, "header", "config"], {"max_reqs": 10**12}),
        ([*HISTORY, "steps", 0, "step"], 0),
        (["found", 0, "violation"], ["Q9", "looked", None, None]),
        (["found", 0, "violation"], ["P2", "looked"]),
        (["exercised"], {"P2": "many"}),
        (["programs"], None),
        (["crash"], {"message": 3}),
        (["left_out"], 3),
    ],
)
def test_what_no_search_wrote_is_not_taken(place: list[Any], value: Any) -> None:
    """X1: least of all a program of another adapter, which would be imported to run it."""
    task = task_of("faulty-dirty-rows", config={"max_reqs": 5, "max_context_len": 2})
    plain = json.loads(json.dumps(pack(run_search(task))))
    assert isinstance(unpack(task, plain), SearchResult)
    with pytest.raises(ValueError):  # noqa: PT011 - each has words of its own, and nobody reads them
        unpack(task, spoilt(plain, place, value))
    with pytest.raises(ValueError, match="Expected `array`"):
        unpack(ShrinkTask("rows", dict(CONFIG), ROWS, finding(), 5, None), plain)


def test_a_result_of_an_adapter_that_crashed_names_no_other(tiny: str) -> None:
    """X1: as above, of the program that met the end."""
    task = task_of(f"{tiny}:Breaks")
    plain = json.loads(json.dumps(pack(run_search(task))))
    with pytest.raises(ValueError, match="a program of os:system, not of"):
        unpack(task, spoilt(plain, ["crash", "history", "header", "adapter"], "os:system"))
