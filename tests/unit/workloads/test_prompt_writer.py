"""Texts of fresh blocks, requests in order, and the agenda."""

from __future__ import annotations

import random

from pymllm.workloads.request import Request
from pymllm.workloads.synthetic import EMPTY_TEXT, Agenda, PromptWriter, Text, long_tailed


def test_extending_fills_the_partial_block_first() -> None:
    """A longer text begins with the shorter one, token by token."""
    writer = PromptWriter("test", 0, block_tokens=4)
    short = writer.extend(EMPTY_TEXT, 6)
    longer = writer.extend(short, 1)
    longest = writer.extend(longer, 6)
    assert (short, longer) == (Text((0, 1), 6), Text((0, 1), 7))
    assert longest == Text((0, 1, 2, 3), 13)
    prompts = [writer.request(0, text, 1).prompt().tolist() for text in (short, longer, longest)]
    assert prompts[2][:7] == prompts[1]
    assert prompts[1][:6] == prompts[0]


def test_two_extensions_part_at_the_end_of_the_block() -> None:
    """What two branches add is new to both, but for the rest of a partial block."""
    writer = PromptWriter("test", 0, block_tokens=4)
    trunk = writer.extend(EMPTY_TEXT, 6)
    left, right = writer.extend(trunk, 8), writer.extend(trunk, 8)
    assert set(left.block_ids) & set(right.block_ids) == set(trunk.block_ids)


def test_requests_count_from_zero() -> None:
    """Ids are unique in a workload; arrivals keep whole microseconds."""
    writer = PromptWriter("test", 0, block_tokens=4)
    text = writer.extend(EMPTY_TEXT, 3)
    assert [writer.request(1.23456789, text, 2, "a") for _ in range(2)] == [
        Request(0, 1.235, 3, 2, (0,), 4, "a"),
        Request(1, 1.235, 3, 2, (0,), 4, "a"),
    ]


def test_name_and_seed_both_decide() -> None:
    """X3: equal names and seeds draw alike, others do not."""
    draws = {
        (name, seed): PromptWriter(name, seed).draw.random() for name in ("chat", "agent") for seed in (0, 1)
    }
    assert len(set(draws.values())) == 4
    assert PromptWriter("chat", 1).draw.random() == draws["chat", 1]


def test_agenda_goes_by_time_then_by_entry() -> None:
    """X3: what was entered first for one time happens first; entries are never compared."""
    agenda = Agenda[object]("first")
    entries = [object() for _ in range(20)]
    for entry in entries:
        agenda.push(5.0, entry)
    agenda.push(4.0, "early")
    assert [agenda.pop() for _ in range(2)] == [(0.0, "first"), (4.0, "early")]
    assert [agenda.pop()[1] for _ in entries] == entries


def test_long_tailed_numbers_stay_in_bounds() -> None:
    """Mostly small, never 0, never above the most, and both ends are met."""
    draw = random.Random(0)
    numbers = [long_tailed(draw, 10, 40) for _ in range(2000)]
    assert (min(numbers), max(numbers)) == (1, 40)
    assert 5 < sum(numbers) / len(numbers) < 15
