"""Needs of the adapter of dynamo's index, and its words where one is not met."""

from __future__ import annotations

import importlib.metadata
import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from pymllm.adapters.registry import find_adapter
from pymllm_peers.dynamo.radix_tree import VERSION, load_radix_tree

ROOT = Path(__file__).parents[4]


def test_the_version_is_the_one_that_is_installed() -> None:
    """By the environment of tox that errors name."""
    tasks = ConfigParser(interpolation=None)
    tasks.read(ROOT / "tox.ini", encoding="utf-8")
    (name,) = re.findall(r"peers/constraints/[\w-]+\.txt", tasks["testenv:peers-dynamo"]["commands_pre"])
    pinned = (ROOT / name).read_text(encoding="utf-8")
    assert re.findall(r"^ai-dynamo-runtime==(.*)$", pinned, re.MULTILINE) == [VERSION]


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, before anything of it is imported."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ImportError, match="ai-dynamo-runtime is not installed; tox -e peers-dynamo installs"):
        load_radix_tree()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_adapter("dynamo-index").find_missing() == (
        "dynamo-index needs dynamo, which is not installed; tox -e peers-dynamo installs it, "
        "or pip install --no-deps -r peers/constraints/peers-dynamo.txt"
    )
