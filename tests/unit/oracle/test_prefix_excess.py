"""Whether the last victim was needed, whatever the order."""

from __future__ import annotations

import random

import pytest

from pymllm.oracle.prefix_excess import is_explained
from pymllm.oracle.prefix_model import Path, PrefixModel, Space

ONE, TWO = Path(Space(), (1, 2, 3)), Path(Space(), (1, 2, 4))


def model(window: int | None = None) -> PrefixModel:
    """Two pages with two leaves below."""
    made = PrefixModel(1, window)
    for slot, key in ((10, ONE), (20, TWO)):
        made.commit_insert(made.plan_insert(key, range(slot, slot + 3)))
    return made


@pytest.mark.parametrize(
    ("removed", "tokens", "explained"),
    [
        ((), 0, True),
        ((ONE,), 0, False),
        ((ONE,), 1, True),
        ((ONE, TWO), 1, False),
        ((ONE, TWO), 2, True),
        ((ONE, TWO, ONE.upto(2), ONE.upto(1)), 2, False),
        ((ONE, TWO, ONE.upto(2), ONE.upto(1)), 3, True),
    ],
)
def test_without_its_last_run_it_would_have_been_too_little(
    removed: tuple[Path, ...], tokens: int, explained: bool
) -> None:
    """R5: a run without a branch may be one node."""
    assert is_explained(model(), set(removed), set(), tokens, 0) is explained


def test_dead_pages_go_with_their_last_child() -> None:
    """S4: above a branch, too, whether they were dead before or lost their window a moment ago."""
    everything = {ONE, TWO, ONE.upto(2), ONE.upto(1)}
    made = model(window=1)
    assert not is_explained(made, everything, set(), 2, 0)
    assert is_explained(made, everything, set(), 0, 4)
    made.commit_evict([], [ONE.upto(2), ONE.upto(1)])
    assert is_explained(made, everything, set(), 2, 0)
    assert not is_explained(made, everything, set(), 1, 0)


def test_windows_are_counted_in_alive_tokens() -> None:
    """S3: those of removed pages included."""
    made = model(window=1)
    upper = {ONE.upto(1), ONE.upto(2)}
    assert is_explained(made, set(), upper, 0, 1)
    assert is_explained(made, set(), upper, 0, 2)
    assert not is_explained(made, set(), upper, 0, 0)
    assert is_explained(made, {ONE}, upper, 0, 2)
    assert not is_explained(made, {ONE, TWO}, set(), 1, 1)


def test_any_single_node_is_explained_by_itself() -> None:
    """R5: a random run that was asked for by one token."""
    source = random.Random(5)
    for _ in range(50):
        made = PrefixModel(1)
        length = source.randint(1, 6)
        key = Path(Space(), tuple(range(length)))
        made.commit_insert(made.plan_insert(key, range(10, 10 + length)))
        cut = source.randint(0, length - 1)
        assert is_explained(made, {key.upto(end) for end in range(cut + 1, length + 1)}, set(), 1, 0)
