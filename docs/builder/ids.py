"""Links from the ids of laws and bugs, anywhere in the text of a page, to their definitions."""

from __future__ import annotations

import re
from posixpath import dirname, relpath

from pymllm.faults.table import BUGS, PLANTED
from pymllm.oracle.laws import LAWS

__all__ = ["places_of_ids", "with_ids"]

_BUGS = {*BUGS, *(fault.id for fault in PLANTED)}
_PLACES = {
    **{law.id: f"laws.html#{law.id.lower()}" for law in LAWS},
    **{bug: f"faults.html#{bug.lower()}" for bug in _BUGS},
}
_ID = re.compile(rf"(?<![\w-])(?:{'|'.join(sorted(_PLACES, key=len, reverse=True))})(?![\w-])")
_TAG = re.compile(r"(<[^>]*>)")
_LEFT_ALONE = ("a", "autoref", "code", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "script", "style")


def places_of_ids() -> list[str]:
    """Return every place that an id leads to, such as ``"laws.html#r6"``."""
    return list(_PLACES.values())


def with_ids(html: str, page: str) -> str:
    """Return a page's HTML with a link at each id; headings, code and existing links stay unchanged.

    Parameters
    ----------
    html : str
        The content of the page.
    page : str
        Its address on the site, such as ``"api/errors.html"``.
    """
    inside: list[str] = []
    parts = []
    for part in _TAG.split(html):
        if part.startswith("<"):
            _follow(part, inside)
            parts.append(part)
        else:
            parts.append(part if inside else _ID.sub(lambda found: _link(found[0], page), part))
    return "".join(parts)


def _follow(tag: str, inside: list[str]) -> None:
    """Remember which elements that are left alone are open."""
    name = tag.strip("</>").split()[0].lower() if tag.strip("</>") else ""
    if name not in _LEFT_ALONE or tag.endswith("/>"):
        return
    if not tag.startswith("</"):
        inside.append(name)
    elif name in inside:
        inside.remove(name)


def _link(id: str, page: str) -> str:
    address, _, anchor = _PLACES[id].partition("#")
    there = f"{relpath(address, dirname(page))}#{anchor}" if address != page else f"#{anchor}"
    return f'<a class="id" href="{there}">{id}</a>'
