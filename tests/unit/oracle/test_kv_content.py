"""What forward passes wrote, and what a read must find."""

from __future__ import annotations

from pymllm.oracle.kv_content import KVContent
from pymllm.oracle.prefix_pages import Path, Space


def path(*tokens: int, extra_key: str | int | None = None) -> Path:
    return Path(Space(extra_key), tokens)


def written(key: Path, slots: list[int], halves: bool = True) -> KVContent:
    content = KVContent()
    content.write(slots, content.of_path(key), [halves] * len(slots))
    return content


def test_content_depends_on_the_whole_prefix_and_the_namespace() -> None:
    """E1: equal tokens behind different prefixes have different KV."""
    content = KVContent()
    assert content.of_path(path(1, 2)) == content.of_path(path(1, 2))
    assert content.of_path(path(1, 2))[0] == content.of_path(path(1, 3))[0]
    assert content.of_path(path(1, 2))[1] != content.of_path(path(3, 2))[1]
    assert content.of_path(path(1, extra_key=1)) != content.of_path(path(1, extra_key="1"))


def test_a_read_finds_what_was_written() -> None:
    """E1: every row, and the halves of the window."""
    assert written(path(1, 2), [4, 5]).first_wrong(path(1, 2), [4, 5], 2) is None


def test_a_read_of_a_recycled_row_is_noticed() -> None:
    """E1: the row that another prefix has overwritten is named."""
    content = written(path(1, 2), [4, 5])
    content.write([5], content.of_path(path(9)), [False])
    assert "token 1 in slot 5 has KV of another" in str(content.first_wrong(path(1, 2), [4, 5], None))


def test_a_half_is_read_within_the_window_only() -> None:
    """E1, S1: tokens before the last W may have lost theirs."""
    content = written(path(1, 2, 3), [4, 5, 6])
    content.drop_halves([4])
    assert content.first_wrong(path(1, 2, 3), [4, 5, 6], 2) is None
    assert "slot 4 has window KV" in str(content.first_wrong(path(1, 2, 3), [4, 5, 6], 3))


def test_a_moved_half_takes_its_content_along() -> None:
    """E1, S7: the target's window is what the source's was."""
    content = written(path(1), [4])
    content.write([9], content.of_path(path(1)), [True])
    content.drop_halves([4])
    content.move_halves({9: 4})
    assert content.first_wrong(path(1), [4], 1) is None
    assert content.first_wrong(path(1), [9], 1) is not None


def test_freed_rows_are_forgotten() -> None:
    """E2: a recycled row carries nothing over."""
    content = written(path(1), [4])
    content.drop([4])
    assert content.first_wrong(path(1), [4], None) is not None


def test_a_number_that_stands_for_two_contents_is_left_out() -> None:
    """R1: token ids in place of slots repeat, and hold no KV."""
    content = KVContent()
    for number, value in zip((7, 7, 8), content.of_path(path(7, 7, 8)), strict=True):
        content.write_number(number, value)
    assert not content.is_known([7, 8])
    assert content.is_known([8])
