"""The form of the table of real bugs: what it says can be looked up, and run."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from packaging.version import Version

from peers.time_machine.bugs import TABLE, Bug, read_bugs
from pymllm.oracle.laws import LAWS
from pymllm_peers import ADAPTERS

BUGS = read_bugs()
ROOT = Path(__file__).parents[2]
LINK = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(pull|issues)/\d+")
PROJECTS = {"sglang", "vllm", "megatron-core", "lmcache", "ai-dynamo-runtime"}


def test_there_are_as_many_as_promised() -> None:
    """At least twenty-five, and none of them twice."""
    assert len(BUGS) >= 25
    assert max(Counter(bug.id for bug in BUGS).values()) == 1
    assert {bug.project for bug in BUGS} == PROJECTS


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_every_bug_can_be_looked_up(bug: Bug) -> None:
    """Its releases are in order, its links lead to the project, and its laws are laws."""
    assert Version(bug.last_with) < Version(bug.first_without)
    assert bug.links
    assert all(
        re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(pull|issues)/\d+", one) for one in bug.links
    )
    assert bug.expected
    assert set(bug.expected) <= {law.id for law in LAWS}
    assert all(len(text) > 10 for text in (bug.title, bug.read, bug.why))
    assert bug.files


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.adapter], ids=lambda bug: bug.id)
def test_every_adapter_is_there(bug: Bug) -> None:
    """By its name in the registry, or as a class of a module of this folder."""
    module, _, name = bug.adapter.partition(":")
    if not name:
        assert module in {entry.name for entry in ADAPTERS}
        return
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def test_what_can_be_reached_has_an_adapter() -> None:
    """Every bug that can be reached has an adapter, since thinking finds no bug."""
    assert all(bug.adapter for bug in BUGS if bug.reachable)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "reachable = true",
            'reachable = "yes"',
            r"Expected `bool`, got `str`",
        ),
        ("reachable = true", "law = 'R2'", r"unknown field `law`"),
        ("why = ", "# why = ", r"missing required field `why`"),
    ],
)
def test_another_form_is_named(old: str, new: str, said: str, tmp_path: Path) -> None:
    """A wrong type, a word that no bug has, and one that is missing."""
    file = tmp_path / "bugs.toml"
    file.write_text(TABLE.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(msgspec.ValidationError, match=said):
        read_bugs(file)
