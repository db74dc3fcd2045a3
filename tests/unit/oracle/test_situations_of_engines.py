"""Which situations of an engine's life a configuration must reach."""

from __future__ import annotations

from pymllm.adapters.base import header_of
from pymllm.adapters.registry import make_adapter
from pymllm.history.files import Config, Header
from pymllm.oracle.situations import expected_situations

WINDOWED: Config = {"page_size": 1, "window": 4, "pool": "swa", "slots": 24, "swa_slots": 18}


def lives(header: Header) -> frozenset[str]:
    return expected_situations(header, of_engine=True)


def header(adapter: str, **changes: int | str | None) -> Header:
    return header_of(make_adapter(adapter, {**WINDOWED, **changes}))


def test_what_a_run_must_meet_depends_on_the_cache() -> None:
    """E3: every exit everywhere; sharing and windows where there are such."""
    full, windowed = header("radix", window=None), header("radix-window")
    without_halves, chunk = header("radix-window", pool="token"), header("chunk", retains=False)
    every_exit = lives(chunk) & lives(full)
    assert len(every_exit) == 17
    assert lives(chunk) - every_exit == {"the cache takes nothing of what was computed"}
    assert "two requests hold one prefix" in lives(full)
    dead, returned = "cached tokens lie behind a dead window", "halves behind a window are returned"
    assert lives(windowed) - lives(full) == {dead, returned}
    assert lives(without_halves) - lives(full) == {dead}


def test_what_hybrids_must_meet_depends_on_their_track_slots() -> None:
    """M7: with one there are never two states, and with more than pages they never run out."""
    full = lives(header("radix", window=None))
    one, few, many = (
        lives(header("mamba", window=None, pool="token", track_slots=track_slots))
        for track_slots in (1, 3, 32)
    )
    assert full < one < few
    assert full < many < few
    assert few - one == {
        "the track slot of a state that is cached meanwhile is given back",
        "a request is retracted with a track slot in its hands",
        "an eviction spares a locked state",
        "a state goes while its KV is held",
        "several states lie on one path",
    }
    assert few - many == {
        "track slots run out between match and insert",
        "every state is locked and an eviction is asked for",
        "a snapshot is left out for want of a track slot",
        "an eviction makes room for a snapshot",
    }


def test_what_cannot_be_compared_is_not_expected() -> None:
    """M7: a configuration that does not say how many track slots there are."""
    known = lives(Header("x", "prefix", {"pool": "token"}, ("engine", "mamba")))
    assert "a request resumes from a state" in known
    assert "an eviction makes room for a snapshot" not in known
