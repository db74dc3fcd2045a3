"""A page for each public module: what it says of itself, its classes and functions, and its way up."""

from __future__ import annotations

from posixpath import dirname, relpath

from sources import Module, children_of, public_modules

__all__ = ["make_api_pages", "nav_of_api"]

_HEAD = """\
# API

These pages show the docstrings of every public module. To build a server, start at
[`pymllm.mem_cache`](mem_cache/index.md) and [`pymllm.core`](core/index.md). To examine an implementation,
start at [`pymllm.adapters`](adapters/index.md) and [`pymllm.oracle`](oracle/index.md).
[Architecture](../ARCHITECTURE.md) says which room may import which.
"""


def make_api_pages() -> dict[str, str]:
    """Return the text of each page by its place below ``docs``."""
    modules = public_modules()
    (root,) = (module for module in modules if module.name == "pymllm")
    pages = {module.page: _page_of(module, modules) for module in modules if module is not root}
    return {root.page: _HEAD + _table_of(root, modules, "Rooms"), **pages}


def nav_of_api() -> list[object]:
    """Return the navigation below the first page: rooms, and in them their modules."""
    modules = public_modules()
    return _nav_of(modules[0], modules)


def _nav_of(package: Module, modules: list[Module]) -> list[object]:
    return [
        {_last(one): [one.page, *_nav_of(one, modules)] if one.is_package else one.page}
        for one in children_of(package, modules)
    ]


def _last(module: Module) -> str:
    return module.name.rpartition(".")[2]


def _page_of(module: Module, modules: list[Module]) -> str:
    title = f"---\ntitle: {module.name.removeprefix('pymllm.')}\n---\n"
    heading = f"# `{module.name}` {{ #{module.name} }}\n"
    lines = [title, _way_up(module, modules), heading, f"::: {module.name}\n"]
    has_laws = "\n@law(" in module.path.read_text(encoding="utf-8")
    if module.is_package or has_laws:  # what laws say stands in the specification
        lines.append("    options:\n      members: false\n")
    if module.is_package:
        lines.append(_table_of(module, modules, "Modules"))
    return "\n".join(lines)


def _way_up(module: Module, modules: list[Module]) -> str:
    """Links to the packages that it is in."""
    inside = [one for one in modules if one.is_package and module.name.startswith(f"{one.name}.")]
    links = [f"[`{_last(one)}`]({_link(module, one)})" for one in inside]
    return " / ".join(links) + "\n{ .way-up }\n"


def _table_of(package: Module, modules: list[Module], title: str) -> str:
    rows = [
        f"| [`{_last(one)}`]({_link(package, one)}) | {one.summary.replace('|', chr(92) + '|')} |"
        for one in children_of(package, modules)
    ]
    return f"\n## {title}\n\n" + "\n".join(["| module | what it is |", "| --- | --- |", *rows]) + "\n"


def _link(here: Module, there: Module) -> str:
    return relpath(there.page, dirname(here.page))
