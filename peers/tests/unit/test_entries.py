"""The adapters that the distribution brings, and the packages or checkouts that each adapter needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from pymllm.adapters.registry import adapters, find_adapter, plugin_problems
from pymllm.search.foreign_source import digest_adapter
from pymllm_peers import ADAPTERS

ROOT = Path(__file__).parents[3]


def test_all_are_found_by_the_entry_point() -> None:
    """Each by its name, before the faulty ones; none has a name of ours."""
    assert plugin_problems() == ()
    names = [entry.name for entry in adapters()]
    begin = names.index(ADAPTERS[0].name)
    assert names[begin : begin + len(ADAPTERS)] == [entry.name for entry in ADAPTERS]


def test_a_change_of_an_adapter_makes_other_runs_of_a_campaign() -> None:
    """X3: each adapter's source has a digest of its own, since no version of pymllm tells of the source."""
    assert digest_adapter("sglang-radix") not in ("", digest_adapter("vllm-blocks"))


def test_a_package_that_is_missing_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the environment that installs it, or by its pins."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    newer, older = (find_adapter(name).find_missing() for name in ("sglang-radix", "sglang-mamba"))
    assert newer is not None
    assert newer.startswith("sglang-radix needs sglang, which is not installed; tox -e peers installs it")
    assert newer.endswith("--no-deps -r peers/constraints/peers-alone.txt")
    assert older is not None
    assert older.endswith("--no-deps -r peers/constraints/peers-older.txt")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert find_adapter("sglang-radix").find_missing() is None


def test_pins_that_are_named_are_there() -> None:
    """A reader who follows a message finds the files with the pins."""
    named = {word for entry in ADAPTERS for word in entry.install.split() if word.endswith(".txt")}
    assert len(named) > 3
    for path in named:
        assert (ROOT / path).is_file(), path


def test_a_checkout_is_asked_for_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the commit that was tried."""
    monkeypatch.delenv("PYMLLM_MLLM", raising=False)
    said = find_adapter("mllm-radix").find_missing()
    assert said is not None
    assert said.endswith("check b9c3070 out and set PYMLLM_MLLM to its folder")
    monkeypatch.setenv("PYMLLM_MLLM", os.devnull)
    assert find_adapter("mllm-radix").find_missing() is None


def test_the_night_judges_every_adapter_of_what_it_installs() -> None:
    """An adapter that is new here is asked, too, and none that only an older release has."""
    night = yaml.safe_load((ROOT / "examples/workflows/nightly.yml").read_text(encoding="utf-8"))["jobs"][
        "laws"
    ]
    found = {"sglang": "sglang", "vllm": "vllm", "ai-dynamo-runtime": "dynamo"}
    packages = {found[name] for name in night["env"]["PACKAGES"].split()}
    newest = [it.name for it in ADAPTERS if it.package in packages and "peers-older" not in it.install]
    assert sorted(night["env"]["ADAPTERS"].split()) == sorted(newest)
    assert (ROOT / night["env"]["KNOWN"].removeprefix("pymllm/")).is_file()
