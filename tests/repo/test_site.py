"""The parts that the site adds to the pages, checked where its tools are installed: ``tox -e docs``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "docs" / "builder"

pytest.importorskip("mkdocs", reason="the site is built by tox -e docs, which installs MkDocs")
griffe = pytest.importorskip("griffe", reason="docstrings are read by tox -e docs, which installs griffe")
pytestmark = pytest.mark.usefixtures("builder")

PART = '''"""A part: `Thing`, ``Thing``, `Thing.act`, `_hidden`, `nothing`::

    code
"""


class Thing:
    """A thing, in which `Thing` is itself and `act` what it does.

    ::

        code
    """

    def act(self):
        """Act."""


def _hidden():
    """Hide."""
'''


def navigation() -> list[Any]:
    """The sections that the builder adds to, and a page that is named."""
    return [{"Guides": ["verify.md"]}, {"Evidence": [{"Findings": []}]}, {"Reference": [{"API": []}]}]


def test_pages_that_are_not_named_are_listed_all_the_same() -> None:
    """Findings and examples in their sections, others as guides, what is named once."""
    from hooks import on_config

    config = SimpleNamespace(nav=navigation())
    on_config(config)
    guides, evidence, reference = config.nav[:3]
    assert guides["Guides"].count("verify.md") == 1
    assert {"soak.md", "faulty.md"} <= set(guides["Guides"])
    projects = [one for one in evidence["Evidence"][0]["Findings"] if isinstance(one, dict)]
    (ours,) = (one["sglang"] for one in projects if "sglang" in one)
    assert "peers/findings/sglang/keys-are-kept.md" in ours
    assert all(place.startswith("peers/findings/sglang/") and place.endswith(".md") for place in ours)
    api = reference["Reference"][0]["API"]
    assert {"errors": "api/errors.md"} in api
    (rooms,) = (one["mem_cache"] for one in api if "mem_cache" in one)
    assert rooms[0] == "api/mem_cache/index.md"
    assert {"radix_cache": "api/mem_cache/radix_cache.md"} in rooms
    (examples,) = (one["Examples"] for one in config.nav if "Examples" in one)
    assert "examples/protocol/page_cache.rs.md" in examples


def test_the_build_makes_what_no_file_has() -> None:
    """Every schema, laws, goals and commands; a file of ``docs`` stays as it is."""
    from hooks import on_files
    from mkdocs.structure.files import File, Files

    from pymllm.cli.schema import SCHEMAS

    plugins = SimpleNamespace(_current_plugin="pymllm")
    config: Any = SimpleNamespace(site_dir="build/site", use_directory_urls=False, plugins=plugins)
    kept = File.generated(config, "schemas/history.schema.json", content="kept")
    files = on_files(Files([kept]), config)
    schemas = {f"schemas/{name}.schema.json" for name in SCHEMAS}
    assert schemas | {"laws.md", "coverage-goals.md", "commands.md"} <= files.src_uris.keys()
    assert files.src_uris["schemas/history.schema.json"].content_string == "kept"


def test_names_in_docstrings_become_references(tmp_path: Path) -> None:
    """Where they mean something public with a docstring, and are no code."""
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "__init__.py").write_text('"""A package."""\n', encoding="utf-8")
    (tmp_path / "small" / "part.py").write_text(PART, encoding="utf-8")
    extensions = griffe.load_extensions(BUILDER / "crossrefs.py")
    package = griffe.load("small", search_paths=[tmp_path], extensions=extensions)
    part = package["part"]
    assert part.docstring.value.startswith(
        "A part: [`Thing`][small.part.Thing], ``Thing``, [`Thing.act`][small.part.Thing.act], "
        "`_hidden`, `nothing`:\n"
    )
    thing = part["Thing"].docstring.value
    assert "in which `Thing` is itself and [`act`][small.part.Thing.act] what" in thing
    assert "::" not in thing
