"""Importing sglang's modules without a GPU, and the stand-ins that allow it."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import re
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from pymllm.adapters.entry import ANY_VERSION
from pymllm_peers.sglang.package import (
    KNOWN,
    NEWER,
    OLDER,
    also_claimed,
    load_sglang,
    require_version,
    sglang_version,
)
from pymllm_peers.stand_ins import standing_in

# -- Importing sglang's cache modules without its dependencies: what stands in, and what is left behind ------


ROOT = Path(__file__).parents[4]
FILES = {
    "sglang/__init__.py": "raise ImportError('its own __init__ must not run')",
    "sglang/srt/configs/__init__.py": "raise ImportError('nor this one')",
    "sglang/srt/configs/sizes.py": "PAGE = 16",
    "sglang/srt/managers/__init__.py": "",
    "sglang/srt/mem_cache/__init__.py": "",
    "sglang/srt/mem_cache/tree.py": """
import triton
import triton.language as tl
from cuda.bindings import driver
from sglang.srt.configs.sizes import PAGE
from sglang.srt.managers.schedule_batch import Req

FLAG = driver.CUmemFlags.CU_MEM_MINIMUM

@triton.jit
def kernel():
    return PAGE

@triton.jit(do_not_specialize=["n"])
def other():
    return tl

class Request(Req):
    pass
""",
    "sglang/srt/mem_cache/broken.py": "import nowhere_to_be_found",
    "sglang-0.0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: sglang\nVersion: 0.0.1\n",
}


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make a package of this name with modules that import packages which need a GPU."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    real = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "sglang"}
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]
    sys.modules.update(real)


@pytest.mark.usefixtures("made_up")
def test_kernels_are_functions_that_nobody_compiles() -> None:
    """Decorated or made by a factory, inherited from or looked up: an import succeeds."""
    tree = load_sglang("mem_cache.tree")
    assert sglang_version() == "0.0.1"
    assert tree.kernel() == 16
    assert isinstance(tree.Request(), tree.Request)
    assert load_sglang("mem_cache.tree") is tree


@pytest.mark.usefixtures("made_up")
def test_what_would_compute_with_a_stand_in_raises() -> None:
    """No result is ever made up."""
    tree = load_sglang("mem_cache.tree")
    with pytest.raises(RuntimeError, match="arange is a stand-in"):
        tree.tl.arange(0, 4)
    with pytest.raises(TypeError):
        tree.kernel[(1,)]()


@pytest.mark.usefixtures("made_up")
def test_nothing_stands_in_for_others_afterwards() -> None:
    """Torch and other importers find only the installed triton afterwards, or none if none is installed."""
    importlib.import_module("torch._inductor.runtime.hints")  # imports it where it can
    names = ("triton", "triton.language", "cuda", "cuda.bindings")
    finders, modules = set(sys.meta_path), {name: sys.modules.get(name) for name in names}
    load_sglang("mem_cache.tree")
    assert set(sys.meta_path) == finders
    assert {name: sys.modules.get(name) for name in names} == modules


@pytest.mark.usefixtures("made_up")
def test_a_module_that_a_version_lacks_is_named_with_the_version() -> None:
    """Older and newer versions have other modules; what a module itself lacks is told as it is."""
    with pytest.raises(ImportError, match=r"sglang 0\.0\.1 has no module sglang\.srt\.mem_cache\.forest"):
        load_sglang("mem_cache.forest")
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        load_sglang("mem_cache.broken")


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(("known", "environment"), [(NEWER, "peers"), (OLDER, "peers-older")])
def test_a_version_that_nobody_tried_is_accused_of_nothing(
    known: str, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An untried version is refused, since its gaps would look like errors; a variable lets it be tried."""
    monkeypatch.delenv(ANY_VERSION, raising=False)
    said = rf"sglang 0\.0\.1 is not the version that .*, {known}.*; tox -e {environment} installs {known}, "
    with pytest.raises(ImportError, match=said):
        require_version(known)
    for version in KNOWN[known]:
        monkeypatch.setattr(importlib.metadata, "version", lambda name, it=version: it)
        require_version(known)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    monkeypatch.setenv(ANY_VERSION, "1")
    require_version(known)


def test_the_versions_are_those_that_are_installed() -> None:
    """By the environments of tox that errors name."""
    tasks = ConfigParser(interpolation=None)
    tasks.read(ROOT / "tox.ini", encoding="utf-8")
    for environment, version in (("peers", NEWER), ("peers-older", OLDER), ("bench-peers", NEWER)):
        before = tasks[f"testenv:{environment}"]["commands_pre"]
        installed = re.findall(r"peers/constraints/[\w-]+\.txt", before)
        pinned = "".join((ROOT / name).read_text(encoding="utf-8") for name in installed)
        assert re.findall(r"^sglang==(.*)$", pinned, re.MULTILINE) == [version]


def test_without_sglang_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error without sglang is a line that names the environment to install, without a traceback."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ImportError, match="sglang is not installed; tox -e peers installs it"):
        load_sglang("mem_cache.no_such_module")
    with pytest.raises(ImportError, match="sglang is not installed; tox -e peers-older installs it"):
        require_version(OLDER)


def test_a_configuration_may_claim_more_for_one_program() -> None:
    """``also`` is a list of words."""
    assert also_claimed({"also": "exact_lru  merges"}) == {"exact_lru", "merges"}
    assert also_claimed({"page_size": 1}) == frozenset()


# -- Names that stand in for modules while others are imported, and are gone afterwards ----------------------


STAND_IN_FILES = {
    "made_up_server/__init__.py": "raise ImportError('its own __init__ must not run')",
    "made_up_server/pool.py": """
import logging
import made_up_kernels.fast as fast
from made_up_server.metrics import Collector

logging.getLogger(__name__).warning("no kernels")

class Pool(Collector):
    pass
""",
}


@pytest.fixture
def stand_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make a package that imports kernels which are not installed, and metrics of its own."""
    for name, text in STAND_IN_FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("made_up_")]:
        del sys.modules[name]


@pytest.mark.usefixtures("stand_in_files")
def test_only_the_stand_ins_of_the_kept_package_stay(caplog: pytest.LogCaptureFixture) -> None:
    """Modules of the kept package go on importing each other; other modules find no kernels."""
    before = list(sys.meta_path)
    with standing_in(["made_up_kernels", "made_up_server.metrics"], ["made_up_server"], "made_up_server"):
        pool = importlib.import_module("made_up_server.pool")
    assert isinstance(pool.Pool(), pool.Pool)
    assert sys.meta_path == before
    assert "made_up_server.metrics" in sys.modules
    assert not {"made_up_kernels", "made_up_kernels.fast"} & set(sys.modules)
    assert not caplog.records
    assert logging.getLogger().manager.disable == logging.NOTSET
    with pytest.raises(RuntimeError, match="launch is a stand-in"):
        pool.fast.launch(1, 2)


def test_a_package_that_is_not_there_is_named() -> None:
    """Nothing is left in its place."""
    before = list(sys.meta_path)
    with (
        pytest.raises(ImportError, match="made_up_nowhere is no package"),
        standing_in([], ["made_up_nowhere"], "made_up_nowhere"),
    ):
        raise AssertionError("never entered")
    assert sys.meta_path == before
