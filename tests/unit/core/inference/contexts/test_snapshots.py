"""Where a chunk leaves states, how the device sees it, and the order in which they are kept."""

from __future__ import annotations

import pytest
import torch

from pymllm.core.inference.contexts.snapshot_offsets import (
    OffsetTable,
    Snapshots,
    commit_candidates,
    snapshot_positions,
)


def left(*offsets: int) -> Snapshots:
    return Snapshots(offsets, offsets, tuple(range(len(offsets))), -1, 0)


@pytest.mark.parametrize(
    ("boundaries", "first", "stop", "expected"),
    [
        ([256, 512, 512], 0, 600, [256, 512]),
        ([0, 256, 600], 0, 600, [256]),
        ([256, 512], 256, 600, [512]),
        ([100, 228, 356], 100, 400, [228, 356]),
        ([256], 100, 400, []),
        ([512, 256], 0, 600, [256, 512]),
        ([-256], 0, 600, []),
    ],
)
def test_positions_are_inside_and_where_the_kernel_has_a_state(
    boundaries: list[int], first: int, stop: int, expected: list[int]
) -> None:
    """C8: strictly inside, whole kernel chunks from the first token computed, distinct, ascending."""
    assert snapshot_positions(boundaries, first, stop, 128) == expected


def test_the_device_sees_the_batch_from_its_first_row(device: torch.device) -> None:
    """C8: offsets and counts of the requests in order, zeros behind them."""
    table = OffsetTable(5, device)
    table.of_request |= {1: left(7), 3: left(2, 4, 6), 0: left(9)}
    offsets, counts = table.show(1, 3)
    assert offsets is not None
    assert counts is not None
    assert (offsets.dtype, counts.dtype) == (torch.int32, torch.int32)
    assert offsets.device.type == device.type
    assert offsets.tolist() == [[7, 0, 0], [0, 0, 0], [2, 4, 6]]
    assert counts.tolist() == [1, 0, 3]
    assert table._buffer.tolist()[9:15] == [0] * 6


def test_the_addresses_never_change(device: torch.device) -> None:
    """Specification, blocks: a captured graph reads them in every step; what is stale there is zero."""
    table = OffsetTable(4, device)
    table.of_request[2] = left(8, 16)
    shown = table.show(2, 1)
    addresses = [tensor.data_ptr() for tensor in shown if tensor is not None]
    table.of_request[0] = left(4)
    again = table.show(0, 2)
    assert [tensor.data_ptr() for tensor in again if tensor is not None] == addresses
    assert table._buffer.tolist() == [4] + [0] * 11 + [1, 0, 0, 0]
    assert table.show(3, 1) == (None, None)
    assert not table._buffer.any()


def test_ends_come_first_then_the_deepest_then_the_lower_row() -> None:
    """C7: the order in which states are kept when slots run out."""
    left_by = {
        2: Snapshots((4, 8), (4, 8), (10, 11), 12, 12),
        3: Snapshots((4,), (8,), (20,), -1, 13),
        4: Snapshots((), (), (), 30, 16),
    }
    found = commit_candidates(left_by, 2, [2, 1, 0])
    assert [each.block for each in found] == [30, 12, 11, 20, 10]
    assert [each.source for each in found] == [-1, -1, 1, 2, 0]
    assert [each.row for each in found] == [4, 2, 2, 3, 2]


def test_a_shared_block_is_named_once() -> None:
    """C7: as the end of a prompt if it is one, else for the lower row."""
    left_by = {
        0: Snapshots((4,), (4,), (10,), -1, 9),
        1: Snapshots((4, 8), (4, 8), (10, 11), -1, 9),
        2: Snapshots((), (), (), 11, 8),
    }
    found = commit_candidates(left_by, 0, [1, 2, 0])
    assert [(each.block, each.row, each.source) for each in found] == [(11, 2, -1), (10, 0, 0)]


def test_the_first_block_is_a_block_like_any_other() -> None:
    """C7: a prompt may end with block 0, and -1 alone stands for none."""
    left_by = {0: Snapshots((), (), (), 0, 4), 1: Snapshots((4,), (4,), (1,), -1, 9)}
    assert [each.block for each in commit_candidates(left_by, 0, [0, 1])] == [0, 1]
