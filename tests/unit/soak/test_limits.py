"""Steps that were not done (X9): kept with each run, merged, and told of an adapter with the shortest run."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from pymllm.soak.ledger import CampaignHeader, Place, RunRecord, read_line, write_line
from pymllm.soak.merging import Merged
from pymllm.soak.totals import Totals

PLACE = Place("rows", "rows", {"max_reqs": 3}, "RowMachine", "tiny", ("pool",))
HEADER = CampaignHeader("1+a", {}, 7, 1000, 100, 64, (PLACE,), runs=2)
LONG = RunRecord(
    *(
        0,
        "1+a",
        "rows",
        "rows",
        {"max_reqs": 3},
        "RowMachine",
        "tiny",
        9,
        100,
        60,
        101,
        (),
        {},
        {},
        {},
        "abc",
    ),
    not_done={"write_row: it is hard": 2},
    done={"write_row": 5},
)
SHORT = replace(LONG, number=1, seed=8, operations=40, not_done={"write_row: it is hard": 3})


def test_a_run_keeps_what_was_not_done_and_older_ones_have_nothing_of_it() -> None:
    """X9: ledgers of earlier versions are read."""
    assert read_line(write_line(LONG)) == LONG
    plain = json.loads(write_line(LONG))
    del plain["not_done"], plain["done"]
    older = read_line(json.dumps(plain))
    assert older == replace(LONG, not_done={}, done={})


def test_ledgers_that_are_merged_tell_of_both(tmp_path: Path) -> None:
    """X9: counted over all runs, with the one that is the shortest."""
    merged = Merged()
    for number, record in enumerate((LONG, SHORT)):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(f"{write_line(HEADER)}\n{write_line(record)}\n", encoding="utf-8")
        merged.add(path)
    merged.finish()
    totals = Totals(merged.headers)
    for record in merged:
        totals.add(record)
    (limit,) = totals.adapters["rows"].row().limits
    assert (limit.operation, limit.reason, limit.not_done, limit.done) == ("write_row", "it is hard", 5, 10)
    assert (limit.seed, limit.limit, limit.machine) == (8, 100, "RowMachine")
