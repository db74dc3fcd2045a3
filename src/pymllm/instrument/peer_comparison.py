"""The comparison of this package with peers, as ``tox -e bench-peers`` writes it.

The fields are promised: ``pymllm schema peers`` prints them. The version counts up when a field goes away
or changes its meaning; a new field does not change it.

Contestants are measured in interleaved rounds. Two runs, one after the other, compare two states of a machine
as much as two programs. Here each round takes a sample of every contestant, or a few, and every round begins
with another, so that drift, other people's load and warm caches fall on all alike; a ratio of samples of one
round has little of them left.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pymllm.history.codec import encode
from pymllm.history.schema import schema_of

STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "mean": statistics.fmean,
}
"""The statistics that summarise samples, by name."""

_RESAMPLES = 1000
_MOST_BLOCKS = 250


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio, with the interval that contains the true ratio at a given probability.

    Below 1 ours takes less. With fewer than three common rounds the interval is the value.
    """

    value: float
    low: float
    high: float
    confidence: float
    rounds: int


def estimate_ratio(
    ours: Sequence[float],
    theirs: Sequence[float],
    statistic: str = "median",
    confidence: float = 0.95,
    seed: int = 0,
    burst: int = 1,
) -> Ratio:
    """Estimate a ratio from samples of the same rounds, by a bootstrap over blocks of rounds.

    The n-th samples of both are of one round; rounds that only one played are left out. Rounds are drawn
    together, so that what happened to a whole round cancels, and in blocks of neighbours (250 at most),
    because a busy spell of the machine lasts for several; the ``burst`` samples of a turn are never drawn
    apart. The interval is that of the percentiles, the same for the same seed. Source: Efron and Tibshirani
    1993; Kuensch 1989 for blocks.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"statistic is {statistic!r}; choose one of {', '.join(STATISTICS)}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}; 0.95 is usual")
    rounds = min(len(ours), len(theirs))
    if not rounds or min(theirs[:rounds]) <= 0:
        raise ValueError("a ratio needs a round that both played, and positive samples to divide by")
    summed_up = STATISTICS[statistic]
    value = summed_up(ours[:rounds]) / summed_up(theirs[:rounds])
    if rounds < 3 * burst:
        return Ratio(value, value, value, confidence, rounds)
    size = -(-rounds // (_MOST_BLOCKS * burst)) * burst
    blocks = [(ours[at : at + size], theirs[at : at + size]) for at in range(0, rounds - size + 1, size)]
    source = random.Random(seed)
    drawn = []
    for _ in range(_RESAMPLES):
        chosen = source.choices(blocks, k=len(blocks))
        drawn.append(
            summed_up([sample for block, _ in chosen for sample in block])
            / summed_up([sample for _, block in chosen for sample in block])
        )
    drawn.sort()
    outside = round(_RESAMPLES * (1 - confidence) / 2)
    return Ratio(value, drawn[outside], drawn[-1 - outside], confidence, rounds)


def interleave(
    contestants: Mapping[str, Callable[[], float]],
    rounds: int,
    seconds: float,
    fewest: int = 3,
    burst: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Sample contestants in turn each round; return their samples, ``burst`` from each round.

    After the ``fewest`` rounds, one that has used so many ``seconds``, besides its samples too, drops out. A
    ``burst`` is taken at once: alone, a sample of a few microseconds pays for caches that the others have
    filled with their own.
    """
    if rounds < 1 or burst < 1:
        raise ValueError(f"rounds and burst must be at least 1, got {rounds} and {burst}")
    if not contestants:
        raise ValueError("there is no contestant; give one at least")
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    used = dict.fromkeys(contestants, 0.0)
    playing = list(contestants)
    for number in range(rounds):
        for name in list(playing):
            begun = clock()
            samples[name] += [contestants[name]() for _ in range(burst)]
            used[name] += clock() - begun
            if number + 1 >= fewest and used[name] >= seconds:
                playing.remove(name)
        playing = [*playing[1:], *playing[:1]]
        if not playing:
            break
    return samples


SCHEMA = "pymllm.peers"
VERSION = 1
OURS = "pymllm"
"""The contender of this package, which is compared with all others."""

VERDICTS = ("ahead", "level", "behind", "alone")
"""Verdicts: the interval of the ratio to the best peer is below 1, contains 1, is above 1; or no peer."""

CLOCKS = ("wall", "cpu")
"""Clocks: real time, or processor time, which stops while other processes run."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An implementation in the comparison, with the reason if its package is missing or unsuitable."""

    name: str
    package: str
    version: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """The result of one contender, in the scenario's unit; ``facts`` are counts such as hit tokens."""

    contender: str
    value: float
    samples: int
    p50: float
    p95: float
    p99: float
    longest: float
    facts: dict[str, float]


@dataclass(frozen=True, slots=True)
class ScenarioRow:
    """A scenario with the result of each contender, the limit of its run, and the target.

    ``limit`` is what the machine itself needs for ``limit_of``. ``target`` is a promise about one machine
    (docs/benchmarks.md); ``ratio`` is ours to the best peer, and holds on others, too.
    ``code`` tells edited benchmarks apart. Up to the ratio ``accepted``, which is 1 nearly everywhere, being
    behind is no regression, ``because`` of something that is not a matter of speed.

    Ours may stand for several containers of keys: `OURS` is then the slowest, which ``keys`` names, and the
    others follow it as ``pymllm int64`` and the like. With them compared are times, verdict and target.
    """

    id: str
    title: str
    unit: str
    statistic: str
    target: float
    limit: float
    limit_of: str
    code: str
    standings: tuple[Standing, ...]
    best_peer: str | None
    ratio: Ratio | None
    verdict: str
    reached: bool
    accepted: float
    because: str
    keys: str = ""


@dataclass(frozen=True, slots=True)
class PeerComparison:
    """The document of a comparison; ``machine`` is pytest-benchmark's ``machine_info``."""

    schema: str
    version: int
    versions: dict[str, str]
    machine: dict[str, str]
    clock: str
    slice: str
    seconds: float
    contenders: tuple[Contender, ...]
    scenarios: tuple[ScenarioRow, ...]


def make_standing(
    contender: str, samples: Sequence[float], statistic: str, facts: Mapping[str, float]
) -> Standing:
    """Return the result of one contender from its samples, at least one, in the scenario's unit."""
    ordered = sorted(samples)
    return Standing(
        contender=contender,
        value=STATISTICS[statistic](samples),
        samples=len(samples),
        p50=_percentile(ordered, 50),
        p95=_percentile(ordered, 95),
        p99=_percentile(ordered, 99),
        longest=ordered[-1],
        facts=dict(facts),
    )


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest sample that at least so many percent of the samples do not exceed."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def make_row(
    *,
    id: str,
    title: str,
    unit: str,
    statistic: str,
    target: float,
    limit_of: str,
    code: str,
    samples: Mapping[str, Sequence[float]],
    limit_samples: Sequence[float],
    facts: Mapping[str, Mapping[str, float]],
    burst: int = 1,
    accepted: float = 1.0,
    because: str = "",
) -> ScenarioRow:
    """Compare this package, by its slowest kind of keys, with the best peer in the same rounds."""
    found = [make_standing(name, series, statistic, facts.get(name, {})) for name, series in samples.items()]
    ours = sorted((one for one in found if is_ours(one)), key=lambda one: one.value, reverse=True)
    peers = [one for one in found if not is_ours(one)]
    best = min(peers, key=lambda one: one.value, default=None)
    ratio = (
        None
        if best is None
        else estimate_ratio(samples[ours[0].contender], samples[best.contender], statistic, burst=burst)
    )
    standings = [replace(ours[0], contender=OURS), *ours[1:], *peers]
    return ScenarioRow(
        id=id,
        title=title,
        unit=unit,
        statistic=statistic,
        target=target,
        limit=STATISTICS[statistic](limit_samples),
        limit_of=limit_of,
        code=code,
        standings=tuple(standings),
        best_peer=None if best is None else best.contender,
        ratio=ratio,
        verdict=_verdict(ratio),
        reached=ours[0].value <= target,
        accepted=accepted,
        because=because,
        keys=ours[0].contender[len(OURS) + 1 :],
    )


def is_ours(standing: Standing) -> bool:
    """Tell whether a result is this package's, with any kind of keys."""
    return standing.contender.split(" ")[0] == OURS


def _verdict(ratio: Ratio | None) -> str:
    if ratio is None:
        return "alone"
    if ratio.high < 1:
        return "ahead"
    return "behind" if ratio.low > 1 else "level"


def peers_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of the document."""
    found = schema_of(PeerComparison)
    found["properties"]["schema"] = {"const": SCHEMA}
    found["properties"]["version"] = {"const": VERSION}
    found["properties"]["clock"] = {"enum": list(CLOCKS)}
    row = found["properties"]["scenarios"]["items"]["properties"]
    row["verdict"] = {"enum": list(VERDICTS)}
    row["statistic"] = {"enum": list(STATISTICS)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pymllm peers", **found}


def make_document(comparison: PeerComparison) -> dict[str, Any]:
    """Return a comparison as plain data, valid under `peers_schema`."""
    plain: dict[str, Any] = encode(comparison)
    return plain
