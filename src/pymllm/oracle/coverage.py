"""The registry of coverage goals: states worth reaching, each with the laws or bugs that it is about.

A search that never filled its pool says nothing of full pools. So judges count the goals that a program
meets (`pymllm.oracle.evidence`), and here stands which of them a long run of a configuration must have
reached. A coverage goal is told by its name, which never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Collection

from pymllm.history.files import Config, Header
from pymllm.oracle.laws import (
    block_index,
    block_kind,
    buffers,
    event_goals,
    keys,
    request_kind,
    rows,
    slots,
    state_pools,
)
from pymllm.oracle.laws.goal import CoverageGoal
from pymllm.oracle.laws.prefix_goals import ENGINE_GOALS, PREFIX_GOALS

GOALS: tuple[CoverageGoal, ...] = (
    *slots.GOALS,
    *rows.GOALS,
    *buffers.GOALS,
    *state_pools.GOALS,
    *keys.GOALS,
    *PREFIX_GOALS,
    *ENGINE_GOALS,
    *block_kind.GOALS,
    *request_kind.GOALS,
    *request_kind.ENGINE_GOALS,
    *block_index.GOALS,
    *event_goals.GOALS,
)
"""Every coverage goal, once for each kind of implementation, and again for each that an engine reaches."""

NAMES: frozenset[str] = frozenset(goal.name for goal in GOALS)
"""Names of all coverage goals that a judge may count."""


def goals_of(kind: str, *, of_engine: bool = False) -> tuple[CoverageGoal, ...]:
    """Return the coverage goals of a kind: those that any caller can reach, or those of a running engine."""
    return tuple(one for one in GOALS if one.kind == kind and one.of_engine == of_engine)


def expected_names(
    kind: str, config: Config, capabilities: Collection[str], *, of_engine: bool = False
) -> frozenset[str]:
    """Return the names of the coverage goals that a long run must reach, as `expected_goals` does."""
    known = goals_of(kind, of_engine=of_engine)
    return frozenset(one.name for one in known if one.is_expected_of(config, capabilities))


def expected_goals(header: Header, *, of_engine: bool = False) -> frozenset[str]:
    """Return the names of the coverage goals that a long run must reach, given the header of its history.

    ``of_engine`` says whether an engine's life is what runs (`pymllm.machines.lifecycle`).
    """
    return expected_names(header.kind, header.config, header.claims, of_engine=of_engine)
