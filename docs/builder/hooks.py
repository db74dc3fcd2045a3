"""The hooks that MkDocs calls while building the site: made pages, links out of ``docs``, ids, navigation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from api_pages import make_api_pages, nav_of_api
from commands_page import make_commands_page
from goals_page import make_goals_page
from ids import places_of_ids, with_ids
from laws_page import make_laws_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from repository_pages import make_repository_pages, with_site_links
from schemas_page import make_schema_files, make_schemas_page
from sources import ROOT

from pymllm.oracle.coverage import GOALS

__all__ = ["on_config", "on_files", "on_page_content", "on_page_markdown", "on_post_build"]

_LOG = logging.getLogger("mkdocs.plugins.pymllm")

_LONG_TABLES = ("compare.md", "faults.md", "faulty.md", "coverage-goals.md", "time-machine.md")
_OPEN_SECTION = "Guides"
_SECTIONS = {
    "examples": "Examples",
    "peers": "Findings",
    "specification": "Specification",
    "tutorials": "Start",
    "vectors": "Runners",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List pages that the navigation does not name: where they belong, or else as guides."""
    assert config.nav is not None
    listed = set(_pages_of(config.nav))
    places = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    for place in [*places, *make_repository_pages()]:
        if place.endswith(".md") and place not in listed:
            parts = PurePosixPath(place).parts
            section = _section(config.nav, _SECTIONS.get(parts[0], _OPEN_SECTION))
            for project in parts[2:-1] if parts[:2] == ("peers", "findings") else ():
                section = _section(section, project)
            section.append(place)
    _section(config.nav, "API").extend(nav_of_api())
    return config


def _pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for one in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _pages_of(one)


def _section(nav: list[Any], title: str) -> list[Any]:
    """Return the entries below a title; those of a new section where there is none by this title."""
    for name, entries in _sections_of(nav):
        if name == title:
            return entries
    new: list[Any] = []
    nav.append({title: new})
    return new


def _sections_of(nav: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    for one in nav:
        for name, entries in one.items() if isinstance(one, dict) else ():
            if isinstance(entries, list):
                yield name, entries
                yield from _sections_of(entries)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and schemas that no file of ``docs`` has."""
    made = {
        "commands.md": make_commands_page(),
        "coverage-goals.md": make_goals_page(GOALS),
        "laws.md": make_laws_page(),
        "schemas.md": make_schemas_page(),
        **make_schema_files(),
        **make_repository_pages(),
        **make_api_pages(),
    }
    for place, text in made.items():
        if place not in files.src_uris:
            files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links of the repository to pages of the site; the first page has no neighbours to list."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]
    if page.file.src_uri in _LONG_TABLES:
        page.meta["search"] = {"boost": 0.2}  # they have every word, and would be the first answer to any
    return with_site_links(markdown, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the ids of laws and bugs to their definitions."""
    return with_ids(html, page.file.dest_uri)


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of each id with links to a missing place, since MkDocs knows nothing of these links."""
    for place in places_of_ids():
        address, _, anchor = place.partition("#")
        if f'id="{anchor}"' not in (Path(config.site_dir) / address).read_text(encoding="utf-8"):
            _LOG.warning("ids lead to %s, and there is no such place", place)
