"""What lies outside of ``docs`` and belongs on the site: changelog, contributing, and the examples."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from posixpath import dirname, normpath, relpath

from sources import ROOT, public_modules

__all__ = ["make_repository_pages", "with_site_links"]

_AT_THE_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md")
_LANGUAGES = {".py": "python", ".c": "c", ".rs": "rust", ".yml": "yaml", ".groovy": "groovy"}
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)")


def make_repository_pages() -> dict[str, str]:
    """Return the text of each page by its place below ``docs``."""
    pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in _AT_THE_ROOT}
    examples = sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in _LANGUAGES)
    listed = [f"- [{_name(path)}]({_name(path)}.md)" for path in examples]
    pages["examples/index.md"] = (
        "# Examples\n\nThe files of the repository's folder `examples`:\n\n" + "\n".join(listed)
    )
    return pages | {f"examples/{_name(path)}.md": _listing(path) for path in examples}


def with_site_links(text: str, place: str) -> str:
    """Let the links of a page, which are right in the repository, lead to pages of the site.

    Parameters
    ----------
    text : str
        Markdown.
    place : str
        The page, below ``docs``.

    Returns
    -------
    str
        The page, in which a link to a file that has no page is left as it was; MkDocs complains of it.
    """
    here = place if place in _AT_THE_ROOT else f"docs/{place}"

    def lead(found: re.Match[str]) -> str:
        target = _place_on_site(normpath(f"{dirname(here)}/{found[1]}".lstrip("/")))
        return relpath(target, dirname(place)) if target else found[0]

    return _LINK.sub(lead, text)


def _place_on_site(target: str) -> str:
    """Say where a file of the repository is on the site; nothing where it is not on it."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target == "examples":
        return "examples/index.md"
    if target.startswith("examples/"):
        return f"{target}.md"
    if target in _module_pages():
        return _module_pages()[target]
    return {name: name for name in _AT_THE_ROOT}.get(target, "index.md" if target == "README.md" else "")


@cache
def _module_pages() -> dict[str, str]:
    """Pages of the modules by their files."""
    return {module.path.relative_to(ROOT).as_posix(): module.page for module in public_modules()}


def _name(path: Path) -> str:
    return path.relative_to(ROOT / "examples").as_posix()


def _listing(path: Path) -> str:
    code = path.read_text(encoding="utf-8").rstrip("\n")
    return f"# {_name(path)}\n\n```` {{ .{_LANGUAGES[path.suffix]} linenums=1 }}\n{code}\n````\n"
