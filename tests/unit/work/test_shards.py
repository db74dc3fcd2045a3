"""Shards: what one of several machines does of a list, and how it learns which."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymllm.errors import UsageError
from pymllm.work.shards import Shard, read_shard


@given(st.lists(st.integers(1, 1000), max_size=80), st.integers(1, 12))
def test_shards_are_disjoint_complete_and_balanced(weights: list[int], count: int) -> None:
    """Each item is in one shard, in its order; no shard is more than the heaviest item ahead of another."""
    items = list(enumerate(weights))
    parts = [list(Shard(number, count).keep(items, lambda item: item[1])) for number in range(1, count + 1)]
    assert sorted(item for part in parts for item in part) == items
    assert all(part == sorted(part) for part in parts)
    loads = [sum(weight for _, weight in part) for part in parts]
    assert max(loads) - min(loads) <= max(weights, default=0)


def test_a_list_without_end_is_dealt_out_as_it_comes() -> None:
    """An endless list is dealt out as its items come, and equal items go round."""
    endless = iter(range(10**18))
    kept = Shard(2, 3).keep(endless)
    assert [next(kept) for _ in range(3)] == [1, 4, 7]


SLURM = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "8"}
SLURM["SLURM_ARRAY_TASK_COUNT"] = "8"
FROM_0 = SLURM | {"SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "7"}
AGAIN = SLURM | {"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_MAX": "7"}
INDEXED = {"JOB_COMPLETION_INDEX": "2"}
GITLAB = {"CI_NODE_INDEX": "3", "CI_NODE_TOTAL": "8"}


@pytest.mark.parametrize(
    ("text", "environ", "shard"),
    [
        ("1/1", {}, (1, 1)),
        (" 3/8", SLURM, (3, 8)),
        ("2/5", SLURM, (2, 5)),  # what is typed wins
        ("env", SLURM, (3, 8)),
        ("env", FROM_0, (4, 8)),
        ("env/8", SLURM, (3, 8)),
        ("env/8", AGAIN, (3, 8)),
        ("env/8", INDEXED, (3, 8)),
        ("env", GITLAB, (3, 8)),
        ("env/8", GITLAB, (3, 8)),
        ("env/8", GITLAB | INDEXED | SLURM, (3, 8)),
    ],
)
def test_a_shard_is_typed_or_found(text: str, environ: Mapping[str, str], shard: tuple[int, int]) -> None:
    """Kubernetes counts from 0, Slurm as its user likes; neither is asked where the shard is typed."""
    assert read_shard(text, environ) == Shard(*shard)
    assert str(Shard(*shard)) == f"{shard[0]}/{shard[1]}"


@pytest.mark.parametrize(
    ("text", "environ", "why"),
    [
        ("3", {}, "'3' is no shard; write I/N with I in 1..N"),
        ("-1/3", {}, "'-1/3' is no shard"),
        ("0/3", {}, "0/3: 0 is no shard of 3; shards are counted from 1 to 3"),
        ("4/3", {}, "4/3: 4 is no shard of 3"),
        ("1/0", {}, "1/0: there are 0 shards; their number must be in 1..1000000"),
        ("1/1000001", {}, "there are 1000001 shards"),
        ("env", {}, "none of SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX, CI_NODE_INDEX is set"),
        ("env", AGAIN, "a Slurm array of 2 tasks from 3 to 7 is not numbered 1-N"),
        ("env/3", {}, "env/3: none of SLURM_ARRAY_TASK_ID"),
        ("env/8", {"JOB_COMPLETION_INDEX": "x"}, "env/8: JOB_COMPLETION_INDEX='x' is no number"),
        ("env", {"SLURM_ARRAY_TASK_ID": "3"}, "SLURM_ARRAY_TASK_MIN is not set"),
        ("env", SLURM | {"SLURM_ARRAY_TASK_ID": "x"}, "SLURM_ARRAY_TASK_ID='x' is no number"),
        ("env/2", SLURM, "SLURM_ARRAY_TASK_ID=3, of an array that is numbered 1-2: 3 is no shard of 2"),
        ("env/8", FROM_0 | {"SLURM_ARRAY_TASK_ID": "0"}, "0 is no shard of 8"),
        ("env", INDEXED, "JOB_COMPLETION_INDEX=2 says not of how many; write env/N"),
        ("env/2", INDEXED, "JOB_COMPLETION_INDEX=2, which counts from 0: 3 is no shard of 2"),
        ("env/7", GITLAB, "CI_NODE_TOTAL=8; write env, or the same number"),
        ("env", {"CI_NODE_INDEX": "3"}, "CI_NODE_TOTAL is not set"),
        ("env/8", SLURM | {"JOB_COMPLETION_INDEX": "0"}, "SLURM_ARRAY_TASK_ID says 3/8 and JOB_COMPLETION_"),
    ],
)
def test_what_is_no_shard_is_refused(text: str, environ: Mapping[str, str], why: str) -> None:
    """Missing numbers and such as contradict each other, with what to write."""
    with pytest.raises(UsageError) as caught:
        read_shard(text, environ)
    assert why in str(caught.value)
