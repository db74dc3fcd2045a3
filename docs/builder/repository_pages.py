"""The pages of the site that lie outside of ``docs``: texts beside it, peers, examples, vectors."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from posixpath import dirname, normpath, relpath

from sources import ROOT, public_modules

__all__ = ["make_repository_pages", "with_site_links"]

_FINDINGS = ROOT / "peers" / "findings"
_BESIDE_DOCS = (
    *("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "peers/README.md", "peers/integrations/README.md"),
    *(path.relative_to(ROOT).as_posix() for path in sorted(_FINDINGS.rglob("*")) if path.is_file()),
)
"""Where they are in the repository, they are on the site: pages, and what a page of findings links to."""
_FOLDERS = {
    "examples": ("Examples", "The files of the repository's folder `examples`:"),
    "vectors/runners": (
        "Runners of vectors",
        "One for each language, and the examples of Go and C++; [how to use them](../../vectors.md):",
    ),
}
_LISTED = (*_FOLDERS, "peers/integrations")  # the last has a page of its own, beside it
_LANGUAGES = {
    ".py": "python",
    ".c": "c",
    ".cpp": "cpp",
    ".hpp": "cpp",
    ".go": "go",
    ".rs": "rust",
    ".toml": "toml",
    ".sbatch": "bash",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".groovy": "groovy",
}
_MADE = re.compile(r"(?<![`\[])`(pymllm goals|pymllm schema ([a-z][a-z-]*)|laws\.md)`(?![`\]])")
_PAGES_OF_WORDS = {"pymllm goals": "coverage-goals.md", "laws.md": "laws.md"}
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)")


def make_repository_pages() -> dict[str, str]:
    """Return the text of each page by its place below ``docs``, and of each file that findings link to."""
    pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in _BESIDE_DOCS}
    for folder in _LISTED:
        files = sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in _LANGUAGES)
        names = {path: path.relative_to(ROOT / folder).as_posix() for path in files}
        pages |= {f"{folder}/{name}.md": _listing(path, name) for path, name in names.items()}
        if folder in _FOLDERS:
            title, text = _FOLDERS[folder]
            listed = [f"- [{name}]({name}.md)" for name in names.values()]
            pages[f"{folder}/index.md"] = f"# {title}\n\n{text}\n\n" + "\n".join(listed)
    return pages


def with_site_links(text: str, place: str) -> str:
    """Let the links of a page, which are right in the repository, lead to pages of the site.

    What only the site has cannot be linked in the repository: there its command or name stands as code.

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
    here = place if place in _BESIDE_DOCS else f"docs/{place}"

    def lead(found: re.Match[str]) -> str:
        target = _place_on_site(normpath(f"{dirname(here)}/{found[1]}".lstrip("/")))
        return relpath(target, dirname(place)) if target else found[0]

    def lead_to_made(found: re.Match[str]) -> str:
        target = _PAGES_OF_WORDS.get(found[1], f"schemas/{found[2]}.schema.json")
        return f"[{found[0]}]({relpath(target, dirname(place))})"

    return _MADE.sub(lead_to_made, _LINK.sub(lead, text))


def _place_on_site(target: str) -> str:
    """Say where a file of the repository is on the site; nothing where it is not on it."""
    if target in _BESIDE_DOCS:
        return target
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target in _FOLDERS:
        return f"{target}/index.md"
    if target.startswith(tuple(f"{folder}/" for folder in _LISTED)):
        return f"{target}.md"
    if target in _module_pages():
        return _module_pages()[target]
    return "index.md" if target == "README.md" else ""


@cache
def _module_pages() -> dict[str, str]:
    """Pages of the modules by their files."""
    return {module.path.relative_to(ROOT).as_posix(): module.page for module in public_modules()}


def _listing(path: Path, name: str) -> str:
    code = path.read_text(encoding="utf-8").rstrip("\n")
    return f"# {name}\n\n```` {{ .{_LANGUAGES[path.suffix]} linenums=1 }}\n{code}\n````\n"
