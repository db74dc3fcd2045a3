"""Events of caches, blocks and requests: the fold is what is cached, and whatever else is told breaks X10."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pymllm.adapters.own_blocks import Blocks
from pymllm.adapters.own_caches import Mamba, Radix, WindowedRadix
from pymllm.adapters.own_requests import Requests
from pymllm.errors import ProgramError
from pymllm.history.files import Config, Header, History, Step
from pymllm.history.operations import (
    AddRequest,
    Alloc,
    AllocBlocks,
    AllocTrack,
    Evict,
    Insert,
    Key,
    Match,
    Operation,
    RegisterBlocks,
    ReleaseBlocks,
    Reset,
    RunStep,
    Span,
    TakeEvents,
)
from pymllm.history.outcomes import CacheEvent, Done, Outcome, ToldEvents
from pymllm.oracle.judge import judge_steps

Change = Callable[[tuple[CacheEvent, ...]], tuple[CacheEvent, ...]]

LONG = Key((1, 2, 3, 4), "ns")
PREFIX = (
    *(Alloc(4), Insert(LONG, (Span(1, 0, 4),)), TakeEvents()),
    *(Match(Key((1, 2), "ns")), Evict(2), TakeEvents()),
)
BLOCKS = (
    *(AllocBlocks(3), RegisterBlocks((Span(1, 0, 3),), (11, 22, 33)), TakeEvents()),
    *(ReleaseBlocks((Span(1, 0, 3),)), Reset(), TakeEvents()),
)
REQUESTS = (AddRequest((1, 2, 3, 4, 5, 6, 7, 8, 9)), RunStep(), TakeEvents())

KINDS: dict[str, tuple[Any, Config, tuple[Operation, ...]]] = {
    "prefix": (Radix, {"pool": "token", "page_size": 1, "events": True}, PREFIX),
    "blocks": (Blocks, {"slots": None}, BLOCKS),
    "requests": (Requests, {"mamba_slots": 64, "hash_digits": 2}, REQUESTS),
}


def play(adapter_class: Any, wanted: Config, operations: tuple[Operation, ...]) -> History:
    """Play a program on the first configuration that fits."""
    configurations = (it for it in adapter_class.CONFIGURATIONS if wanted.items() <= it.items())
    adapter = adapter_class("x", next(configurations))
    steps = [Step(at, it, adapter.apply(at, it)) for at, it in enumerate(operations, 1)]
    header = Header("x", adapter.KIND, adapter.config, tuple(sorted(adapter.capabilities)))
    return History(header, tuple(steps))


def changed(history: History, at: int, change: Change) -> list[Step]:
    """Change the events that one step told."""
    steps = list(history.steps)
    outcome = steps[at - 1].outcome
    assert outcome is not None
    assert isinstance(outcome.result, ToldEvents)
    told = dataclasses.replace(outcome, result=ToldEvents(change(outcome.result.events)))
    steps[at - 1] = dataclasses.replace(steps[at - 1], outcome=told)
    return steps


def verdict(history: History, steps: list[Step]) -> tuple[str, str]:
    """The law that is broken, and what was found; nothing where none is."""
    _, found = judge_steps(history.header, steps)
    return ("", "") if found is None else (found[1].law, str(found[1]))


def with_(at: int, **fields: Any) -> Change:
    """Change an event, by its place."""
    return lambda events: (*events[:at], replace(events[at], **fields), *events[at + 1 :])


def without(at: int) -> Change:
    return lambda events: (*events[:at], *events[at + 1 :])


@pytest.mark.parametrize("kind", KINDS)
def test_what_we_tell_is_what_is_cached(kind: str) -> None:
    """Each of our classes, and the law is tested."""
    history = play(*KINDS[kind])
    evidence, found = judge_steps(history.header, list(history.steps))
    assert found is None
    assert evidence.exercised["X10"] > 0
    assert evidence.reached["events tell of removed blocks"] == (kind == "prefix")
    assert evidence.reached["events tell of a reset with blocks cached"] == (kind == "blocks")


@pytest.mark.parametrize(
    ("kind", "step", "change", "words"),
    [
        ("prefix", 3, without(1), "not (1,), (1, 2), (1, 2, 3), ..."),
        ("prefix", 3, with_(1, extra_key="other"), "what is not: (1,)"),
        ("prefix", 3, with_(1, tokens=(1, 2, 3)), "the tokens of its blocks"),
        ("prefix", 3, with_(1, tokens=None), "the tokens of its blocks"),
        ("prefix", 3, with_(1, tokens=(1, 2, 9, 4)), "what is not: (1, 2, 9)"),
        ("prefix", 3, with_(1, parent="else"), "the parent of its first block"),
        ("prefix", 3, lambda events: (*events, events[1]), "told once while it is there"),
        (
            "prefix",
            3,
            lambda events: (*events, replace(events[1], hashes=tuple("abcd"))),
            "the hash of a block",
        ),
        ("prefix", 3, lambda events: (*events, replace(events[1], part="window")), "parts that events tell"),
        ("prefix", 6, without(0), "what is not: (1, 2, 3)"),
        ("prefix", 6, lambda events: (*events, events[0]), "the removal of kv"),
        ("prefix", 6, lambda events: (*events, CacheEvent("cleared")), "not (1,), (1, 2)"),
        ("blocks", 3, with_(3, hashes=(44,)), "what is not: 44"),
        ("blocks", 3, with_(2, parent=None), "what is not: 22"),
        ("blocks", 3, with_(2, tokens=(1,)), "the tokens of its blocks"),
        ("blocks", 6, without(0), "what is not: 11, 22, 33"),
        ("requests", 3, with_(1, tokens=(1, 2, 3, 9)), "what is not: "),
        ("requests", 3, with_(2, hashes=(5,)), "what is not: 5"),
        ("requests", 3, without(2), "not "),
    ],
)
def test_anything_else_breaks_the_law(kind: str, step: int, change: Change, words: str) -> None:
    """X10: events too few, too many, out of order, or of other blocks."""
    history = play(*KINDS[kind])
    law, found = verdict(history, changed(history, step, change))
    assert law == "X10"
    assert words in found


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("prefix", with_(1, kind="moved"), "an event has kind 'moved' and part 'kv'"),
        ("prefix", with_(1, part="disk"), "an event has kind 'stored' and part 'disk'"),
        ("requests", with_(1, tokens=((1, 2),) * 4), "an event tells tokens"),
        ("requests", with_(1, tokens=(1, 2, 3, -4)), "an event tells tokens"),
    ],
)
def test_an_event_without_meaning_is_the_adapters(kind: str, change: Change, words: str) -> None:
    """No law is broken by what nobody can read."""
    history = play(*KINDS[kind])
    with pytest.raises(ProgramError, match=words.replace("(", r"\(")):
        judge_steps(history.header, changed(history, 3, change))


def test_windows_and_states_are_parts_of_their_own() -> None:
    """They come and go while the KV stays."""
    key = Key((*range(1, 13),))
    windowed = play(
        *(WindowedRadix, {"pool": "swa", "page_size": 1, "window": 6, "events": True}),
        (Alloc(12), Insert(key, (Span(1, 0, 12),)), Evict(0, 3), TakeEvents()),
    )
    assert verdict(windowed, list(windowed.steps)) == ("", "")
    assert verdict(windowed, changed(windowed, 4, lambda events: events[:2]))[0] == "X10"
    program = (
        *(Alloc(4), AllocTrack(), Insert(Key((1, 2, 3, 4)), (Span(1, 0, 4),), state=Span(2, 0, 1))),
        TakeEvents(),
    )
    hybrid = play(Mamba, {"pool": "token", "page_size": 1, "track_slots": 3, "events": True}, program)
    assert verdict(hybrid, list(hybrid.steps)) == ("", "")
    assert "state of blocks" in verdict(hybrid, changed(hybrid, 4, without(2)))[1]


@pytest.mark.parametrize("kind", KINDS)
def test_who_tells_none_is_not_asked(kind: str) -> None:
    """The claim has to be made; and an answer that is none breaks the law."""
    history = play(*KINDS[kind])
    claims = tuple(it for it in history.header.capabilities if it != "events")
    with pytest.raises(ProgramError, match="events are not claimed"):
        judge_steps(dataclasses.replace(history.header, capabilities=claims), list(history.steps))
    steps = list(history.steps)
    steps[2] = dataclasses.replace(steps[2], outcome=Outcome(Done(), (), steps[2].outcome.sizes))  # type: ignore[union-attr]
    assert verdict(history, steps)[0] == "X10"
