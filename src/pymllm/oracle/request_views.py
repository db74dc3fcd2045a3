"""What is seen of requests and blocks between two steps, against the model (C1 to C4, C7, E1, E2)."""

from __future__ import annotations

from pymllm.history.outcomes import ContextBlock, ContextView, RequestView
from pymllm.oracle.request_books import RequestBooks
from pymllm.oracle.request_model import DECODE, PAUSED, PREFILL, WAITING, ServedRequest

__all__ = ["check_request", "check_view", "first_row"]

_ORDER = (PAUSED, DECODE, PREFILL, WAITING)


def first_row(books: RequestBooks, region: str) -> int:
    """Return the first row of a region."""
    return sum(len(books.model.of(each)) for each in _ORDER[: _ORDER.index(region)])


def check_request(books: RequestBooks, request: ServedRequest, view: RequestView) -> None:
    """Test one request: where it stands, its row, and what is in its blocks and in its live state."""
    expect, who = books.evidence.expect, f"request {request.step}"
    expect("E2", "the request that is told of", request.step, view.request)
    expect("E2", f"region of {who}", request.region, view.region)
    first = first_row(books, request.region)
    rows = range(first, first + len(books.model.of(request.region)))
    books.evidence.demand("E2", view.row in rows, f"row of {who}", f"one of {rows}", lambda: view.row)
    expect("E2", f"blocks of {who}", tuple(request.blocks), view.blocks)
    expect("E2", f"finished tokens of {who}", min(request.computed, request.prompt), view.finished)
    if request.is_spoiled:
        return
    cold, size = books.model.cold, books.model.block_size
    cold.extend(request.prefixes, request.tokens)
    whole = max(request.computed // size, request.matched)
    wanted = tuple(prefix.kv for prefix in request.prefixes[:whole])
    if len(view.kv) != len(request.blocks):
        books.evidence.refuse("E1", f"sums of the blocks of {who}", len(request.blocks), len(view.kv))
    if wanted:
        expect("E1", f"KV in the blocks of {who}", wanted, view.kv[:whole])
    if books.model.layers:
        state = cold.state_at(request.prefixes, request.tokens, request.start)
        expect("E1", f"live state of {who} after {request.start} tokens", state, view.state)


def check_view(books: RequestBooks, view: ContextView) -> None:
    """Test everything that there is."""
    model, expect = books.model, books.evidence.expect
    expect("E2", "requests", sorted(model.served), sorted(each.request for each in view.requests))
    expect("E2", "rows", [*range(len(view.requests))], [each.row for each in view.requests])
    for each in view.requests:
        check_request(books, model.served[each.request], each)
    blocks = model.blocks
    occupied = sorted(blocks.references.keys() | blocks.known.keys())
    expect("C1", "blocks that are not free", occupied, [each.block for each in view.blocks])
    for block in view.blocks:
        _check_block(books, block)


def _check_block(books: RequestBooks, view: ContextBlock) -> None:
    model, expect, who = books.model, books.evidence.expect, f"block {view.block}"
    expect("C1", f"references of {who}", model.blocks.references.get(view.block, 0), view.references)
    entry = model.blocks.known.get(view.block)
    expect("C3", f"hash of {who}", -1 if entry is None else entry.prefix.hash, view.hash)
    if not books.has_states:
        return
    expect("C2", f"slot of {who}", model.slots.of_block.get(view.block, -1), view.slot)
    if view.slot < 0 and view.state:
        books.evidence.refuse("C7", f"cached state of {who}, which has none", (), view.state)
    if view.slot >= 0 and entry is not None:
        expect("C7", f"cached state of {who}", entry.prefix.state, view.state)
