"""A campaign on processes of Python's own executor, which breaks as a whole when one of them is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.campaigns import LOST, PLAYED, SHARDS, Campaign, is_below, taken_over, tried_again


@pytest.mark.slow
def test_a_pool_that_breaks_three_times_costs_attempts_and_no_verdict(tmp_path: Path, whole: bytes) -> None:
    """The shard beside the one that is killed loses its worker, too, and both go on in another pool."""
    engine = ("--executor", f"tests.engines.local_engines:processes,shards={SHARDS}")
    with Campaign(tmp_path, *PLAYED, *engine) as campaign:
        for _ in range(LOST):
            campaign.lose(lambda worker: is_below(worker, campaign.process.pid))
        errors = campaign.end_well(whole)
    assert len(campaign.lost) == LOST
    assert tried_again(errors) >= {*campaign.lost}
    assert "BrokenProcessPool" in errors
    assert taken_over(errors) >= sum(campaign.lost.values())
