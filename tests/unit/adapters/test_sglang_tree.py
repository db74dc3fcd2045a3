"""What the adapters of sglang's prefix caches do in the place of sglang's own caller."""

from __future__ import annotations

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.adapters.sglang.tree import SglangTree, read_namespace, sglang_configurations
from pymllm.errors import ProgramError
from pymllm.history.operations import (
    Alloc,
    Evict,
    FreeSWA,
    Insert,
    Inspect,
    Key,
    Lock,
    Match,
    Operation,
    ReadHalves,
    Reset,
    Span,
    Unlock,
)
from pymllm.history.outcomes import Done, Effect, Inspected, Locked, Matched, NodeView, Outcome, Unsupported
from tests.unit.adapters.sglang_versions import needs_sglang_newer

CONFIG = sglang_configurations()[0]
FILL: list[Operation] = [Alloc(3), Insert(Key((1, 2, 3), "1"), (Span(1, 0, 3),))]


def play(*operations: Operation, **more: bool) -> list[Outcome]:
    adapter = make_adapter("sglang-radix", {**CONFIG, **more})
    return [adapter.apply(step, operation) for step, operation in enumerate(operations, 1)]


def test_every_page_size_and_window_is_examined() -> None:
    """With pools so small that they run out."""
    configurations = sglang_configurations([None, 4], "swa", more=1)
    assert [(it["page_size"], it["window"]) for it in configurations] == [
        (1, None),
        (1, 4),
        (4, None),
        (4, 4),
    ]
    assert {(it["pool"], it["more"]) for it in configurations} == {("swa", 1)}


@pytest.mark.parametrize("spelled", [(None, None), ("s:1", "1"), ("i:1", 1), ("s:i:1", "i:1"), ("i:-3", -3)])
def test_a_namespace_is_read_as_it_was_spelled(spelled: tuple[str | None, str | int | None]) -> None:
    """K1: the text 1 and the number 1 are two namespaces, and sglang takes texts."""
    assert read_namespace(spelled[0]) == spelled[1]


def test_nothing_of_sglang_is_loaded_by_the_class() -> None:
    """What is listed is not yet built."""
    assert (SglangTree.KIND, len(SglangTree.CONFIGURATIONS)) == ("prefix", 2)


@needs_sglang_newer
def test_nodes_are_numbered_from_0_in_each_adapter() -> None:
    """X3: sglang counts those of all caches together."""
    views = [play(*FILL, Match(Key((1,), "1")), Inspect())[-1].result for _ in range(2)]
    assert views[0] == views[1]
    assert isinstance(views[0], Inspected)
    assert [(node.id, node.parent, node.tokens, node.extra_key) for node in views[0].nodes] == [
        (1, None, (1,), "1"),
        (0, 1, (2, 3), "1"),
    ]
    assert all(isinstance(node, NodeView) and node.hit_count is None for node in views[0].nodes)


@needs_sglang_newer
def test_a_reset_frees_what_the_tree_held_unless_it_is_left_to_sglang() -> None:
    """X7: a server clears tree and pools together."""
    assert play(*FILL, Reset())[-1].effects == (Effect("free", (1, 2, 3)),)
    whole, left = (play(*FILL, Reset(), **more)[-1] for more in ({}, {"whole_reset": True}))
    assert (whole.sizes["available_size"], left.sizes["available_size"]) == (24, 21)
    assert whole.sizes["total_size"] == left.sizes["total_size"] == 0


@needs_sglang_newer
def test_holds_in_a_tree_that_was_reset_are_gone() -> None:
    """X7: a server resets when nothing runs."""
    outcomes = play(*FILL, Lock(2), Reset(), Unlock(3), Lock(2), Unlock(6))
    assert [outcome.result for outcome in outcomes[4:]] == [Done(), Locked(), Done()]


@needs_sglang_newer
def test_what_it_cannot_do_is_not_supported() -> None:
    """Halves where there are none, a hold that is released elsewhere, token ids for slots."""
    asked: list[Operation] = [FreeSWA(()), ReadHalves(()), Unlock(3, at=2), Insert(Key((1,)))]
    outcomes = play(*FILL, Lock(2), *asked)
    assert all(isinstance(outcome.result, Unsupported) for outcome in outcomes[3:])
    with pytest.raises(ProgramError, match="step 1 gave no node"):
        play(Alloc(1), Lock(1))
    with pytest.raises(ProgramError, match="step 1 took no hold"):
        play(Alloc(1), Unlock(1))


@needs_sglang_newer
def test_what_the_cache_frees_is_an_effect() -> None:
    """And a match gives slots, prefix and dtype."""
    outcomes = play(*FILL, Match(Key((1, 2, 9), "1")), Evict(1))
    assert outcomes[2].result == Matched((1, 2), 2, 2)
    assert outcomes[3].effects == (Effect("free", (3,)),)
