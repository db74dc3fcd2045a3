"""The source of an adapter from outside this package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pymllm.errors import UsageError
from pymllm.search.foreign_source import digest_adapter, digest_modules

FILES = {
    "my_adapter.py": "import json\nimport my_cache.pages\nimport torch\nfrom pymllm.errors import X\n",
    "my_cache/__init__.py": "",
    "my_cache/pages.py": "from . import leaves\nfrom .trees.nodes import Node\nimport gone\n",
    "my_cache/leaves.py": "LEAF = 1\n",
    "my_cache/trees/__init__.py": "from .. import leaves\n",
    "my_cache/trees/nodes.py": "def late():\n    import my_late\n",
    "my_late.py": "(no Python",
    "my_other.py": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("changed", sorted(set(FILES) - {"my_other.py"}))
def test_a_change_of_anything_that_an_adapter_imports_is_seen(folder: Path, changed: str) -> None:
    """X3: what it does then is no second run of the same, and nothing is imported to see it."""
    before = digest_adapter("my_adapter:Cache")
    assert digest_adapter("my_adapter:Cache") == before != ""
    (folder / changed).write_text(f"{FILES[changed]}# another\n", encoding="utf-8")
    assert digest_adapter("my_adapter:Cache") != before
    assert "my_adapter" not in sys.modules
    assert "my_cache" not in sys.modules


def test_a_change_of_anything_else_is_none(folder: Path) -> None:
    """A campaign goes on whatever else is in the folder."""
    before = digest_adapter("my_adapter:Cache")
    (folder / "my_other.py").write_text("X = 1\n", encoding="utf-8")
    assert digest_adapter("my_adapter:Cache") == before


def test_what_this_package_has_is_left_to_its_version() -> None:
    """X3: own runs of two campaigns are the same runs, whoever else was asked in them."""
    assert digest_adapter("radix") == digest_adapter("faulty-row-zero") == ""
    assert digest_modules(["pymllm.mem_cache.radix_cache", "json", "__main__", "gone.and.away"]) == ""
    assert digest_modules(["torch.and.away"]) == ""


def test_the_files_of_a_command_are_its_source(folder: Path) -> None:
    """Of a program nothing else is known."""
    name = f"command:{sys.executable} my_other.py --fast"
    before = digest_adapter(name)
    (folder / "my_other.py").write_text("X = 1\n", encoding="utf-8")
    assert digest_adapter(name) != before


def test_a_name_that_nobody_has_is_refused() -> None:
    """X1."""
    with pytest.raises(UsageError, match="no adapter 'nobody'"):
        digest_adapter("nobody")
