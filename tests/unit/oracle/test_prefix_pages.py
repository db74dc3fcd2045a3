"""Paths, plans and ranges of the prefix model."""

from __future__ import annotations

import pytest

from pymllm.errors import ProgramError
from pymllm.history.operations import Key
from pymllm.oracle.prefix_pages import InsertPlan, Path, Space, merge_runs, path_of_key


def test_keys_of_other_namespaces_or_widths_are_other_paths() -> None:
    """K1: the string "1", the int 1 and none at all are three namespaces, pairs are no plain tokens."""
    keys = [Key((7,)), Key((7,), 1), Key((7,), "1"), Key(((7, 7),))]
    assert len({path_of_key(key) for key in keys}) == 4


def test_a_key_of_mixed_tokens_means_nothing() -> None:
    """K1: all tokens of a key are equally wide."""
    with pytest.raises(ProgramError, match=r"widths \[1, 2\]"):
        path_of_key(Key((1, (2, 3))))


def test_a_tuple_of_one_number_is_no_token() -> None:
    """K1: it would be another token than the number, of the same width."""
    with pytest.raises(ProgramError, match=r"\(5,\) is a tuple of one number"):
        path_of_key(Key(((5,), (6,))))


@pytest.mark.parametrize("space", ["\ud800", "a\udfff", "\u00e9\ud83d"])
def test_a_namespace_that_utf_8_cannot_spell_means_nothing(space: str) -> None:
    """K1, H3: no hash can read it; a whole pair, a letter with an accent and a zero byte can be read."""
    with pytest.raises(ProgramError, match=f"has half of a surrogate pair at {len(space) - 1}: UTF-8 cannot"):
        path_of_key(Key((7,), space))
    for spelled in ("\U0001f600", "\u00e9", "\0", ""):
        assert path_of_key(Key((7,), spelled)).space.extra_key == spelled


def test_the_container_of_a_key_does_not_matter() -> None:
    """K1: a form is how a key is handed over, not what it is."""
    assert path_of_key(Key((1, 2), form="tensor32")) == path_of_key(Key((1, 2)))


def test_a_path_covers_itself_and_what_continues_it() -> None:
    """R6: a hold at the longer one locks the shorter."""
    path = Path(Space(), (1, 2, 3))
    assert path.upto(2).covers(path)
    assert path.covers(path)
    assert not path.covers(path.upto(2))
    assert not Path(Space("a"), (1,)).covers(path)


def test_adjoining_pages_are_one_range() -> None:
    """R4: adopted ranges are maximal."""
    assert merge_runs([0, 2, 6], 2) == ((0, 4), (6, 8))
    assert merge_runs([], 2) == ()


def test_a_plan_lists_the_moves_of_all_its_pages() -> None:
    """S7: each incoming slot gives its half to one cached slot."""
    root = Path(Space(), (1, 2))
    plan = InsertPlan(root, 2, moved={root.upto(1): {5: 1}, root: {6: 2}})
    assert plan.moves == {5: 1, 6: 2}
