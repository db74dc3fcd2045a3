"""The adapter of sglang's ``ReqToTokenPool``."""

from __future__ import annotations

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.adapters.sglang.slots import SglangRows
from pymllm.errors import ProgramError
from pymllm.history.operations import AllocRows, Clear, FreeRow, ReadRows, Span, WriteEntries, WriteRow
from pymllm.history.outcomes import NoRoom, Slots, Table
from tests.unit.adapters.sglang_versions import needs_sglang_newer

CONFIG = {"max_reqs": 2, "max_context_len": 2}


def test_two_tables_are_examined() -> None:
    """Of other sizes."""
    assert [config["max_reqs"] for config in SglangRows.CONFIGURATIONS] == [3, 5]


@needs_sglang_newer
def test_rows_are_written_and_keep_their_entries() -> None:
    """P1, P3: row 0 is padding; a freed row is as it was, so ``zeroed_rows`` is not claimed."""
    adapter = make_adapter("sglang-rows", dict(CONFIG))
    assert adapter.capabilities == {"pool"}
    taken = adapter.apply(1, AllocRows(2)).result
    assert isinstance(taken, Slots)
    assert sorted(taken.slots) == [1, 2]
    first = Span(1, 0, 1)
    assert adapter.apply(2, AllocRows(1)).result == NoRoom()
    adapter.apply(3, WriteRow(first, 0, 1, (7,)))
    adapter.apply(4, WriteEntries((first, Span(0, 0, 1)), (1, 0), (8, 9)))
    adapter.apply(5, FreeRow(first))
    read = adapter.apply(6, ReadRows()).result
    assert isinstance(read, Table)
    assert (read.rows[0], read.rows[taken.slots[0]]) == ((9, 0), (7, 8))
    assert adapter.apply(7, Clear()).sizes == {"size": 2, "available_size": 2}
    with pytest.raises(ProgramError, match="names 2 numbers"):
        adapter.apply(8, FreeRow(Span(1, 0, 2)))
