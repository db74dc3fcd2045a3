"""Probes of the embedded server: nothing where it is right, and each planted fault, with a small program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pymllm.oracle.verdicts import Verdict
from pymllm.probing import player
from pymllm.probing.clients import connect, make_http
from pymllm.probing.judge import judge
from pymllm.probing.laws import LAWS
from pymllm.probing.records import Ask, Cold, Head, History, Reset, Step
from pymllm.probing.search import Probed, ProbePlan, Servers, play_again, probe, shrink
from pymllm.serving.background import serving
from pymllm.serving.service import ServerConfig, Service
from tests.unit.probing.planted_servers import PLANTS, Plant, kept_contents, mixed_rows

PLAN = ProbePlan(requests=25, longest=96, max_tokens=2)


@contextmanager
def embedded(architecture: str = "dense") -> Iterator[Servers]:
    """A server of our own, and a client of it."""
    with serving(Service(ServerConfig(architecture))) as url, make_http(url, 60) as http:
        yield Servers(connect(http, "auto"))


def probed(servers: Servers, seed: int) -> Probed:
    return probe(servers, replace(PLAN, seed=seed))


@pytest.mark.parametrize("architecture", ["dense", "window", "hybrid"])
def test_a_right_server_keeps_every_law(architecture: str) -> None:
    """In two seeds; every law is tested, and warm answers are cold ones but for rounding."""
    for seed in (1, 2):
        with embedded(architecture) as servers:
            done = probed(servers, seed)
            assert (done.failure, done.judgement.violation) == (None, None)
            assert {done.judgement.verdict_of(law) for law in LAWS} == {Verdict.HOLDS}
            assert done.judgement.largest < 1e-5
            assert done.requests >= 25


@pytest.mark.parametrize(("law", "plant"), PLANTS.items())
def test_a_planted_fault_is_found_and_shrunk(law: str, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its law is named, the smallest program shows it, and says so when it is judged from its file alone."""
    plant(monkeypatch)
    if law == "V6":
        monkeypatch.setattr(player, "REST_SECONDS", 0.3)  # what it waits for never comes
    with embedded() as servers:
        plan = replace(PLAN, seed=3, max_tokens=40) if law == "V6" else PLAN
        done = probe(servers, plan)
        assert done.judgement.violation is not None
        # Beside a dropped stream, of which nobody tells how long it ran, a mixed row shows as V1.
        laws = {law, "V1"} if plant is mixed_rows else {law}
        law = done.judgement.violation.law
        assert law in laws
        # Counts that are off by what a request has: no step alone shows it, and the search is long.
        shrink(servers, done, 15 if law == "V7" else 60)
        if law == "V6":
            assert "--start" in str(done.unshrunk)
            return
        assert done.smallest is not None
        assert done.unshrunk is None
        # What needs company may miss it in a try, so that a step that is not needed stays.
        is_bounded = law in ("V1", "V3", "V5") and plant is not mixed_rows
        assert len(done.smallest.steps) <= (5 if is_bounded else len(done.history.steps))
        again = judge(done.smallest).violation
        assert again is not None
        assert again.law == law


def test_what_a_reset_leaves_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached tokens behind a reset that no prompt since explains; without the fault nothing is found."""
    prompt = tuple(range(32, 96))
    steps = tuple(Step(operation=it) for it in (Ask(1, prompt, 1), Reset(), Ask(2, prompt, 1), Cold((2,))))
    head = Head(server="pymllm", api="openai", cold="salt", has_salts=True, is_clean=True)
    with embedded() as servers:
        right = play_again(servers, History(head, steps), PLAN).judgement
        kept_contents(monkeypatch)
        wrong = play_again(servers, History(head, steps), PLAN).judgement
    assert right.violation is None
    assert wrong.violation is not None
    assert (wrong.violation.law, wrong.violation.expected, wrong.violation.observed) == (
        "V3",
        "at most 0",
        "48",
    )
