"""What MkDocs calls while it builds the site: pages that are made, links that lead out of ``docs``, ids, navigation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from api_pages import make_api_pages
from commands_page import make_commands_page
from ids import with_ids
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from repository_pages import make_repository_pages, with_site_links
from schemas_page import make_schemas_page
from sources import ROOT, rooms

__all__ = ["on_config", "on_files", "on_page_content", "on_page_markdown"]

_LOG = logging.getLogger("mkdocs.plugins.pymllm")
_OPEN_SECTION = "Guides"
_NOT_LISTED = ("api", "examples", "findings", "builder")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List what the navigation does not name: other pages of ``docs`` at the end of a section, and the rooms."""
    listed = set(_pages_of(config.nav))
    section = _section(config.nav, _OPEN_SECTION)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        place = path.relative_to(ROOT / "docs").as_posix()
        if place not in listed and PurePosixPath(place).parts[0] not in _NOT_LISTED:
            _LOG.info("docs/%s stands in no section of mkdocs.yml; it is listed under %s", place, _OPEN_SECTION)
            section.append(place)
    _section(config.nav, "API").extend(one.page for one in rooms())
    return config


def _section(nav: Any, title: str) -> list[Any]:
    """The entries below a title, which the navigation must have."""
    for one in nav:
        for name, entries in one.items() if isinstance(one, dict) else ():
            if name == title:
                return entries
            if isinstance(entries, list) and (found := _section(entries, title)):
                return found
    return []


def _pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for one in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _pages_of(one)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file of ``docs`` has."""
    made = {
        "commands.md": make_commands_page(),
        "schemas.md": make_schemas_page(),
        **make_repository_pages(),
        **make_api_pages(),
    }
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links of the repository to pages of the site."""
    return with_site_links(markdown, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead ids of laws and bugs to what they stand for."""
    return with_ids(html, page.file.dest_uri)
