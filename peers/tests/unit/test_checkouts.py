"""Modules of a checkout under a name of their own, also where its package is called like ours."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

import pymllm
from pymllm.adapters.entry import ANY_VERSION
from pymllm.adapters.registry import find_adapter, make_adapter
from pymllm.errors import AdapterError
from pymllm.history.files import Deviation
from pymllm.search.deviations import is_of_version
from pymllm_peers.checkouts import Checkout
from pymllm_peers.projects import LMDEPLOY, MEGATRON, MINISGL, MLLM, NANOVLLM

FILES = {
    "pymllm/__init__.py": "raise ImportError('no __init__ must run')",
    "pymllm/mem_cache/__init__.py": "raise ImportError('nor this one')",
    "pymllm/mem_cache/base.py": "NAME = __name__",
    "pymllm/mem_cache/tree.py": """
import os.path
import pymllm.mem_cache.base
import pymllm.mem_cache.base as same
from pymllm.mem_cache import base
from pymllm.mem_cache.base import NAME
from kernels.cuda import store, can_store
from pymllm.server import Server

ALL = pymllm.mem_cache.base is same is base

def later():
    from pymllm.mem_cache.base import NAME
    return NAME
""",
    "pymllm/server.py": "raise ImportError('what stands in is not run')",
    "pymllm/mem_cache/broken.py": "from pymllm.mem_cache import nothing_such",
}
TREE = "pymllm/mem_cache/tree.py"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checkout]:
    """Make a project of our name, whose alias no other package has."""
    for path, text in FILES.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYMLLM_FAKE", str(tmp_path))
    monkeypatch.delenv(ANY_VERSION, raising=False)
    digests = {TREE: sha256(FILES[TREE].encode()).hexdigest()}
    stand_ins = {"kernels": "", "pymllm.server": ""}
    fake = Checkout("A-Fake", "PYMLLM_FAKE", "pymllm", "1234567", digests, stand_ins)
    yield fake
    for name in [name for name in sys.modules if name.split(".")[0] == fake.alias]:
        del sys.modules[name]


def test_a_package_of_our_name_is_loaded_beside_ours(checkout: Checkout, tmp_path: Path) -> None:
    """A package of our name imports its own modules, leaves ours as they are, and leaves nothing behind."""
    path, finders, before = [*sys.path], [*sys.meta_path], {*sys.modules}
    tree = checkout.load("pymllm.mem_cache.tree")
    assert (tree.__name__, tree.__file__) == ("checkout_of_a_fake.mem_cache.tree", str(tmp_path / TREE))
    assert tree.ALL
    assert tree.NAME == tree.later() == "checkout_of_a_fake.mem_cache.base"
    assert tree.os.path is sys.modules["os.path"]
    assert checkout.load("pymllm.mem_cache.tree") is tree
    assert sys.modules["pymllm"] is pymllm
    assert {name.split(".")[0] for name in {*sys.modules} - before} == {"checkout_of_a_fake"}
    assert (sys.path, sys.meta_path) == (path, finders)
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_package_that_is_entered_is_found_below_its_root(checkout: Checkout, tmp_path: Path) -> None:
    """The ``__init__`` of an entered package runs, and its modules are found only while a load goes on."""
    (tmp_path / "python").mkdir()
    (tmp_path / "pymllm").rename(tmp_path / "python" / "pymllm")
    (tmp_path / "python/pymllm/mem_cache/__init__.py").write_text("from .base import NAME")
    below = replace(checkout, root="python", entered=frozenset({"pymllm.mem_cache"}), digests={})
    assert below.load("pymllm.mem_cache").NAME == "checkout_of_a_fake.mem_cache.base"
    with pytest.raises(ImportError, match=r"checkout_of_a_fake\.mem_cache\.tree"):
        importlib.import_module("checkout_of_a_fake.mem_cache.tree")
    assert below.load("pymllm.mem_cache.tree").ALL
    assert not list(tmp_path.rglob("__pycache__"))


def test_what_stands_in_computes_nothing(checkout: Checkout) -> None:
    """A result of a stand-in would be made up."""
    tree = checkout.load("pymllm.mem_cache.tree")
    with pytest.raises(RuntimeError, match="store is a stand-in"):
        tree.store(1, 2)


@pytest.mark.parametrize("module", ["pymllm.mem_cache.gone", "pymllm.mem_cache.broken"])
def test_a_module_that_is_not_there_is_an_import_error(checkout: Checkout, module: str) -> None:
    """And none of ours is found in its place."""
    with pytest.raises(ImportError, match=r"checkout_of_a_fake\.mem_cache"):
        checkout.load(module)


def test_another_version_is_refused_unless_any_is_wanted(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version is told by the contents of its files, so that clone, archive and copy are alike."""
    checkout.require_version()
    other = replace(checkout, digests={TREE: "0" * 64})
    with pytest.raises(
        ImportError, match=rf"^{TREE} of /.* is not the version .* A-Fake 1234567; .*=1 to try"
    ):
        other.require_version()
    monkeypatch.setenv(ANY_VERSION, "1")
    other.require_version()


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        (
            None,
            "^A-Fake is read from a checkout; clone it, check 1234567 out and set PYMLLM_FAKE to its fold",
        ),
        ("/nowhere/at/all", f"^PYMLLM_FAKE is /nowhere/at/all, which has no {TREE}; A-Fake is read from"),
    ],
)
def test_a_checkout_that_is_not_there_says_what_to_do(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, folder: str | None, words: str
) -> None:
    """Before anything is imported."""
    monkeypatch.delenv("PYMLLM_FAKE")
    if folder is not None:
        monkeypatch.setenv("PYMLLM_FAKE", folder)
    for act in (checkout.require_version, lambda: checkout.load("pymllm.mem_cache.tree")):
        with pytest.raises(ImportError, match=words):
            act()


@pytest.mark.parametrize(
    ("name", "project"),
    [
        ("mllm-radix", MLLM),
        ("mllm-rows", MLLM),
        ("megatron-blocks", MEGATRON),
        ("minisgl-radix", MINISGL),
        ("minisgl-rows", MINISGL),
        ("nano-blocks", NANOVLLM),
        ("lmdeploy-trie", LMDEPLOY),
    ],
)
def test_an_adapter_without_its_checkout_is_told_before_it_is_built(
    name: str, project: Checkout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The registry names the variable of a missing checkout; building the adapter names the missing files."""
    monkeypatch.delenv(project.variable, raising=False)
    missing = find_adapter(name).find_missing()
    assert missing is not None
    assert missing.startswith(f"{name} needs a checkout: {project.project} is read from a checkout; ")
    with pytest.raises(AdapterError, match=f"{project.project} is read from a checkout; clone it, check"):
        make_adapter(name)
    monkeypatch.setenv(project.variable, str(tmp_path))
    assert "checkout" not in (find_adapter(name).find_missing() or "")  # a package may be, too
    with pytest.raises(AdapterError, match=f"{project.variable} is {tmp_path}, which has no "):
        make_adapter(name)


@pytest.mark.parametrize(
    ("versions", "files", "is_here"),
    [
        ("Megatron-LM@d98e8a6", "true", True),
        ("megatron-lm @ d98e8a6a5c", "true", True),
        ("Megatron-LM@1234567", "true", False),
        ("Megatron-LM@d98e8a6", "changed", False),
        ("Megatron-LM@d98e8a6", "", False),
    ],
)
def test_a_deviation_is_of_the_commit_that_is_checked_out(
    versions: str, files: str, is_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deviation applies by the contents of the checkout's files, also where any version is to be judged."""
    monkeypatch.setenv(ANY_VERSION, "1")
    monkeypatch.delenv(MEGATRON.variable, raising=False)
    if files:
        monkeypatch.setenv(MEGATRON.variable, str(tmp_path))
        monkeypatch.setattr(f"{Checkout.__module__}._digest", lambda file: file.read_text())
    for path, digest in MEGATRON.digests.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(digest if files == "true" else files)
    assert is_of_version(Deviation(name="a", law="X4", reason="why", versions=versions)) is is_here
