"""Scenarios played: every contender in interleaved rounds, each scenario in a process of its own."""

from __future__ import annotations

import inspect
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.code_hash import code_of
from peers.benchmarks import evictions, footprint, full_hits, hybrids, slots, traces
from peers.benchmarks.contenders import taking_part
from peers.benchmarks.keys import LISTS
from peers.benchmarks.scenario import CLOCKS, Contest, Scenario, no_collection
from pymllm.instrument.peer_comparison import OURS, ScenarioRow, interleave, make_row

LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Options:
    """How scenarios are played: ``scale`` shrinks what is built, ``share`` rounds and seconds."""

    clock: str = "wall"
    scale: float = 1.0
    share: float = 1.0
    only: tuple[str, ...] = ()


def all_scenarios() -> dict[str, Scenario]:
    """Return every scenario by its id, in the order of the table."""
    found = (*full_hits.scenarios(), *traces.scenarios(), *evictions.scenarios())
    found = (*found, *slots.scenarios(), *hybrids.scenarios(), *footprint.scenarios())
    return {one.id: one for one in sorted(found, key=lambda one: one.id.split("-")[0])}


def play(id: str, options: Options) -> ScenarioRow:
    """Play one scenario here."""
    torch.set_num_threads(1)
    scenario = all_scenarios()[id]
    with no_collection():
        contests = dict(build(scenario, options))
        samples = interleave(
            {name: contest.sample for name, contest in contests.items()},
            rounds=max(3, round(scenario.rounds / scenario.burst * options.share)),
            seconds=scenario.seconds * options.share,
            burst=scenario.burst,
        )
    lost = [name for name, contest in contests.items() if not contest.holds()]
    if lost:
        raise AssertionError(f"{id}: {', '.join(lost)} ended with something else than it was given")
    limits = samples.pop(LIMIT)
    return make_row(
        id=id,
        title=scenario.title,
        unit=scenario.unit,
        statistic=scenario.statistic,
        target=scenario.target,
        limit_of=scenario.limit_of,
        code=code_of(Path(inspect.getfile(contest_class(scenario)))),
        samples=samples,
        limit_samples=limits,
        facts={name: contest.facts for name, contest in contests.items()},
        burst=scenario.burst,
        accepted=scenario.accepted,
        because=scenario.because,
    )


def build(scenario: Scenario, options: Options) -> Iterator[tuple[str, Contest]]:
    """Build every contender, ours once for each container of keys, and the limit."""
    clock = CLOCKS[options.clock]
    for peer in taking_part(scenario.kind, scenario.without, options.only):
        forms = scenario.keys if peer.NAME == OURS or scenario.keys == LISTS else ()
        for form in forms:
            name = f"{OURS} {form}" if peer.NAME == OURS else peer.NAME
            yield name, scenario.contest(type(peer.__name__, (peer,), {"FORM": form}), clock, options.scale)
        if not forms:
            yield peer.NAME, scenario.contest(peer, clock, options.scale)
    yield LIMIT, scenario.limit(clock, options.scale)


def contest_class(scenario: Scenario) -> type[Contest]:
    """Return the class whose file has the benchmark."""
    found: type[Contest] = scenario.contest.func  # type: ignore[attr-defined]
    return found


def play_all(
    ids: Sequence[str], options: Options, done: Callable[[ScenarioRow], None]
) -> tuple[ScenarioRow, ...]:
    """Play scenarios one after another, each in a fresh process, and report each when it is over."""
    rows = []
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as pool:
        for row in (pool.submit(play, id, options).result() for id in ids):
            rows.append(row)
            done(row)
    return tuple(rows)
