"""Traces made of traces: what a format can keep, samples, and synthetic ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from pymllm.documents.traces import differences_of
from pymllm.errors import UsageError
from pymllm.traces import synthesis
from pymllm.traces.conversion import Fitted, Groups, chosen_by_count, chosen_by_share, sampled
from pymllm.traces.registry import written_lines
from pymllm.traces.statistics import TraceStatistics
from pymllm.traces.synthesis import Fit, synthesized
from pymllm.workloads.ceiling import HitCeiling
from pymllm.workloads.request import Request
from pymllm.workloads.synthetic import make_requests
from tests.unit.traces.trace_words import random_trace, read, renumbered


def hits(requests: list[Request]) -> int:
    ceiling = HitCeiling()
    return sum(ceiling.add(request) for request in requests)


# -- conversion ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["mooncake", "bailian", "kvsim", "dynamo"])
@pytest.mark.parametrize("seed", range(5))
def test_without_namespaces_as_much_is_shared_as_with(format: str, seed: int) -> None:
    """Blocks of different namespaces get different ids, where whole blocks are shared."""
    made = [
        replace(it, prompt_length=len(it.block_ids) * it.block_tokens)
        for it in renumbered(random_trace(seed, namespaces=(None, "a", 7)))
    ]
    kept = list(Fitted(format)(made))
    assert {it.namespace for it in kept} == {None}
    assert hits(kept) == hits(made)
    assert [it.block_ids for it in kept] == [it.block_ids for it in renumbered(kept)]


def test_what_a_format_has_no_field_for_is_counted() -> None:
    """Once for each request; times never go back where nobody waits."""
    made = [
        Request(0, 5.0, 4, 1, (0,), 4, session=0, kind="a"),
        Request(1, 9.0, 4, 1, (0,), 4),
        Request(2, 1.0, 4, 1, (0,), 4, session=0, wait_for=(0, 1), delay_ms=2.0),
    ]
    lost = {name: Fitted(name) for name in ("mooncake", "bailian", "dynamo", "pymllm")}
    arrivals = {name: [it.arrival_ms for it in fitted(made)] for name, fitted in lost.items()}
    assert +lost["mooncake"].lost == {"session": 2, "kind": 1, "wait_for": 1, "delay_ms": 1}
    assert +lost["bailian"].lost == {"wait_for": 1, "delay_ms": 1}
    assert +lost["dynamo"].lost == {"kind": 1}
    assert +lost["pymllm"].lost == {}
    assert arrivals["mooncake"] == arrivals["bailian"] == [5.0, 9.0, 9.0]
    assert arrivals["dynamo"] == [5.0, 9.0, 1.0]


# -- samples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_a_sample_has_whole_sessions_and_the_same_prefixes(seed: int) -> None:
    """Every request of a session that was drawn, with blocks that are equal where they were."""
    made = renumbered(random_trace(seed, 80, namespaces=(None, "a")))
    made = [replace(it, session=it.request_id % 7 if it.session is None else it.session) for it in made]
    choose = chosen_by_share(0.5, seed)
    kept = list(sampled(made, choose))
    groups = Groups()
    chosen = [it for it in made if choose(groups.of(it))]
    assert len(kept) == len(chosen)
    assert {it.session for it in chosen}.isdisjoint({it.session for it in made if it not in chosen})
    assert hits(kept) == hits(chosen)
    names = {it.request_id: place for place, it in enumerate(chosen)}
    for place, (new, old) in enumerate(zip(kept, chosen, strict=True)):
        assert new.request_id == place
        assert new.arrival_ms == max(0.0, old.arrival_ms - chosen[0].arrival_ms)
        assert new.wait_for == tuple(names[other] for other in old.wait_for if other in names)
        assert (new.prompt_length, new.output_length, new.kind) == (
            old.prompt_length,
            old.output_length,
            old.kind,
        )
        assert isinstance(new.namespace, int | None)
    assert [it.block_ids for it in kept] == [it.block_ids for it in renumbered(kept)]


def test_without_sessions_a_request_goes_on_with_what_it_shares_most_of() -> None:
    """More than half of its blocks; a short common beginning makes nobody one."""
    chat = [(0, 1, 2), (0, 1, 2, 3), (0, 9, 8, 7), (0, 1, 2, 3, 4, 5), (0, 9, 8, 7, 6)]
    groups = Groups()
    found = [groups.of(Request(n, 0.0, 4 * len(ids), 1, ids, 4)) for n, ids in enumerate(chat)]
    assert found == [1, 1, 3, 1, 3]
    assert groups.of(Request(5, 0.0, 4, 1, (0,), 4, session=8)) == 0


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_about_the_asked_share_of_groups_is_chosen(share: float) -> None:
    """And the same ones with the same seed."""
    chosen = {group for group in range(4000) if chosen_by_share(share, 3)(group)}
    assert len(chosen) / 4000 == pytest.approx(share, abs=0.03)
    assert chosen == {group for group in range(4000) if chosen_by_share(share, 3)(group)}


def test_as_many_requests_as_fit_are_chosen() -> None:
    """Whole groups only; where none fits, the message has the smallest."""
    sizes = Counter({1: 5, 3: 4, 5: 3})
    for seed in range(20):
        choose = chosen_by_count(sizes, 8, seed)
        assert sum(sizes[group] for group in sizes if choose(group)) in (7, 8)
    with pytest.raises(UsageError, match=r"--requests is 2, and the smallest session, .* has 3"):
        chosen_by_count(sizes, 2, 0)


# -- synthesis -----------------------------------------------------------------------------------------------


def fitted(requests: list[Request]) -> Fit:
    fit = Fit()
    for request in requests:
        fit.learn(request)
    return fit


def made_of(fit: Fit, count: int, seed: int) -> tuple[list[Request], TraceStatistics]:
    found = TraceStatistics()
    return list(synthesized(fit, count, seed, found)), found


@pytest.fixture(scope="module")
def chat() -> Fit:
    return fitted(renumbered(make_requests("chat", 2000, seed=1)))


def test_a_synthetic_trace_is_like_the_one_that_it_was_fitted_to(chat: Fit) -> None:
    """Shared tokens, lengths and rate within a few hundredths; uses are nearer to each other."""
    requests, found = made_of(chat, 4000, 7)
    before = chat.statistics
    for name, near in (("prompt_tokens", 0.05), ("output_tokens", 0.05), ("shared_tokens", 0.1)):
        rates = [getattr(it, name) / it.requests for it in (before, found)]
        assert rates[1] == pytest.approx(rates[0], rel=near), name
    assert found.seconds / found.requests == pytest.approx(before.seconds / before.requests, rel=0.1)
    for power in range(0, 24, 4):
        within = [
            sum(tokens for at, tokens in it.distances.items() if at <= power) / it.shared_tokens
            for it in (before, found)
        ]
        assert within[1] == pytest.approx(within[0], abs=0.2), power
    assert [it.request_id for it in requests] == list(range(4000))
    assert [it.block_ids for it in requests] == [it.block_ids for it in renumbered(requests)]


def test_a_seed_makes_one_trace(chat: Fit) -> None:
    """X3: and another seed another one."""
    assert made_of(chat, 200, 5)[0] == made_of(chat, 200, 5)[0]
    assert made_of(chat, 200, 5)[0] != made_of(chat, 200, 6)[0]


def test_sessions_and_kinds_are_made_too() -> None:
    """A request that went on with a session does so again, and sessions are not all one."""
    source = []
    for number in range(300):
        session, turn = number % 10, number // 10
        ids = tuple(1000 * session + at for at in range(1 + turn % 30))
        kind = "a" if session else None
        source.append(Request(number, 10.0 * number, 4 * len(ids), 1, ids, 4, session=session, kind=kind))
    requests, _ = made_of(fitted(renumbered(source)), 300, 0)
    sessions = defaultdict(list)
    for request in requests:
        assert request.session is not None
        sessions[request.session].append(request)
    assert len(sessions) > 1
    assert max(map(len, sessions.values())) > 5
    for turns in sessions.values():
        assert len({it.block_ids[0] for it in turns}) == 1
    assert {it.kind for it in requests} == {"a", None}


def test_history_and_fit_have_bounds(monkeypatch: pytest.MonkeyPatch, chat: Fit) -> None:
    """Memory does not grow with the requests that are made."""
    monkeypatch.setattr(synthesis, "_HISTORY", 20)
    requests, found = made_of(chat, 300, 1)
    assert len(requests) == 300
    assert found.shared_tokens > 0
    monkeypatch.setattr(synthesis, "FITTED_MAX", 5)
    fit = fitted(make_requests("chat", 9, seed=1))
    assert (len(fit), fit.statistics.requests) == (5, 9)
    monkeypatch.setattr(synthesis, "BLOCK_ID_MAX", 50)
    with pytest.raises(UsageError, match="would bring more than 50 blocks"):
        made_of(chat, 300, 1)
    monkeypatch.setattr(synthesis, "ARRIVAL_MS_MAX", 1.0)
    with pytest.raises(UsageError, match="would arrive after 1 milliseconds"):
        made_of(chat, 300, 1)


@pytest.mark.parametrize("seed", range(10))
def test_sessions_survive_a_form_that_has_parents(tmp_path: Path, seed: int) -> None:
    """A request that waits for none of its session gets the one before it as a parent; counted."""
    made = renumbered(random_trace(seed, 60))
    fitted = Fitted("bailian")
    path = tmp_path / "it.jsonl"
    path.write_bytes(b"".join(written_lines(fitted(made), "bailian")))
    back = read(path, block_tokens=4)
    for first in range(60):
        for second in range(first):
            sessions = made[first].session, made[second].session
            if None not in sessions:
                is_same = back[first].session == back[second].session
                assert is_same == (sessions[0] == sessions[1]), (second, first)
    added = [it for it, was in zip(back, made, strict=True) if not set(it.wait_for) <= set(was.wait_for)]
    assert fitted.added == len(added) > 0
    assert all(len(it.wait_for) <= 1 for it in back)
    dropped = [it for it, was in zip(back, made, strict=True) if not set(was.wait_for) <= set(it.wait_for)]
    assert fitted.lost["wait_for"] == len(dropped)


def test_how_far_a_synthetic_trace_is_apart_is_told() -> None:
    """The largest difference of shares within a bound, counted by hand."""
    one, other = TraceStatistics(), TraceStatistics()
    one.distances.update({3: 60, 5: 40})
    other.distances.update({3: 10, 4: 70, 5: 20})
    one.turns.update({0: 1, 1: 3})
    other.turns.update({0: 3, 1: 3})
    far, turns = differences_of(one, other)
    assert (far.what, far.apart, far.at_most) == ("reuse distance of shared tokens", pytest.approx(0.5), 8.0)
    assert (turns.what, turns.apart, turns.at_most) == ("requests of a session", 0.5, 1.0)
    assert differences_of(one, one)[0].apart == 0.0
    assert differences_of(TraceStatistics(), other) == ()
