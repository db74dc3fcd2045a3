"""Bugs of a plain cache, planted in the example of the runner in Python: vectors for its claims show each."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from tests.unit.vectors.runners import FOLDER, RUNNERS

SOURCE = RUNNERS["python"].source.read_text(encoding="utf-8")
VECTORS = [
    json.loads(line) for line in (FOLDER / "prefix.jsonl").read_text(encoding="utf-8").splitlines()[1:]
]
ONE_TOKEN = [it for it in VECTORS if it["config"]["page_size"] == 1]

USED = 'self.pages[prefix]["used"] = step'
EVICT = """while len(freed) < wanted and (leaves := self.leaves()):
                freed += self.pages.pop(min(leaves, key=lambda it: self.pages[it]["used"]))["slots"]"""
LOCKED_PARENTS = """leaves = self.leaves()
            while len(freed) < wanted and leaves:
                gone = min(leaves, key=lambda it: self.pages[it]["used"])
                leaves.remove(gone)
                freed += self.pages.pop(gone)["slots"]
                parent = gone[: -self.size]
                if parent in self.pages and not any(it[: -self.size] == parent for it in self.pages):
                    leaves.append(parent)"""

BUGS = {
    "an eviction takes a parent that lost its last child, whatever its lock": (EVICT, LOCKED_PARENTS),
    "an eviction takes what is held": ('it["holds"] <= 0', "True"),
    "an eviction takes what has something below it": ("prefix not in inner and", ""),
    "an eviction takes one page more": ("while len(freed) < wanted", "while len(freed) <= wanted"),
    "an eviction takes one page": ("while len(freed) < wanted", "while wanted > 0 == len(freed)"),
    "an eviction takes nothing while something is held": (
        "while len(freed) < wanted",
        'while not any(it["holds"] > 0 for it in self.pages.values()) and len(freed) < wanted',
    ),
    "an eviction takes what was used last": ("min(leaves", "max(leaves"),
    "an eviction takes the first that comes": (
        'min(leaves, key=lambda it: self.pages[it]["used"])',
        "leaves[0]",
    ),
    "an eviction tells of no slot": ("if freed else []", 'if freed and name != "evict" else []'),
    "an eviction keeps slots back": ("self.free += freed", "self.free += freed[:1]"),
    "a match makes nothing recent": (USED, f'{USED} if is_insert else self.pages[prefix]["used"]'),
    "an insert makes nothing recent": (USED, f'{USED} if not is_insert else self.pages[prefix]["used"]'),
    "a hold is of one node": ("node[: len(prefix)] == prefix", "node == prefix"),
    "a hold is never released": ('number_of(op, "lock"), ()), -1)', 'number_of(op, "lock"), ()), 0)'),
    "a release takes every hold": (
        'page["holds"] += by if node[: len(prefix)] == prefix else 0',
        'page["holds"] = (page["holds"] + 1) * (by > 0) if node[: len(prefix)] == prefix else page["holds"]',
    ),
    "a page has one hold at most": (
        'page["holds"] += by if node[: len(prefix)] == prefix else 0',
        'page["holds"] = max(by, 0) if node[: len(prefix)] == prefix else page["holds"]',
    ),
    "what is cached below a held page is held": (
        '"used": step, "holds": 0}',
        '"used": step, "holds": self.pages.get(node, {"holds": 0})["holds"]}',
    ),
    "a match gives the parent of its node": (
        "self.nodes[step], known = node, len(found)",
        "self.nodes[step], known = node if is_insert else node[: -self.size], len(found)",
    ),
    "a match names its last slot first": ('"slots": found, "node_len"', '"slots": found[::-1], "node_len"'),
    "a match never has the last token": (
        "while length + self.size <= len(tokens)",
        "while length + self.size <= len(tokens) - (not is_insert)",
    ),
    "an insert keeps the slots that came last": (
        'found += self.pages[prefix]["slots"]',
        'self.pages[prefix]["slots"] = given[length:][: self.size] or self.pages[prefix]["slots"]\n'
        '                found += self.pages[prefix]["slots"]',
    ),
    "an insert tells that it adopted all": ("[[known, length]]", "[[0, length]]"),
    "an insert tells that nothing was cached": (
        '{"is": "inserted", "prefix_len": known',
        '{"is": "inserted", "prefix_len": 0',
    ),
    "an insert adds one page": ("elif is_insert and", "elif is_insert and len(found) == length and"),
    "namespaces are one": ('show(key["extra_key"]) if "extra_key" in key else ""', '""'),
    "a namespace is its text": ('show(key["extra_key"])', 'str(key["extra_key"])'),
    "a reset keeps what is held": (
        "for prefix in sorted(self.pages) for slot",
        'for prefix in sorted(self.pages) if self.pages[prefix]["holds"] <= 0 for slot',
    ),
    "what is held is evictable, too": ('"evictable_size": total - held', '"evictable_size": total'),
    "held pages count once for each hold": (
        'sum(page["holds"] > 0 for page',
        'sum(max(page["holds"], 0) for page',
    ),
}


def example(old: str = "", new: str = "") -> ModuleType:
    """Return the runner, with a bug in its example."""
    assert old in SOURCE, f"the example has {old!r} no more"
    module = ModuleType("run_vectors")
    exec(compile(SOURCE.replace(old, new) if old else SOURCE, "run_vectors.py", "exec"), module.__dict__)
    return module


def failed(module: Any, vectors: list[dict[str, Any]]) -> list[str]:
    """Return the ids of the vectors that fail on the example."""
    found = []
    for vector in vectors:
        cache, (verdict, _) = module.make(vector, "prefix")
        if cache is not None:
            verdict, _ = module.play(vector, cache)
        found += [vector["id"]] if verdict == "failed" else []
    return found


def test_the_example_itself_fails_nothing() -> None:
    """The example itself fails no vector, so that a failure below comes from its bug."""
    assert failed(example(), VECTORS) == []


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_the_example_is_shown(bug: str) -> None:
    """By vectors with pages of one token alone."""
    assert failed(example(*BUGS[bug]), ONE_TOKEN)
