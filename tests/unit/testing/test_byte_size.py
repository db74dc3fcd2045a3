"""Sizes as people write them."""

from __future__ import annotations

import pytest

from pymllm.testing.gpu_memory import parse_bytes


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (0, 0),
        (4096, 4096),
        ("2 GiB", 2 << 30),
        (" 512MiB ", 512 << 20),
        ("1.5 KiB", 1536),
        ("1 TiB", 1 << 40),
        ("3 GB", 3 * 10**9),
        ("10 kB", 10_000),
        ("7B", 7),
    ],
)
def test_sizes_are_read(size: int | str, count: int) -> None:
    """Binary and decimal units mean what their names say."""
    assert parse_bytes(size) == count


@pytest.mark.parametrize("size", ["", "2", "GiB", "2 gib", "-1 GiB", "2 potatoes", "1e3 MiB", -1])
def test_what_is_no_size_is_refused(size: int | str) -> None:
    """A limit that was mistyped is not taken for another one."""
    with pytest.raises(ValueError, match=r"size is|at least 0"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [None, 1.5, True])
def test_what_is_neither_number_nor_text_is_refused(size: object) -> None:
    """A fraction of a byte is a mistake."""
    with pytest.raises(TypeError, match="number of bytes"):
        parse_bytes(size)  # type: ignore[arg-type]  # wrong on purpose
