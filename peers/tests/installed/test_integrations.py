"""The files that maintainers copy into their suites run against their packages, and notice faults in them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from peers.tests.installed.integrations import (
    PROJECTS,
    ROOT,
    copy_integration,
    load_integration,
    skip_without,
)

LEAST = {
    "sglang": {"Slots": 14, "Radix": 31, "unified-python": 26, "unified-rust": 27}
    | {"unified-python-inspector": 31, "unified-python-swa": 4, "unified-rust-swa": 4}
    | {"unified-python-mamba": 7, "unified-rust-mamba": 7},
    "vllm": {"Blocks": 8, "Manager": 10},
    "dynamo": {"Index": 12},
}
"""How many vectors run at least, by cache; were all of them left out, nobody would see a fault."""

CONFTEST = """
from pathlib import Path

import pytest

from peers.tests.installed.integrations import stand_ins_of


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    with stand_ins_of(Path(__file__).parent.name):
        return (yield)
"""


@pytest.fixture(params=PROJECTS)
def project(request: pytest.FixtureRequest) -> str:
    """Each project whose package is there."""
    name: str = request.param
    skip_without(name)
    return name


def cases_of(module: ModuleType) -> list[tuple[str, Any, dict[str, Any]]]:
    """Return the name of a cache, the cache and the vector of each case of an integration."""
    found = []
    for case in module.cases():
        *cache, vector = case.values
        cache = cache[0] if cache else module.Index
        found.append((cache.__name__, cache, vector))
    return found


def play_all(module: ModuleType) -> tuple[dict[str, Counter[str]], dict[str, str]]:
    """Play every case; verdicts by cache, and the law of each vector that fails unlisted, or raises."""
    verdicts: dict[str, Counter[str]] = {}
    failed = {}
    for name, cache, vector in cases_of(module):
        try:
            verdict, _ = module.run_vectors.play(vector, cache(vector["config"]))
        except Exception:  # a planted fault may also raise, which a maintainer's suite shows as a failure
            verdict = "failed"
        verdicts.setdefault(name, Counter())[verdict] += 1
        if verdict == "failed" and vector["id"] not in module.KNOWN:
            failed[vector["id"]] = vector["law"]
    return verdicts, failed


def test_it_runs_as_a_maintainer_runs_it(project: str, tmp_path: Path) -> None:
    """In a process of its own, with nothing but the copied files; none fails, and many run."""
    place = copy_integration(project, tmp_path / project)
    (place.parent / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={tmp_path / 'told.xml'}",
        str(place),
    ]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": "", "DYN_LOG": "error"}
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (suite,) = ElementTree.parse(tmp_path / "told.xml").getroot()
    assert int(suite.attrib["tests"]) - int(suite.attrib["skipped"]) >= sum(LEAST[project].values())


def test_what_runs_passes_or_is_listed(project: str, tmp_path: Path) -> None:
    """Cache by cache, as many as were seen to run."""
    verdicts, failed = play_all(load_integration(project, tmp_path))
    assert failed == {}
    ran = {name: counts.total() - counts["skipped"] for name, counts in verdicts.items()}
    assert {name: least for name, least in LEAST[project].items() if ran.get(name, 0) < least} == {}


Change = Callable[[Any], Any]


def do_nothing(method: Any) -> Any:
    """Leave a call out."""
    return lambda *arguments, **more: None


def free_twice(free: Any) -> Any:
    """Give slots back twice."""

    def planted(allocator: Any, slots: Any) -> None:
        free(allocator, slots)
        free(allocator, slots)

    return planted


def forget_the_lock(lock: Any) -> Any:
    """Count no hold."""
    return lambda tree, node: importlib.import_module(
        "sglang.srt.mem_cache.base_prefix_cache"
    ).IncLockRefResult()


def one_more(size: Any) -> Any:
    """Count one too much."""
    return lambda *arguments: size(*arguments) + 1


def share_without_taking(touch: Any) -> Any:
    """Let blocks that a request shares be handed to others, too."""

    def planted(pool: Any, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt += 1

    return planted


def keep_the_hash(evict: Any) -> Any:
    """Let a block that is handed out be found under the hash that it had."""

    def planted(pool: Any, block: Any) -> bool:
        block.reset_hash()
        return False

    return planted


# What a fault has made sglang leave undrained says so once it is collected, whenever that is.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*BaseEvictionResult:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(
    ("name", "place", "change", "laws"),
    [
        ("sglang", "mem_cache.allocator.TokenToKVPoolAllocator.free", do_nothing, "A2 R5 X7"),
        ("sglang", "mem_cache.allocator.TokenToKVPoolAllocator.free", free_twice, "A2 R5 X7"),
        ("sglang", "mem_cache.radix_cache.RadixCache.inc_lock_ref", forget_the_lock, "R6"),
        ("sglang", "mem_cache.radix_cache.RadixCache.evictable_size", one_more, "R3 R6"),
        (
            "sglang",
            "mem_cache.unified_cache.unified_tree_core.UnifiedTreeCore.full_evictable_size",
            one_more,
            "R6",
        ),
        ("sglang", "mem_cache.rust_tree_core.adapter.RustUnifiedTreeCore.reset", do_nothing, "X7"),
        ("vllm", "v1.core.block_pool.BlockPool.touch", share_without_taking, "C1 R6"),
        ("vllm", "v1.core.block_pool.BlockPool._maybe_evict_cached_block", keep_the_hash, "C1 C3"),
        ("vllm", "v1.core.block_pool.BlockPool._emit_block_removed_events", do_nothing, "C1 C3"),
    ],
)
def test_a_planted_fault_is_noticed(
    name: str, place: str, change: Change, laws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By vectors of the laws that it breaks."""
    skip_without(name)
    module = load_integration(name, tmp_path)
    root = {"sglang": "sglang.srt.", "vllm": "vllm."}[name]
    where, cls, method = f"{root}{place}".rsplit(".", 2)
    owner = getattr(importlib.import_module(where), cls)
    monkeypatch.setattr(owner, method, change(getattr(owner, method)))
    _, failed = play_all(module)
    assert set(laws.split()) & set(failed.values())


def test_a_fault_of_dynamo_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree is compiled: one around it is changed, which forgets that blocks were removed."""
    skip_without("dynamo")
    module = load_integration("dynamo", tmp_path)
    real = module.RadixTree

    class Forgetful:
        """A tree that hears of no removal."""

        def __init__(self) -> None:
            self._tree = real()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tree, name)

        def apply_event(self, worker: int, event: bytes) -> None:
            if "removed" not in json.loads(event)["data"]:
                self._tree.apply_event(worker, event)

    monkeypatch.setattr(module, "RadixTree", Forgetful)
    _, failed = play_all(module)
    assert {"I1", "I5"} & set(failed.values())
