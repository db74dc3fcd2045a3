"""A picture of a program: each operation with its outcome, the owner of each slot, and the tree.

The picture is SVG, a file of its own or a part of a page. Owners and trees are those of the oracle's model,
which follows what an implementation was right about. So it stops before a violation; the tree after that is
drawn from what the last outcome shows of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import msgspec

from pymllm.errors import InvariantViolation, ProgramError, TraceError
from pymllm.history.files import History, read_history
from pymllm.history.operations import Key, Span
from pymllm.history.outcomes import Inspected, NodeView, Outcome
from pymllm.oracle.judge import make_judge
from pymllm.oracle.laws import find_law
from pymllm.oracle.models.block_model import BlockModel
from pymllm.oracle.models.blocks import BlocksModel
from pymllm.oracle.models.kind_model import KindModel
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_model import Path, PrefixModel, StateEnds
from pymllm.oracle.models.requests import RequestsModel
from pymllm.oracle.models.rows import RowModel
from pymllm.oracle.models.slot_ownership import Owner
from pymllm.oracle.models.slots import SlotModel
from pymllm.text_file import cut

WIDTH = 1000
MOST_STEPS = 60
MOST_CELLS = 96
MOST_LINES = 500
_MOST_NODES = 200  # of a tree that was inspected; each is drawn below its parent
_TREES = 3  # those before and after the last changes; one more after a violation
_LINE, _LEFT, _MIDDLE, _STRIP = 18, 40, 345, 620
_LETTER = 6.7  # width of a letter of the code, in pixels
_HINT = 400  # letters: a key may have a hundred thousand tokens

_TONES = {
    "free": "free, in the pool",
    "caller": "in the caller's hands",
    "pending": "given back, until the group ends",
    "cache": "the cache's",
    "held": "the cache's, locked",
    "dead": "the cache's, outside of the window (a tombstone)",
}

_STYLE = """
svg:root {
  --ink: #1b1f24; --soft: #57606a; --line: #d5dae0; --paper: #fff; --link: #0a58ca;
  --good: #116329; --bad: #a40e26; --bad-paper: #ffebe9;
}
@media (prefers-color-scheme: dark) {
  svg:root {
    --ink: #e7eaee; --soft: #a3adb8; --line: #343b44; --paper: #0f1216; --link: #7fb3ff;
    --good: #6fdd8b; --bad: #ff9a92; --bad-paper: #3d1416;
  }
}
.pp { font: 13px system-ui, sans-serif; fill: var(--ink); max-width: 100%; height: auto; }
.pp-code { font: 11px ui-monospace, monospace; }
.pp-soft { fill: var(--soft); }
.pp-bad { fill: var(--bad); font-weight: 600; }
.pp-head { font-weight: 600; }
.pp-paper { fill: var(--paper); }
.pp-wrong { fill: var(--bad-paper); }
.pp-line { stroke: var(--line); fill: none; }
.pp-cell { stroke: var(--soft); stroke-width: .6; }
.pp-new { stroke: var(--ink); stroke-width: 2; }
.pp-free { fill: var(--paper); }
.pp-caller { fill: var(--link); }
.pp-pending { fill: var(--line); }
.pp-cache { fill: var(--good); fill-opacity: .45; }
.pp-held { fill: var(--good); }
.pp-dead { fill: var(--good); fill-opacity: .12; }
"""


class _Cell(NamedTuple):
    """A slot, page or block with its owner, and words for the owner."""

    number: int
    tone: str
    hint: str


@dataclass(slots=True)
class _Node:
    """A run of cached pages that is not divided."""

    text: str
    tone: str
    below: list[_Node]


@dataclass(slots=True)
class _Row:
    """A step with its outcome, and the cells and the tree after the step."""

    number: int
    operation: str
    came: list[str]
    cells: list[_Cell]
    tree: list[_Node] | None


def draw_program(history: History, violation: InvariantViolation | None = None) -> str:
    """Draw a program with recorded outcomes as SVG, in the colours of the page or of the reader.

    At most `MOST_STEPS` are drawn, the last ones. ``violation`` is what the last step broke, where its
    outcome alone does not show that. `ProgramError` where a step has no outcome, or makes no sense.
    """
    judge = make_judge(history.header)
    rows = [_Row(0, "", [], [*_cells_of(judge.model)], _tree_of(judge.model))]
    broken, after = None, None
    for step in history.steps:
        if step.outcome is None:
            raise ProgramError(f"step {step.number}: it has no outcome: this is a program that was not run")
        rows.append(_Row(step.number, _tell(step.operation), _tell_outcome(step.outcome), [], None))
        try:
            judge.judge(step.number, step.operation, step.outcome)
        except InvariantViolation as found:
            broken = found
        except ProgramError as error:
            raise ProgramError(f"step {step.number}: {error}") from error
        rows[-1].cells, rows[-1].tree = [*_cells_of(judge.model)], _tree_of(judge.model)
        if broken is not None:
            after = _seen_tree(judge.model, step.outcome)
            break
    return "\n".join(_Drawing(history, rows, broken or violation, after).draw())


def picture_of(lines: Sequence[str]) -> str:
    """Draw the program of a file; return nothing for over `MOST_LINES` lines, or if it is no program."""
    if not 0 < len(lines) <= MOST_LINES:
        return ""
    try:
        return draw_program(read_history(lines, "a program"))
    except (ProgramError, TraceError):
        return ""


# -- what the model knows ----------------------------------------------------------------------------------


def _cells_of(model: KindModel) -> Iterator[_Cell]:
    """Yield the cell of each slot of a pool, page of an allocator, block or row, with its owner."""
    if isinstance(model, CacheModel):
        yield from _slots_under_cache(model)
    if isinstance(model, SlotModel):
        halves = model.window_pool.half if model.window_pool is not None else {}
        for page in range(1, min(model.full.pages, MOST_CELLS) + 1):
            yield _Cell(page, *_page_words(model.full, page, halves))
    elif isinstance(model, RowModel):
        for row in range(1, min(model.max_reqs, MOST_CELLS) + 1):
            yield _owned(row, "caller" if row in model.held else "free", "row")
    elif isinstance(model, BlocksModel):
        yield from _cells_of_blocks(model.blocks)
    elif isinstance(model, RequestsModel):
        yield from _cells_of_blocks(model.context.blocks)


def _cells_of_blocks(model: BlockModel) -> Iterator[_Cell]:
    for block in range(min(model.usable, MOST_CELLS)):
        is_known = block in model.hash_of
        tones = ("caller", "held") if model.refs.get(block) else ("free", "cache")
        yield _owned(block, tones[is_known], "block")


def _owned(number: int, tone: str, what: str) -> _Cell:
    return _Cell(number, tone, f"{what} {number}: {_TONES[tone]}")


def _page_words(pool: Any, page: int, halves: Any) -> tuple[str, str]:
    tone = "caller" if page in pool.held else "pending" if page in pool.pending else "free"
    half = f", SWA page {halves[page]}" if page in halves else ""
    return tone, f"page {page}: {_TONES[tone]}{half}"


def _slots_under_cache(model: CacheModel) -> Iterator[_Cell]:
    ownership, pages = model.ownership, model.cache.pages
    if ownership.pool is None:
        return
    first = ownership.page_size
    for slot in range(first, first + min(ownership.full.pages * ownership.page_size, MOST_CELLS)):
        owner, place = ownership.owner(slot), ownership.place(slot)
        tone = "caller" if owner is Owner.CALLER else "free"
        hint = ""
        if place is not None and place in pages:
            tone = "held" if pages[place].locks else "cache" if pages[place].alive else "dead"
            hint = f", at the end of {_tokens(place.tokens)}"
        yield _Cell(slot, tone, f"slot {slot}: {_TONES[tone]}{hint}")


def _tree_of(model: KindModel, freed: Collection[int] = frozenset()) -> list[_Node] | None:
    """Return the tree of the model, without pages whose slots were freed."""
    if not isinstance(model, CacheModel):
        return None
    cache = model.cache
    pages = cache.pages
    kept = {path for path, page in pages.items() if not page.slots or not set(page.slots) <= set(freed)}
    below: dict[Path, list[Path]] = {}
    for path in sorted(kept, key=lambda it: (repr(it.space), repr(it.tokens))):
        below.setdefault(cache.parent(path), []).append(path)
    roots = [path for parent, paths in below.items() if parent not in kept for path in paths]
    return [_node(cache, cache.states, below, path) for path in roots]


def _seen_tree(model: KindModel, outcome: Outcome) -> tuple[str, list[_Node]] | None:
    """Return the tree after a violation, if the outcome shows one, and a note on the tree's source."""
    if isinstance(outcome.result, Inspected):
        return "as it was inspected", _inspected_tree(outcome.result.nodes[:_MOST_NODES])
    freed = {slot for effect in outcome.effects if effect.call == "free" for slot in effect.slots}
    tree = _tree_of(model, freed)
    return None if not freed or tree is None else ("without what was freed", tree)


def _inspected_tree(views: Sequence[NodeView]) -> list[_Node]:
    """Return the roots of listed nodes, parents first; a node without an earlier parent is a root."""
    roots: list[_Node] = []
    made: dict[int, _Node] = {}
    for view in views:
        words = [_tokens(view.tokens), f"slots {_runs(view.slots)}"]
        words += [f"locks {view.lock_ref}"] * bool(view.lock_ref) + ["tombstone"] * (not view.is_alive)
        words += [f"state {view.state}"] * (view.state is not None)
        tone = "held" if view.lock_ref else "cache" if view.is_alive else "dead"
        node = _Node(" · ".join(words), tone, [])
        above = None if view.parent is None else made.get(view.parent)
        (roots if above is None else above.below).append(node)
        made[view.id] = node
    return roots


def _node(model: PrefixModel, states: StateEnds | None, below: dict[Path, list[Path]], start: Path) -> _Node:
    """Join consecutive pages into one node, up to a node end, a branch, or a page of another status."""
    last, slots = start, list(model.pages[start].slots)
    while len(below.get(last, ())) == 1 and (states is None or last not in states):
        (after,) = below[last]
        now, then = model.pages[last], model.pages[after]
        if (now.locks, now.alive) != (then.locks, then.alive):
            break
        last = after
        slots += then.slots
    page = model.pages[last]
    parent = model.parent(start)
    words = [_tokens(last.tokens[len(parent.tokens) :]), f"slots {_runs(slots)}"]
    if last.space.extra_key is not None and not parent.tokens:
        words.insert(0, f"namespace {cut(repr(last.space.extra_key))}")
    words += [f"locks {page.locks}"] * bool(page.locks) + ["tombstone"] * (not page.alive)
    if states is not None and last in states:
        words.append(f"state {states.slots[last]}")
    tone = "held" if page.locks else "cache" if page.alive else "dead"
    children = [_node(model, states, below, path) for path in below.get(last, ())]
    return _Node(" · ".join(words), tone, children)


# -- words -------------------------------------------------------------------------------------------------


def _tell(record: Any) -> str:
    """Return an operation or a result as short text, without fields that have their default."""
    words = []
    for it in msgspec.structs.fields(record):
        value = getattr(record, it.name)
        usual = it.default_factory() if it.default_factory is not msgspec.NODEFAULT else it.default
        if value != usual:
            words.append(_value(value) if it.required else f"{it.name}={_value(value)}")
    return f"{type(record).__name__}({', '.join(words)})"


def _value(value: Any) -> str:
    if isinstance(value, Key):
        return _tokens(value.tokens) + ("" if value.extra_key is None else f" in {value.extra_key!r}")
    if isinstance(value, Span):
        return f"@{value.step}[{value.start}:{value.stop}]"
    if isinstance(value, tuple) and value and all(isinstance(it, Span) for it in value):
        return "+".join(map(_value, value))
    if isinstance(value, tuple) and value and all(type(it) is int for it in value):
        return f"[{_runs(value)}]"
    return _tell(value) if isinstance(value, msgspec.Struct) else repr(value)


def _tell_outcome(outcome: Outcome) -> list[str]:
    effects = [f"{it.call} {_runs(it.slots)}".rstrip() for it in outcome.effects]
    return [_tell(outcome.result), *(f"· {effect}" for effect in effects[:6])]


def _tokens(tokens: tuple[Any, ...]) -> str:
    return "[" + " ".join(str(token).replace(" ", "") for token in tokens) + "]"


def _runs(numbers: Any) -> str:
    """Return numbers as text, with consecutive numbers as ranges."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


# -- the drawing -------------------------------------------------------------------------------------------


class _Drawing:
    """A drawing as lines of SVG, from top to bottom."""

    def __init__(
        self,
        history: History,
        rows: list[_Row],
        violation: InvariantViolation | None,
        after: tuple[str, list[_Node]] | None,
    ) -> None:
        self.history, self.rows, self.violation, self.after = history, rows, violation, after
        self.parts: list[str] = []
        self.y = 0

    def draw(self) -> list[str]:
        """Return the whole picture."""
        header = self.history.header
        config = ", ".join(f"{name} {value}" for name, value in header.config.items() if value is not None)
        title = f"{header.adapter}: a program of {len(self.history)} steps"
        if self.violation is not None:
            law = self.violation.law
            title = f"{header.adapter} violates {law}: {find_law(law).sentence}"
        self.line(title, "pp-bad" if self.violation else "pp-head")
        self.line(config, "pp-soft")
        self.y += 6
        hidden = max(0, len(self.rows) - 1 - MOST_STEPS)
        if hidden:
            self.line(f"{hidden} steps before these", "pp-soft")
        self.y += _LINE
        self.text("operation", _LEFT, self.y, "pp-soft")
        self.text("outcome", _MIDDLE, self.y, "pp-soft")
        if cells := self.rows[-1].cells:
            when = "after it" if self.violation is None else "after it; before the violation"
            what = cells[0].hint.split()[0]
            self.text(f"{what}s {cells[0].number} to {cells[-1].number}, {when}", _STRIP, self.y, "pp-soft")
        for before, row in zip(self.rows[hidden:], self.rows[hidden + 1 :], strict=False):
            self.step(before, row, is_last=row is self.rows[-1])
        self.legend()
        self.trees()
        size = f'viewBox="0 0 {WIDTH} {self.y + 8}" width="{WIDTH}" height="{self.y + 8}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" class="pp">'
        return [
            f"{head}<title>{escape(title)}</title><style>{_STYLE}</style>",
            f'<rect class="pp-paper" width="{WIDTH}" height="{self.y + 8}"/>',
            *self.parts,
            "</svg>",
        ]

    def line(self, text: str, tone: str = "", x: int = 8) -> None:
        """Add a line of text below the previous ones."""
        self.y += _LINE
        self.text(text, x, self.y, tone)

    def text(self, text: str, x: float, y: float, tone: str = "", room: float = WIDTH) -> None:
        """Add a text at a place, cut to fit, with the whole text as a hint."""
        letters = int((min(room, WIDTH) - 8) / _LETTER) if "code" in tone else 150
        shown = text if len(text) <= letters else text[: max(letters - 1, 1)] + "…"
        hint = f"<title>{escape(cut(text, _HINT))}</title>" if shown != text else ""
        self.parts.append(f'<text x="{x}" y="{y}" class="{tone}">{escape(shown)}{hint}</text>')

    def rect(
        self, tone: str, x: int, y: int, width: int, height: int, *, round: int = 0, hint: str = ""
    ) -> None:
        """Add a rectangle, with a hint that shows on hovering."""
        told = f"<title>{escape(cut(hint, _HINT))}</title>" if hint else ""
        size = f'x="{x}" y="{y}" width="{width}" height="{height}"' + (f' rx="{round}"' if round else "")
        self.parts.append(f'<rect class="{tone}" {size}>{told}</rect>')

    def step(self, before: _Row, row: _Row, *, is_last: bool) -> None:
        """Draw a step: its number, operation and outcome, and the owners of all slots afterwards."""
        is_wrong = is_last and self.violation is not None
        seen = row.came + ([""] * 2 if is_wrong else [])
        per_line = max(1, (WIDTH - _STRIP - 8) // 15)
        lines = max(len(seen), -(-len(row.cells) // per_line))
        top, height = self.y + 6, lines * _LINE + 4
        if is_wrong:
            self.rect("pp-wrong", 4, top, WIDTH - 8, height + 4, round=4)
        self.text(str(row.number), 12, top + 14, "pp-soft pp-code")
        self.text(row.operation, _LEFT, top + 14, "pp-code pp-head", room=300)
        room = (_STRIP if row.cells else WIDTH) - _MIDDLE
        for number, came in enumerate(row.came):
            self.text(came, _MIDDLE, top + 14 + number * _LINE, "pp-code", room=room)
        if is_wrong and self.violation is not None:
            said = self.violation.expected, self.violation.observed
            below = top + 14 + len(row.came) * _LINE
            self.text(self.violation.message, _LEFT, below, "pp-bad")
            if said != (None, None):
                self.text(f"expected {said[0]}, observed {said[1]}", _LEFT, below + _LINE, "pp-bad pp-code")
        was = {cell.number: cell.tone for cell in before.cells}
        for number, cell in enumerate(row.cells):
            x, y = _STRIP + number % per_line * 15, top + 3 + number // per_line * _LINE
            new = " pp-new" if was.get(cell.number) != cell.tone else ""
            self.rect(f"pp-cell pp-{cell.tone}{new}", x, y, 12, 13, hint=cell.hint)
        self.y = top + height
        self.parts.append(f'<path class="pp-line" d="M4 {self.y + 3}H{WIDTH - 4}"/>')

    def legend(self) -> None:
        """Add a legend for the cell colours in the picture."""
        found = {cell.tone for row in self.rows for cell in row.cells}
        if not found:
            return
        self.y += 12
        x = 12
        for tone, words in _TONES.items():
            if tone in found:
                self.rect(f"pp-cell pp-{tone}", x, self.y + 4, 12, 13)
                self.text(words, x + 18, self.y + 15, "pp-soft")
                x += 40 + 7 * len(words)
        self.y += _LINE

    def trees(self) -> None:
        """Draw the last trees that differ from the tree before, and any known tree after a violation."""
        kept: list[tuple[str, list[_Node]]] = []
        for row in self.rows:
            if row.tree is not None and (not kept or row.tree != kept[-1][1]):
                kept.append(
                    (f"the tree after step {row.number}" if row.number else "the tree at first", row.tree)
                )
        if not kept:
            return
        kept = kept[-_TREES:]
        if self.violation is not None:
            kept[-1] = (f"{kept[-1][0]}, before the violation", kept[-1][1])
            if self.after is not None:
                kept.append((f"after the violation, {self.after[0]}", self.after[1]))
        self.y += 14
        width, top, low = WIDTH // len(kept), self.y, self.y
        most = max(title.count(", ") + 1 for title, _ in kept)  # lines of a title
        for place, (title, tree) in enumerate(kept):
            self.y = top
            x = 8 + place * width
            lines = title.split(", ")
            for number, part in enumerate(lines + [""] * (most - len(lines))):
                self.line(part, "pp-soft" if number else "pp-head", x)
            if not tree:
                self.line("empty", "pp-soft", x)
            for node in tree:
                self.node(node, x, width - 16)
            low = max(low, self.y)
        self.y = low + 4
        if self.violation is not None and self.after is None:
            self.line("The tree after the violation is not known: the outcome does not show it.", "pp-soft")

    def node(self, node: _Node, x: int, room: int) -> None:
        """Draw a node, with its children below and to the right."""
        self.y += _LINE + 6
        top, width = self.y - 14, min(room, int(len(node.text) * _LETTER) + 26)
        self.rect("pp-line", x, top, width, 20, round=5)
        self.rect(f"pp-cell pp-{node.tone}", x + 5, top + 4, 10, 12)
        self.text(node.text, x + 20, self.y, "pp-code", room=room - 16)
        for child in node.below:
            self.parts.append(
                f'<path class="pp-line" d="M{x + 10} {top + 20}V{self.y + _LINE + 2}H{x + 22}"/>'
            )
            self.node(child, x + 22, max(room - 22, 60))
