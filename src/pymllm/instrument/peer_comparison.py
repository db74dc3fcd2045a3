"""Ours beside its peers, scenario by scenario: what ``tox -e bench-peers`` writes, and what it says.

The fields are promised: docs/schemas/peers.schema.json has them. The version counts up when a field goes away
or changes its meaning; a new field does not change it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymllm.history.records import encode, schema_of
from pymllm.instrument.ratio import STATISTICS, Ratio, estimate_ratio

__all__ = [
    "CLOCKS",
    "OURS",
    "SCHEMA",
    "VERDICTS",
    "VERSION",
    "Contender",
    "PeerComparison",
    "ScenarioRow",
    "Standing",
    "make_document",
    "make_row",
    "make_standing",
    "peers_schema",
]

SCHEMA = "pymllm.peers"
VERSION = 1
OURS = "pymllm"
"""The contender that is compared with all others."""

VERDICTS = ("ahead", "level", "behind", "alone")
"""Whether the interval of the ratio to the best peer is below 1, has it, is above it, or there is no peer."""

CLOCKS = ("wall", "cpu")
"""Real time, or the processor's time of the process, which stands still while others run."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An implementation that could take part; where its package is missing or unfit, the reason says why."""

    name: str
    package: str
    version: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """What one contender came to, in the scenario's unit; ``facts`` are counts such as tokens hit."""

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
    """A scenario: who came to what, the limit of the same run, and the target.

    ``limit`` is what the machine itself needs for ``limit_of``. ``target`` is a promise about one machine
    (docs/benchmarks.md); ``ratio`` is ours to the best peer, and holds on others, too.
    ``code`` tells edited benchmarks apart. Up to the ratio ``accepted``, which is 1 nearly everywhere, being
    behind is no regression, ``because`` of something that is not a matter of speed.
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


@dataclass(frozen=True, slots=True)
class PeerComparison:
    """The document; ``machine`` is what pytest-benchmark's ``machine_info`` has, too."""

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
    """Sum up the samples of one contender, at least one, in the scenario's unit."""
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
    """Return the smallest sample that is not below so many percent of all."""
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
    """Compare ours with the best peer.

    Parameters
    ----------
    id, title, unit, statistic, target, limit_of, code
        As in `ScenarioRow`.
    samples : mapping of str to sequence of float
        Of each contender in the unit, taken in the same rounds; `OURS` is among them.
    limit_samples : sequence of float
        What the machine needs, in the unit, at least one.
    facts : mapping of str to mapping
        Counts of each contender.
    burst : int, default 1
        Samples of one turn.
    accepted : float, default 1
        As in `ScenarioRow`.
    because : str
        As in `ScenarioRow`.

    Returns
    -------
    ScenarioRow
        The best peer is the one with the lowest value.
    """
    standings = [
        make_standing(name, series, statistic, facts.get(name, {})) for name, series in samples.items()
    ]
    ours = next(one for one in standings if one.contender == OURS)
    peers = [one for one in standings if one.contender != OURS]
    best = min(peers, key=lambda one: one.value, default=None)
    ratio = (
        None
        if best is None
        else estimate_ratio(samples[OURS], samples[best.contender], statistic, burst=burst)
    )
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
        reached=ours.value <= target,
        accepted=accepted,
        because=because,
    )


def _verdict(ratio: Ratio | None) -> str:
    if ratio is None:
        return "alone"
    if ratio.high < 1:
        return "ahead"
    return "behind" if ratio.low > 1 else "level"


def peers_schema() -> dict[str, Any]:
    """Describe the document as a JSON schema (draft 2020-12)."""
    found = schema_of(PeerComparison)
    found["properties"]["schema"] = {"const": SCHEMA}
    found["properties"]["version"] = {"const": VERSION}
    found["properties"]["clock"] = {"enum": list(CLOCKS)}
    row = found["properties"]["scenarios"]["items"]["properties"]
    row["verdict"] = {"enum": list(VERDICTS)}
    row["statistic"] = {"enum": list(STATISTICS)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pymllm peers", **found}


def make_document(comparison: PeerComparison) -> dict[str, Any]:
    """Put a comparison into plain data, valid under `peers_schema`."""
    plain: dict[str, Any] = encode(comparison)
    return plain
