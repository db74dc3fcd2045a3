"""Files for other projects' suites: short, free of this package, and what they list has a page."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "peers" / "integrations"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
FILES = sorted(FOLDER.glob("*/test_cache_vectors.py"))
THEIRS = {"pytest", "torch"}
"""What a file may import beside its own project and the standard library."""


def roots_of(text: str) -> set[str]:
    """Return the packages that a file imports, also by `import_module` of a literal name."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            found.add(str(ast.literal_eval(node.args[0])))
    return {name.partition(".")[0] for name in found}


def test_there_is_one_for_each_project() -> None:
    """And a list of what is known beside it."""
    assert [file.parent.name for file in FILES] == ["dynamo", "sglang", "vllm"]
    assert all((file.parent / "known.json").is_file() for file in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_a_file_is_short_and_stands_alone(file: Path) -> None:
    """At most 300 lines, and nothing imported but the project, its test tools and the runner."""
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    others = roots_of(text) - sys.stdlib_module_names - THEIRS
    assert others == {file.parent.name, "run_vectors"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_what_is_listed_has_a_page(file: Path) -> None:
    """Each deviation has a reason, and a finding that says more; their README.md names it."""
    known = json.loads((file.parent / "known.json").read_text(encoding="utf-8"))
    for vector, reason in known.items():
        found = re.fullmatch(r"\S.+ \((peers/findings/[\w/-]+\.md)\)", reason)
        assert found is not None, vector
        assert (ROOT / found[1]).is_file(), vector
        assert f"`{vector}`" in PAGE


def test_the_page_says_what_can_be_copied() -> None:
    """Each path that it names is there, for each project."""
    named = set(re.findall(r"\b(?:peers/integrations|vectors)/[\w./*]*[\w*]", PAGE))
    assert named >= {
        "vectors/runners/python/run_vectors.py",
        "vectors/v1/*.jsonl",
        "peers/integrations/sglang",
    }
    for path in named:
        for project in ("sglang", "vllm", "dynamo"):
            assert [*ROOT.glob(path.replace("PROJECT", project))], path
