"""The order of requests, each after the requests that it waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from pymllm.traces.lines import TraceLines

T = TypeVar("T")
_SHOWN = 5


@dataclass(slots=True, eq=False)
class Named(Generic[T]):
    """A line with the name of its request, and the names of requests that it waits for."""

    name: str
    waits: tuple[str, ...]
    number: int
    line: T


def parents_first(rows: Iterable[Named[T]], lines: TraceLines) -> Iterator[Named[T]]:
    """Yield rows in the order of the file, each after the rows that it waits for.

    Only rows whose parents stand below them are kept until those come. A name that is there twice, one that
    no line has, and requests that wait for each other are a `TraceError`, which names them.
    """
    placed: dict[str, int] = {}  # name -> its line
    kept: dict[str, Named[T]] = {}
    missing: dict[str, int] = {}  # of those kept: how many are still to come
    children: defaultdict[str, list[Named[T]]] = defaultdict(list)
    for row in rows:
        if row.name in placed or row.name in kept:
            above = placed[row.name] if row.name in placed else kept[row.name].number
            raise lines.error(f"request_id {row.name!r} is that of line {above}, too", row.number)
        awaited = {name for name in row.waits if name not in placed}
        if awaited:
            kept[row.name], missing[row.name] = row, len(awaited)
            for name in awaited:
                children[name].append(row)
            continue
        ready = [row]
        while ready:
            it = ready.pop(0)
            placed[it.name] = it.number
            yield it
            for child in children.pop(it.name, ()):
                missing[child.name] -= 1
                if not missing[child.name]:
                    del kept[child.name], missing[child.name]
                    ready.append(child)
    if kept:
        raise _stuck(kept, placed, lines)


def _stuck(kept: dict[str, Named[T]], placed: dict[str, int], lines: TraceLines) -> Exception:
    """Return words for why some rows can never be yielded: an unknown name, or a cycle."""
    for row in kept.values():
        for name in row.waits:
            if name not in kept and name not in placed:
                return lines.error(f"it waits for {name!r}, which is the request_id of no line", row.number)
    at = next(iter(kept.values()))
    path: dict[str, None] = {}
    while at.name not in path:
        path[at.name] = None
        at = kept[next(name for name in at.waits if name in kept)]
    circle = list(path)[list(path).index(at.name) :]
    others = f", and {len(circle) - _SHOWN} more" if len(circle) > _SHOWN else ""
    names = ", ".join(map(repr, circle[:_SHOWN]))
    return lines.error(f"requests that wait for each other never begin: {names}{others}", at.number)
