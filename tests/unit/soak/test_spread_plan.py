"""The file of a campaign over many machines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pymllm.errors import TraceError, UsageError
from pymllm.soak.spread_plan import FILE, SHARDS, STOP, ShardPlan, plan_schema, read_plan, write_plan

PLAN = ShardPlan(
    *(3, 7, ("rows", "mine:Cache"), ({"max_reqs": 3},), "RowMachine"),
    *(900, None, 300, "1/8", "[[deviation]]", "{}"),
)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    """In a folder that need not be there."""
    folder = tmp_path / "deep" / "campaign"
    write_plan(PLAN, folder)
    assert read_plan(folder) == PLAN
    assert len({PLAN.campaign, ShardPlan(1, 1).campaign}) == 2
    assert [path.name for path in folder.iterdir()] == [FILE]
    plain = json.loads((folder / FILE).read_text())
    validator = Draft202012Validator(plan_schema())
    validator.validate(plain)
    assert not validator.is_valid({**plain, "words": ["--command", "rm"]})
    assert not validator.is_valid({**plain, "schema": 2})


@pytest.mark.parametrize("name", [FILE, "ledger.jsonl"])
def test_a_folder_that_has_a_campaign_is_refused(name: str, tmp_path: Path) -> None:
    """Whether it was begun over many machines or on one; nothing is changed."""
    (tmp_path / name).write_text("it")
    with pytest.raises(UsageError, match="there is a campaign already; pymllm resume it"):
        write_plan(PLAN, tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "it")]


def test_a_campaign_is_the_words_of_soak() -> None:
    """All that was given, and nothing else."""
    assert PLAN.words() == (
        *("--adapter", "rows", "--adapter", "mine:Cache", "--config", '{"max_reqs": 3}'),
        *("--machine", "RowMachine", "--seed", "7", "--operations", "900", "--longest", "300"),
        *("--audit", "1/8"),
    )
    assert ShardPlan(1, 5, minutes=1.5).words() == ("--seed", "5", "--minutes", "1.5")


def test_only_shards_that_are_not_there_are_played(tmp_path: Path) -> None:
    """With the folder to work in, and the file that says stop."""
    (tmp_path / SHARDS / "2-of-3").mkdir(parents=True)
    (tmp_path / SHARDS / "3-of-3").mkdir()
    (tmp_path / SHARDS / "2-of-3" / "ledger.jsonl").touch()
    first, third = PLAN.tasks(tmp_path, ["--jobs", "2"])
    assert (first.number, third.number, first.count) == (1, 3, 3)
    assert first.words == ("soak", *PLAN.words(), "--jobs", "2")
    assert (first.known, first.corpus, first.campaign) == ("[[deviation]]", "{}", PLAN.campaign)
    assert (first.directory, first.stop) == (os.getcwd(), str(tmp_path / STOP))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "format and schema are ('other', 1); this version reads ('pymllm-shards', 1)"),
        ({"schema": 2}, "('pymllm-shards', 2)"),
        ({"shards": 0}, "shards is 0; it must be in 1..100,000"),
        ({"shards": 100_001}, "shards is 100001; it must be in 1..100,000"),
        ({"shards": "3"}, "Expected `int`"),
        ({"campaign": "../../x"}, "campaign must be up to 64 letters and digits"),
        ({"campaign": ""}, "campaign must be up to 64 letters and digits"),
        ({"campaign": "a" * 65}, "campaign must be up to 64 letters and digits"),
        ({"words": ["--command", "rm"]}, "unknown field `words`"),
    ],
)
def test_a_plan_of_somebody_else_is_read_within_bounds(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    """It may be anybody's: what it has no place for is refused."""
    write_plan(PLAN, tmp_path)
    plain = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**plain, **change}))
    with pytest.raises(TraceError) as refused:
        read_plan(tmp_path)
    assert words in str(refused.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", "\0"])
def test_what_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    """In one line."""
    (tmp_path / FILE).write_text(text)
    with pytest.raises(TraceError):
        read_plan(tmp_path)


def test_a_campaign_of_one_machine_has_no_plan(tmp_path: Path) -> None:
    """It goes on without an executor."""
    with pytest.raises(UsageError, match=r"there is no shards\.json in it, so it was begun without --exec"):
        read_plan(tmp_path)
