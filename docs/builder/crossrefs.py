"""Docstrings name things in backticks, which on the site are links, and show code behind two colons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from griffe import AliasResolutionError, Extension, Module, NameResolutionError, Object

__all__ = ["DocstringsAsMarkdown"]

# Two colons before a block of code, on a line of their own or at the end of a sentence, which keeps one.
_BLOCK = re.compile(r"(\n\s*)?::(?=\n\n)")
# One pair of backticks around a dotted name, as numpydoc has it; two pairs are code that names nothing.
_NAME = re.compile(r"(?<![`\[\\])`([A-Za-z_][\w.]*)`(?![`\]])")


class DocstringsAsMarkdown(Extension):
    """Turn a name in single backticks into a reference, where it is public and has a page."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Rewrite the docstrings of a package when all of it was read."""
        known = {one.path for one in _public_objects(pkg)}
        for one in _all_objects(pkg):
            if one.docstring is not None:
                one.docstring.value = _BLOCK.sub(_colon, _with_links(one, known))


def _colon(found: re.Match[str]) -> str:
    return "" if found[1] else ":"


def _with_links(one: Object, known: set[str]) -> str:
    assert one.docstring is not None

    def link(found: re.Match[str]) -> str:
        path = _path_of(found[1], one)
        return f"[`{found[1]}`][{path}]" if path in known and path != one.path else found[0]

    return _NAME.sub(link, one.docstring.value)


def _path_of(name: str, scope: Object) -> str:
    """Return the path that a name means in its scope: of a member, of an import, or a full path."""
    first, _, rest = name.partition(".")
    if first == "pymllm":
        return name
    try:
        path = scope.resolve(first)
    except (NameResolutionError, AliasResolutionError):
        return ""
    return f"{path}.{rest}" if rest else path


def _all_objects(one: Object) -> Iterator[Object]:
    yield one
    for member in one.members.values():
        if isinstance(member, Object):  # and not something imported, which is at home elsewhere
            yield from _all_objects(member)


def _public_objects(one: Object) -> Iterator[Object]:
    """Yield the objects that are rendered: public members of public objects, each with a docstring."""
    if one.docstring is not None:
        yield one
    for member in one.members.values():
        if isinstance(member, Object) and (not member.is_private if member.is_module else member.is_public):
            yield from _public_objects(member)
