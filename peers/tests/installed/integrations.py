"""The files of peers/integrations as a maintainer copies them, over packages without their dependencies."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from pymllm_peers.dynamo import radix_tree
from pymllm_peers.sglang import package as sglang
from pymllm_peers.stand_ins import standing_in
from pymllm_peers.vllm import package as vllm

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "vectors"
PROJECTS = ("sglang", "vllm", "dynamo")
_REQUIRE: dict[str, Callable[[], object]] = {
    "sglang": lambda: sglang.require_version(sglang.NEWER),
    "vllm": vllm.require_version,
    "dynamo": radix_tree.load_radix_tree,
}

_LATER = {
    "sglang": ("sglang.srt.mem_cache.allocator.hisparse", "sglang.srt.mem_cache.allocator.unified_hybrid_swa")
}
"""Modules that a project imports only once it is called."""


def skip_without(project: str) -> None:
    """Skip where a project's package is not there, or in a version that its file was not tried with."""
    try:
        _REQUIRE[project]()
    except ImportError as error:
        pytest.skip(str(error))


def copy_integration(project: str, folder: Path) -> Path:
    """Lay a project's file, its list, the runner and the vectors side by side, as the page says."""
    shutil.copytree(ROOT / "peers" / "integrations" / project, folder, dirs_exist_ok=True)
    shutil.copy(VECTORS / "runners" / "python" / "run_vectors.py", folder)
    shutil.copytree(VECTORS / "v1", folder / "v1")
    return folder / "test_cache_vectors.py"


@contextmanager
def stand_ins_of(project: str) -> Iterator[None]:
    """Let names stand in for what a project's caches import and do not use, while its file is imported."""
    if project == "dynamo":  # needs nothing; it says much on the terminal, unless it is told not to
        radix_tree.load_radix_tree()
        yield
        return
    package = {"sglang": sglang, "vllm": vllm}[project]
    importlib.import_module("torch._inductor.runtime.hints")  # before it could meet a stand-in
    with standing_in(package.STAND_INS, package.BARE_PACKAGES, project):
        for name in _LATER.get(project, ()):
            importlib.import_module(name)
        yield


def load_integration(project: str, folder: Path) -> ModuleType:
    """Import a project's file from where it was copied to, and leave no trace of that."""
    place, path = copy_integration(project, folder), [*sys.path]
    spec = importlib.util.spec_from_file_location(f"{project}_cache_vectors", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        with stand_ins_of(project):
            spec.loader.exec_module(module)
    finally:
        sys.path[:] = path
        sys.modules.pop("run_vectors", None)
    return module
