"""What a verification was asked to do."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from pymllm.adapters.registry import OWN, AdapterEntry
from pymllm.cli.verify_plan import PROFILE_NAMES, VerifyOptions, find_adapter_or_refuse, load_or_refuse
from pymllm.conformance.machines import PROFILES
from pymllm.errors import AdapterError, ConversationError
from pymllm.oracle.laws import find_law


def options(
    adapters: tuple[str, ...] = (), laws: tuple[str, ...] = (), jobs: int | None = None
) -> VerifyOptions:
    return VerifyOptions(adapters, laws, "ci", None, None, jobs)


def test_our_own_classes_are_verified_by_default() -> None:
    """All of them, and all laws."""
    assert options().find_adapters() == OWN
    assert options().find_laws() == ()


def test_names_are_taken_once_and_in_order() -> None:
    """Laws in either case."""
    names = [entry.name for entry in options(("radix", "rows", "radix")).find_adapters()]
    assert names == ["radix", "rows"]
    assert options(laws=("r6", "R6", "A1")).find_laws() == (find_law("R6"), find_law("A1"))


def test_the_profiles_are_those_that_there_are() -> None:
    """The names stand twice, since the profiles' room is not loaded for --help."""
    assert set(PROFILE_NAMES) == set(PROFILES)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            options(adapters=("radx",)),
            r"no adapter 'radx' \(did you mean radix\?\); pymllm adapters lists them",
        ),
        (
            options(adapters=("zzz",)),
            "no adapter 'zzz'; .*module:Class or command:PROGRAM ARGS names another one.$",
        ),
        (options(laws=("R66",)), r"no law 'R66' \(did you mean R6\?\); pymllm verify --verbose lists"),
        (options(laws=("qq" * 999,)), r"no law 'q{57}\.\.\.'; pymllm verify"),
        (
            options(adapters=("rows", "sglang-swa")),
            "sglang-swa needs sglang, .*; tox -e peers-older installs it",
        ),
    ],
)
def test_a_name_that_there_is_not_is_refused(
    given: VerifyOptions, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: the message names it, what lists all, and the nearest; or what installs a missing package."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sglang" else find(name))
    with pytest.raises(click.UsageError, match=words):
        given.check()


def test_a_module_is_looked_for_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As python -m does; once, and not for names of the registry."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["elsewhere"])
    find_adapter_or_refuse("radix")
    assert sys.path == ["elsewhere"]
    for _ in "ab":
        assert find_adapter_or_refuse("mine:Cache").place == "mine:Cache"
    assert sys.path == [str(tmp_path), "elsewhere"]


def test_there_is_a_process_for_each_processor() -> None:
    """Those that this process may use."""
    assert options(jobs=3).count_jobs() == 3
    assert options().count_jobs() >= 1


def test_nothing_heavy_is_loaded_for_a_mistyped_option() -> None:
    """An answer at once: neither torch nor Hypothesis."""
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom pymllm.cli import main\n"
        "assert CliRunner().invoke(main, ['verify', '--adapter', 'radx']).exit_code == 2\n"
        "print(*[name for name in ('torch', 'hypothesis', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_class_that_is_not_there_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: as a name is that the registry does not have; of its own names each has its class."""
    assert load_or_refuse("hashes").KIND == "hashes"
    with pytest.raises(click.UsageError, match=r"adapter json:Nobody: json has no class 'Nobody'\."):
        load_or_refuse("json:Nobody")
    broken = AdapterEntry("hashes", "json:Nobody", "")
    monkeypatch.setattr("pymllm.cli.verify_plan.find_adapter", lambda name: broken)
    with pytest.raises(AdapterError, match="json has no class"):
        load_or_refuse("hashes")


def test_a_program_that_does_not_speak_is_no_bad_input(tiny_program: Callable[..., str]) -> None:
    """It is there, so its end is a verdict; one that is not there is bad input."""
    with pytest.raises(ConversationError, match="status 3"):
        load_or_refuse(f"command:{tiny_program('hello', 'status-3')}")
    with pytest.raises(click.UsageError, match="cannot be started"):
        load_or_refuse("command:no-such-program-anywhere")


def test_the_current_folder_is_not_for_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Modules are looked for there, where a name has a class."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["elsewhere"])
    find_adapter_or_refuse("command:./x")
    assert sys.path == ["elsewhere"]
