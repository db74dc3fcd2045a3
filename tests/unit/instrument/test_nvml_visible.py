"""CUDA_VISIBLE_DEVICES, read as CUDA reads it."""

from __future__ import annotations

import pytest

from pymllm.instrument.nvml_device import is_uuid, visible_name
from pymllm.instrument.reading import Unreadable

UUID = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"


@pytest.mark.parametrize(
    ("text", "index", "name"),
    [
        (None, 5, 5),
        ("2,0", 0, 2),
        ("2,0", 1, 0),
        (" 1 , 3", 1, 3),
        ("3gpu,1", 0, 3),
        (UUID, 0, UUID),
        ("GPU-4cf8,1", 1, 1),
        ("MIG-aa,MIG-bb", 1, "MIG-bb"),
        ("MIG-GPU-4cf8/1/0", 0, "MIG-GPU-4cf8/1/0"),
    ],
)
def test_an_index_is_what_cuda_makes_of_it(text: str | None, index: int, name: int | str) -> None:
    """Unset means all, and entries count from zero."""
    assert visible_name(index, {} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == name


@pytest.mark.parametrize(
    ("text", "index", "why"),
    [
        ("", 0, "shows 0 devices"),
        ("-1,0", 0, "shows 0 devices"),
        ("0,-1,1", 1, "shows 1 device, so"),
        ("none", 0, "shows 0 devices"),
        ("0,1", 2, "shows 2 devices"),
        ("0,0", 0, "twice"),
        (f"{UUID},{UUID}", 0, "twice"),
    ],
)
def test_a_hidden_device_has_no_name(text: str, index: int, why: str) -> None:
    """What CUDA hides from the process is not watched in another's place."""
    with pytest.raises(Unreadable, match=why):
        visible_name(index, {"CUDA_VISIBLE_DEVICES": text})


@pytest.mark.parametrize(("name", "expected"), [("GPU-1", True), ("MIG-1", True), ("1", False), ("", False)])
def test_uuids_are_told_from_numbers(name: str, expected: bool) -> None:
    """A UUID says what it is of."""
    assert is_uuid(name) is expected
