"""The registry of situations: complete, consistent, and the only place where names come from."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from pymllm.adapters.base import CAPABILITIES, header_of
from pymllm.adapters.cabinet.bugs import BUGS
from pymllm.adapters.registry import OWN, find_adapter, load_adapter, make_adapter
from pymllm.history.files import Header
from pymllm.history.operations import KINDS
from pymllm.oracle.laws import find_law
from pymllm.oracle.situation import Situation
from pymllm.oracle.situations import NAMES, SITUATIONS, expected_names, expected_situations, situations_of

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "pymllm"

each_situation = pytest.mark.parametrize(
    "situation", SITUATIONS, ids=lambda one: f"{one.kind}{'-engine' * one.of_engine}-{one.name}"
)


def test_a_name_stands_once_for_each_kind() -> None:
    """Two rows under one name would be one count for two questions."""
    counts = Counter((one.kind, one.of_engine, one.name) for one in SITUATIONS)
    assert max(counts.values()) == 1
    assert len(SITUATIONS) >= 60
    assert {one.kind for one in SITUATIONS} == set(KINDS)


@each_situation
def test_every_situation_can_be_read_and_placed(situation: Situation) -> None:
    """A clause without a full stop, laws about this kind, bugs and capabilities that there are."""
    assert re.fullmatch(r"[a-zA-Z][^.;:]*[^.;: ]", situation.name)
    assert len(situation.name) < 90
    assert situation.laws
    assert all(situation.kind in find_law(law).kinds for law in situation.laws)
    assert situation.needs <= set(CAPABILITIES)
    assert ("engine" in situation.needs) == situation.of_engine


def own_headers() -> list[tuple[Header, str]]:
    """The header of every configuration of our own adapters."""
    found = []
    for entry in OWN:
        for config in load_adapter(find_adapter(entry.name)).CONFIGURATIONS:
            adapter = make_adapter(entry.name, dict(config))
            found.append((header_of(adapter), entry.name))
            adapter.close()
    return found


def test_every_situation_is_expected_of_some_configuration_of_our_own() -> None:
    """What nobody is asked to reach, nobody shows to be reachable."""
    expected = {
        (header.kind, of_engine, name)
        for header, _ in own_headers()
        for of_engine in (False, True)
        for name in expected_situations(header, of_engine=of_engine)
    }
    assert {(one.kind, one.of_engine, one.name) for one in SITUATIONS} == expected


def test_what_is_expected_is_asked_for_by_header_or_by_its_parts() -> None:
    """The same either way, and nothing of an engine's life unless it is asked for."""
    header = Header("x", "prefix", {"page_size": 1, "pool": "token"}, ("engine", "pool"))
    asked = expected_names("prefix", header.config, header.capabilities, of_engine=True)
    assert expected_situations(header, of_engine=True) == asked
    assert asked <= {one.name for one in situations_of("prefix", of_engine=True)}
    assert not any(one.of_engine for one in situations_of("prefix"))
    assert "the engine comes to rest" in asked - expected_situations(header)


def spelled_names() -> set[str]:
    """Every name that a call of ``meet`` spells out, or that stands in a table which one goes through."""
    found = set()
    for path in sorted((SOURCE / "oracle").glob("*.py")) + sorted((SOURCE / "conformance").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("meet") and node.args:
                found |= _texts(node.args[0])
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "met":
                assert isinstance(node.value, ast.Dict)
                found |= {text for key in node.value.keys if key is not None for text in _texts(key)}
    return found


def _texts(node: ast.expr) -> set[str]:
    """Texts that an expression may be: constants, and both sides of a choice."""
    if isinstance(node, ast.IfExp):
        return _texts(node.body) | _texts(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_no_judge_counts_what_nobody_registered() -> None:
    """Not even on a way that no test takes."""
    spelled = spelled_names()
    assert len(spelled) > 200
    assert spelled - NAMES == set()


def test_every_name_stands_in_some_source() -> None:
    """A situation that no judge knows can never be met; names put together from parts are left out."""
    modules = [path for path in SOURCE.rglob("*.py") if not path.name.startswith("situations_of_")]
    text = "".join(path.read_text(encoding="utf-8") for path in modules)
    composed = [
        r"an? (stretch|entry) .*is refused",
        r"a write with .* is refused",
        r"rows are written in shape \w+",
        r"a (key|page) in form \w+ is (read|hashed)",
        r"a request is retracted (in decode|between two chunks)",
        r"cached tokens lie .*",
        r"too few blocks are left for a (request|chunk)",
        r"a (request|chunk) finds no room where there is some",
        r"a token (below 0|above 32 bits) is refused",
        r"the pool refuses (displaced slots|a revival under a hold)",
    ]
    missing = [name for name in NAMES if f'"{name}"' not in text]
    assert [name for name in missing if not any(re.fullmatch(pattern, name) for pattern in composed)] == []


def test_every_bug_is_a_known_one() -> None:
    """Ids as docs/faults.md has them."""
    assert {bug for one in SITUATIONS for bug in one.bugs} <= BUGS.keys()
