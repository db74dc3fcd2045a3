"""The nodes that a cache shows when inspected: the pages of each, and changes since the last inspection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pymllm.history.operations import Token
from pymllm.history.outcomes import Inspected, NodeView
from pymllm.oracle.models.kind_model import Seen
from pymllm.oracle.models.prefix_model import Page, Path, PrefixModel, Space
from pymllm.oracle.models.prefix_seen import GARBLED

_NUMBERS = {int}

Row = tuple[Path, Page, NodeView, tuple[int, ...]]
"""A cached page, with the node and the slots that the inspection shows for it."""


@dataclass(slots=True)
class SeenLook(Seen):
    """The nodes that an inspection shows, page by page, or the reason why they form no tree.

    Pages go by the numbers of their births: the hash of a path is that of all its tokens.
    """

    rows: list[Row] = field(default_factory=list)
    starts: dict[int, tuple[NodeView, int]] = field(default_factory=dict)  # of each: which page of which node
    ends: dict[int, tuple[Path, NodeView]] = field(default_factory=dict)  # nodes by their last pages
    lost: list[Path] = field(default_factory=list)  # cached, and not shown
    strangers: dict[Path, tuple[int, ...]] = field(default_factory=dict)  # slots of what is not cached
    malformed: tuple[str, object, object] | None = None  # what is expected of a tree, and what is shown
    odd: Row | None = None  # the first page of which something is shown otherwise than it is
    doubled: int | None = None  # the id of several nodes
    astray: tuple[int, Space, object] | None = None  # a node, with the spaces of its parent and of itself

    @property
    def nodes(self) -> tuple[NodeView, ...]:
        """Every node, parents before their children."""
        result: Inspected = self.result
        return result.nodes


def _find_odd(rows: Iterable[Row], has_window: bool, has_hits: bool, has_locks: bool) -> Row | None:
    """Return the first page whose node shows another value than the model expects, ignoring ``None``."""
    for row in rows:
        _, page, node, slots = row
        if slots != page.slots or node.lock_ref != page.locks or node.hit_count != page.hits:
            is_hit = has_hits and node.hit_count not in (None, page.hits)
            is_right = node.lock_ref in (None, page.locks) and not is_hit
            if slots != page.slots or not is_right:
                return row
        is_locked = has_locks and node.swa_lock_ref not in (None, page.swa_locks)
        if has_window and (node.is_alive != page.alive or is_locked):
            return row
    return None


def _width_of(tokens: Iterable[Token]) -> int | None:
    """Return the width of tokens; ``None`` if there are no tokens or their widths differ."""
    if {*map(type, tokens)} == _NUMBERS:  # as most are
        return 1
    widths = {len(token) if isinstance(token, tuple) else 1 for token in tokens}
    return widths.pop() if len(widths) == 1 else None


class ShownNodes:
    """The nodes of the last inspection of a cache that shows them."""

    def __init__(self, cache: PrefixModel, has_hits: bool = True, has_window_locks: bool = True) -> None:
        self.cache, self.has_hits, self.has_window_locks = cache, has_hits, has_window_locks
        self.ends: dict[int, NodeView] = {}  # the nodes at the last look, by the births of their last pages
        self.last_birth = 0  # the latest of the pages at the last look
        self.last_id = -1
        self.splits: set[int] = set()  # births of pages at whose ends an operation may have cut since
        self.called_back: set[int] = set()
        self.held: set[int] = set()  # holds at the last look
        self.split_below: set[int] = set()  # holds whose path was split while they were held

    # -- between two looks ---------------------------------------------------------------------------------

    def may_split(self, paths: Iterable[Path]) -> None:
        """Record the paths at which an operation may have split a node."""
        pages = self.cache.pages
        self.splits.update(pages[path].birth for path in paths if path in pages)

    def cut(self, path: Path) -> bool | None:
        """Tell whether a node ends at a path; ``None`` if that may have changed since the last inspection."""
        if not path.tokens:
            return True
        page = self.cache.pages.get(path)
        if page is None or page.birth > self.last_birth:  # it came, or came back, after the last look
            return None
        if page.birth in self.ends:
            return True
        return None if page.birth in self.splits else False

    def ids_of(self, pages: Sequence[Path]) -> list[int] | None:
        """Return the ids of the nodes that end with any of these pages; ``None`` if the ends are unknown."""
        cuts = [self.cut(page) for page in pages]
        if None in cuts:
            return None
        births = (self.cache.pages[page].birth for page, is_end in zip(pages, cuts, strict=True) if is_end)
        return [self.ends[birth].id for birth in births]

    # -- a look --------------------------------------------------------------------------------------------

    def read(self, shown: Inspected) -> SeenLook:
        """Find the pages that each shown node stands for."""
        look, pages, size = SeenLook(shown), self.cache.pages, self.cache.page_size
        paths: dict[int, Path] = {}
        for node in shown.nodes:
            end = self._end_of(look, node, paths)
            if end is None:
                look.fate = GARBLED
                return look
            paths[node.id] = end
            birth = 0
            for number, path in enumerate(self._last_ends(end, len(node.tokens) // size)):
                slots = node.slots[number * size : (number + 1) * size]
                page = pages.get(path)
                if page is None:
                    is_known = path in look.strangers
                    look.strangers[path] = slots
                else:
                    birth = page.birth
                    is_known = birth in look.starts
                    look.starts[birth] = node, number
                    look.rows.append((path, page, node, slots))
                if is_known:
                    look.fate, look.malformed = GARBLED, (f"page {path}", "one node that spells it", "two")
                    return look
            if birth:
                look.ends[birth] = end, node
        if len(look.rows) < len(pages):
            look.lost = [path for path, page in pages.items() if page.birth not in look.starts]
        has_window = self.cache.window is not None
        look.odd = _find_odd(look.rows, has_window, self.has_hits, self.has_window_locks)
        return look

    def _last_ends(self, end: Path, count: int) -> list[Path]:
        """Return the ends of the last pages of a path, shortest first; cached pages know the path above."""
        pages, ends = self.cache.pages, [end]
        while len(ends) < count:
            page = pages.get(ends[-1])
            ends.append(self.cache.parent(ends[-1]) if page is None else page.above)
        ends.reverse()
        return ends

    def _end_of(self, look: SeenLook, node: NodeView, paths: dict[int, Path]) -> Path | None:
        """Return the path at the end of a node; or ``None`` and the reason, for a node in no tree."""
        width, length, size = _width_of(node.tokens), len(node.tokens), self.cache.page_size
        if node.id in paths:
            look.doubled = node.id
        elif width is None:
            look.malformed = f"tokens of node {node.id}", "some, of one width", node.tokens
        elif node.parent is not None and node.parent not in paths:
            look.malformed = f"parent of node {node.id}", "a node that was shown", node.parent
        elif node.parent is not None and paths[node.parent].space != (node.extra_key, width):
            look.astray = node.id, paths[node.parent].space, (node.extra_key, width)
        elif len(node.slots) != length or length % size:
            sizes = f"{length} tokens and {len(node.slots)} slots"
            look.malformed = f"node {node.id}", f"as many slots as tokens, in pages of {size}", sizes
        elif node.parent is None:
            return Path(Space(node.extra_key, width), node.tokens)
        else:
            return paths[node.parent].longer_by(node.tokens)
        return None

    def new_ends(self, look: SeenLook) -> Iterator[tuple[int, Path, NodeView, bool]]:
        """Yield each new end of a node since the last inspection, and whether its page existed before."""
        for birth, (path, node) in look.ends.items():
            was_there = birth <= self.last_birth
            if not (was_there and birth in self.ends):
                yield birth, path, node, was_there

    def find_splits(self, look: SeenLook) -> list[tuple[Path, NodeView]]:
        """Return the upper halves of nodes that were split since the last inspection."""
        return [(path, node) for _, path, node, was_there in self.new_ends(look) if was_there]

    def follow(self, look: SeenLook) -> None:
        """Remember the nodes that were shown."""
        holds = self.cache.holds
        still = self.held & holds.keys()
        for path, _ in self.find_splits(look) if still else ():
            self.split_below.update(number for number in still if path.covers(holds[number].path))
        self.ends = {birth: node for birth, (_, node) in look.ends.items()}
        self.last_birth = max(look.starts, default=0)
        self.splits.clear()
        self.held = {*holds}
        self.last_id = max([self.last_id, *(node.id for node in look.nodes)])
