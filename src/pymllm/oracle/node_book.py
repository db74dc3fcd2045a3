"""Nodes as they are shown: whether they are a tree, and what may have become of them since the last look."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NoReturn

from pymllm.history.codec import Record
from pymllm.history.operations import Token
from pymllm.history.outcomes import NodeView
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.models.cold_runs import hash_pages
from pymllm.oracle.models.prefix_model import Page, Path, PrefixModel, Space

_NUMBERS = {int}


class SeenPage(Record, frozen=True):
    """One page of one node: its slots, the node, and which page of the node it is."""

    slots: tuple[int, ...]
    node: NodeView
    number: int


class SeenTree(Record, frozen=True):
    """Every page under its path, and every node under the path at its end."""

    pages: dict[Path, SeenPage]
    ends: dict[Path, NodeView]


def read_nodes(evidence: Evidence, nodes: Iterable[NodeView], page_size: int) -> SeenTree:
    """Walk nodes, parents before their children, and refuse what is no tree (R9, K1, X3, X5)."""
    tree = SeenTree({}, {})
    ends: dict[int, Path] = {}
    for node in nodes:
        if node.id in ends:
            evidence.refuse("X3", "ids of nodes", "distinct ones", f"{node.id} twice")
        end = _end_of(evidence, node, ends)
        ends[node.id], tree.ends[end] = end, node
        _check_shape(evidence, node, page_size)
        first = len(end.tokens) - len(node.tokens)
        for number, length in enumerate(range(first + page_size, len(end.tokens) + 1, page_size)):
            path = end if length == len(end.tokens) else end.upto(length)
            if path in tree.pages:
                evidence.refuse("R9", f"page {path}", "one node that spells it", "two")
            at = number * page_size
            tree.pages[path] = SeenPage(node.slots[at : at + page_size], node, number)
    return tree


def _end_of(evidence: Evidence, node: NodeView, ends: dict[int, Path]) -> Path:
    width = _width_of(node.tokens)
    if width is None:
        evidence.refuse("R9", f"tokens of node {node.id}", "some, of one width", node.tokens)
    space = node.extra_key, width
    if node.parent is None:
        return Path(Space(*space), node.tokens)
    above = ends.get(node.parent)
    if above is None:
        evidence.refuse("R9", f"parent of node {node.id}", "a node that was shown", node.parent)
    if above.space != space:
        evidence.refuse("K1", f"namespace and width of node {node.id}", tuple(above.space), space)
    return above.longer_by(node.tokens)


def _check_shape(evidence: Evidence, node: NodeView, page_size: int) -> None:
    length = len(node.tokens)
    if len(node.slots) != length or length % page_size:
        sizes = f"{length} tokens and {len(node.slots)} slots"
        evidence.refuse("R9", f"node {node.id}", f"as many slots as tokens, in pages of {page_size}", sizes)
    if node.kept_bytes not in (None, 8 * length):
        evidence.refuse("X5", f"bytes that the slots of node {node.id} keep", 8 * length, node.kept_bytes)


def _width_of(tokens: Iterable[Token]) -> int | None:
    """Return the width of tokens; ``None`` where there are none, or several widths."""
    if {*map(type, tokens)} == _NUMBERS:  # as most are
        return 1
    widths = {len(token) if isinstance(token, tuple) else 1 for token in tokens}
    return widths.pop() if len(widths) == 1 else None


HoldToken = int | str | None
"""What a hold was given: opaque, and compared for equality only."""


class NodeBook:
    """Compares nodes that are shown with the model, and with those that were shown before.

    A law counts once per look, and only where it is one of those that may be tested.
    """

    def __init__(self, model: PrefixModel, evidence: Evidence, laws: Collection[str]) -> None:
        self.model, self.evidence, self._laws = model, evidence, laws
        self.ends: dict[Path, NodeView] = {}  # the nodes at the last look, by the paths at their ends
        self._last_birth = 0
        self._may_split: set[Path] = set()
        self._last_id = -1
        self._called_back: set[int] = set()
        self._held: set[int] = set()
        self.split_below: set[int] = set()  # holds whose path was split while they were held

    # -- between two looks ---------------------------------------------------------------------------------

    def may_split(self, paths: Iterable[Path]) -> None:
        """Note where an operation may have made new ends of nodes."""
        self._may_split.update(paths)

    def is_known(self, path: Path) -> bool:
        """Tell whether a page was there at the last look, and has been since."""
        page = self.model.pages.get(path)  # which has a later number if it was gone meanwhile
        return page is not None and page.birth <= self._last_birth

    def cut(self, path: Path) -> bool | None:
        """Tell whether a node ends at a path: yes, no, or nobody has looked since it may have changed."""
        if not path.tokens:
            return True
        if not self.is_known(path):
            return None
        if path in self.ends:
            return True
        return None if path in self._may_split else False

    def ids_of(self, pages: Sequence[Path]) -> list[int] | None:
        """Return the ids of the nodes that end with one of these pages; ``None`` where that is not known."""
        cuts = [self.cut(page) for page in pages]
        if None in cuts:
            return None
        return [self.ends[page].id for page, is_end in zip(pages, cuts, strict=True) if is_end]

    def call_back(self, node: int | None) -> bool:
        """Note the id of a node that was called back; tell whether it is one, and for the first time."""
        if node is None or node in self._called_back:
            return False
        self._called_back.add(node)
        return True

    # -- a look --------------------------------------------------------------------------------------------

    def look(self, nodes: Sequence[NodeView], tokens: Mapping[int, HoldToken]) -> None:
        """Test every node, parents before their children, against the model and against the last look.

        Laws: K1, H2, R2, R3, R6, R8, R9, R10, S2, S5, S6, X3, X5.
        """
        tree = read_nodes(self.evidence, nodes, self.model.page_size)
        pages = self._compare_pages(tree.pages)
        self._compare_recency(pages)
        self._compare_ends(tree)
        self._compare_edges(tree, tokens)
        self._compare_hashes(tree)
        self._count(nodes)
        self.ends = dict(tree.ends)
        self._last_birth = max([0, *(page.birth for _, page in pages)])
        self._may_split.clear()
        self._held = {*self.model.holds}
        self._last_id = max([self._last_id, *(node.id for node in nodes)])

    def _same(self, law: str, what: str, path: Path, expected: object, shown: object) -> None:
        """Refuse what differs from the model; what is not shown is ``None``."""
        if shown is not None and shown != expected and law in self._laws:
            self.evidence.refuse(law, f"{what} {path.tokens} of {path.space.extra_key!r}", expected, shown)

    def _compare_pages(self, seen: Mapping[Path, SeenPage]) -> list[tuple[NodeView, Page]]:
        """Test that pages are those of the model; return each with the node that shows it.

        The hash of a path is that of all its tokens, so each is looked up once.
        """
        pages, has_window = self.model.pages, self.model.window is not None
        found = [(path, shown, page) for path, shown in seen.items() if (page := pages.get(path)) is not None]
        if not len(found) == len(seen) == len(pages):
            self._refuse_other_pages(seen)
        for path, shown, page in found:
            slots, node = shown.slots, shown.node
            if slots != page.slots or node.lock_ref != page.locks or node.hit_count != page.hits:
                self._same("R3", "slots of page", path, page.slots, slots)
                self._same("R6", "lock_ref of page", path, page.locks, node.lock_ref)
                self._same("R10", "hit_count of page", path, page.hits, node.hit_count)
            if has_window and (node.is_alive != page.alive or node.swa_lock_ref != page.swa_locks):
                self._same("S2", "whether alive: page", path, page.alive, node.is_alive)
                self._same("S6", "swa_lock_ref of page", path, page.swa_locks, node.swa_lock_ref)
        return [(shown.node, page) for _, shown, page in found]

    def _refuse_other_pages(self, seen: Mapping[Path, SeenPage]) -> NoReturn:
        """Name a page that is lost, or one too many; of several, in every process the same one.

        One that stands in another namespace or width instead is not lost: K1 before R3.
        """
        pages = self.model.pages
        strangers = {path.tokens: path.space for path in seen if path not in pages}
        for path in pages:
            if path not in seen and path.tokens in strangers:
                space = tuple(strangers[path.tokens])
                self.evidence.refuse("K1", f"space of page {path.tokens}", tuple(path.space), space)
            if path not in seen:
                self.evidence.refuse("R3", f"page {path.tokens}", "in the tree", "lost")
        path, shown = next((path, shown) for path, shown in seen.items() if path not in pages)
        self.evidence.refuse("R9", f"page {path.tokens}", "not in the tree", f"slots {shown.slots}")

    def _compare_recency(self, pages: Sequence[tuple[NodeView, Page]]) -> None:
        """Test that ``last_access`` orders pages as the model's accesses do, equal ones included (R8)."""
        if "R8" not in self._laws:
            return
        pairs = {(page.access, node.last_access) for node, page in pages}
        told = sorted((access, time) for access, time in pairs if time is not None)
        for one, two in pairwise(told):
            if not (one[0] < two[0] and one[1] < two[1]):
                expected = f"those of accesses {one[0]} and {two[0]}, in that order"
                self.evidence.refuse("R8", "last access of two pages", expected, f"{one[1]} and {two[1]}")

    def _compare_ends(self, tree: SeenTree) -> None:
        """Test that nodes keep id and end, and that new ones are new, and only where they may be."""
        for path, node in self.ends.items():
            shown = tree.ends.get(path)
            if (shown is None or shown.id != node.id) and self.is_known(path):
                now = "no node" if shown is None else shown.id
                self._same("R10", "id of the node at the end of", path, node.id, now)
        for path, node in tree.ends.items():
            is_known = self.is_known(path)
            if is_known and path in self.ends:
                continue
            if node.id <= self._last_id or node.id in self._called_back:
                self._same("X3", "id of the new node at the end of", path, f"> {self._last_id}", node.id)
            if is_known:
                self._compare_split(path, tree)

    def _compare_split(self, path: Path, tree: SeenTree) -> None:
        """Test that a node was split where the last operations may have done it (R2, S7)."""
        if path not in self._may_split:
            self._same("R2", "nodes that end at", path, "none: nothing was used up to here", "one")
        self.evidence.count(*{"R10"}.intersection(self._laws))
        upper = tree.ends[path]
        self.evidence.meet("a held path is split", self.model.locks(path))
        holds = self.model.holds
        self.split_below.update(it for it in self._held & holds.keys() if path.covers(holds[it].path))
        self.evidence.meet("a hashed node is split", upper.page_hashes is not None)
        windows = [number for number, hold in self.model.holds.items() if hold.edge and hold.path != path]
        starts = [tree.pages[self._first_of_window(number)].node for number in windows]
        self.evidence.meet("an edge node is split", any(start is upper for start in starts))

    def _first_of_window(self, hold: int) -> Path:
        taken = self.model.holds[hold]
        return taken.path.upto(taken.edge + self.model.page_size)

    def _compare_edges(self, tree: SeenTree, tokens: Mapping[int, HoldToken]) -> None:
        """Test that a held window starts at a node, which alone carries the hold's token (S5)."""
        carriers: dict[int, HoldToken] = {}
        for number, hold in self.model.holds.items():
            if not hold.edge:
                continue
            first = tree.pages[self._first_of_window(number)]
            if first.number:
                self._same("S5", "nodes that end at the edge", hold.path.upto(hold.edge), "one", "none")
            if first.node.boundary != tokens[number]:
                shown = f"boundary {first.node.boundary!r}"
                self._same("S5", "edge node of", hold.path, f"boundary {tokens[number]!r}", shown)
            carriers[first.node.id] = tokens[number]
        for path, node in tree.ends.items() if carriers else ():
            if node.id not in carriers and node.boundary in carriers.values():
                self._same("S5", "boundary of", path, "none that a hold has elsewhere", node.boundary)

    def _compare_hashes(self, tree: SeenTree) -> None:
        """Test the hashes that nodes have computed (H2)."""
        for path, node in tree.ends.items():
            if node.page_hashes is not None:
                pages = len(node.tokens) // self.model.page_size
                expected = hash_pages(path, self.model.page_size)[-pages:]
                self._same("H2", "page_hashes of the node at the end of", path, expected, node.page_hashes)

    def _count(self, nodes: Sequence[NodeView]) -> None:
        windowed, pages, holds = self.model.window is not None, self.model.pages, self.model.holds
        tested = {
            "R3": pages,
            "R9": pages,
            "R6": holds and any(node.lock_ref is not None for node in nodes),
            "R8": len({node.last_access for node in nodes} - {None}) > 1,
            "R10": any(node.hit_count is not None for node in nodes),
            "H2": any(node.page_hashes for node in nodes),
            "S2": windowed and not all(page.alive for page in pages.values()),
            "S5": any(hold.edge for hold in holds.values()),
            "S6": windowed and holds and any(node.swa_lock_ref is not None for node in nodes),
            "X3": any(node.id > self._last_id for node in nodes),
            "X5": any(node.kept_bytes is not None for node in nodes),
        }
        self.evidence.count(*(law for law, truth in tested.items() if truth and law in self._laws))
