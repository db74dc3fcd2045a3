"""Is an adapter sane? And the programs that are asked of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.adapters.base import CAPABILITIES
from pymllm.adapters.registry import OWN, AdapterEntry, find_adapter
from pymllm.conformance.smoke import (
    LEGAL_RESULTS,
    SmokeFailure,
    SmokeReport,
    make_sample,
    smoke_test,
    try_adapter,
)
from pymllm.errors import AdapterError
from pymllm.history.operations import KINDS, OPERATIONS_OF, AllocTrack, FreeTrack, Insert
from pymllm.history.outcomes import RESULTS


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_our_own_adapters_pass(entry: AdapterEntry) -> None:
    """Each of our classes can be examined in each configuration."""
    report = smoke_test(entry)
    assert report.name == entry.name
    assert report.configurations


def test_a_sane_adapter_passes(tiny: str) -> None:
    """Configurations come back with what each claims."""
    report = smoke_test(find_adapter(f"{tiny}:TinyRows"))
    assert report == SmokeReport(
        f"{tiny}:TinyRows",
        "rows",
        (
            ({"max_reqs": 3, "max_context_len": 4}, frozenset({"pool", "zeroed_rows"})),
            ({"max_reqs": 2, "max_context_len": 3}, frozenset({"pool", "zeroed_rows"})),
        ),
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Missing", "has no class 'Missing'"),
        ("NoConfigurations", "CONFIGURATIONS must be a sequence with one dict at least"),
        ("OddConfiguration", "an int, str, bool or None each, not {'max_reqs': 3.0}"),
        ("LacksSetting", "cannot be built with {'max_reqs': 3}: KeyError: 'max_context_len'"),
        ("JudgeLacksSetting", "a judge cannot be made for"),
        ("ClaimsMagic", "claims 'magic', which is no capability; there are pool"),
        ("ClaimsList", "capabilities must be a frozenset, not ['pool']"),
        ("ClaimsByChance", "differ in kind, configuration or claims"),
        ("Raises", " raised ZeroDivisionError: no way"),
        ("AnswersNone", "answered None, which is no Outcome"),
        ("AnswersMatched", "branching=None); it must be Table"),
        ("Forgets", "is unsupported (read_rows), although everything that it needs is claimed"),
        ("Refuses", "the simplest legal call failed with TypeError: takes a list"),
        ("SizesAreFloats", "the size 'size' is 3.0; sizes are integers by name"),
        ("EffectsAreList", "effects are []; they must be a tuple of Effect"),
        ("NotJSON", "JSON does not keep"),
        ("ListsInJSON", "JSON turns"),
        ("KnowsTooMuch", "although it claims no 'swa'; it must be Unsupported"),
    ],
)
def test_a_faulty_adapter_is_named(tiny: str, name: str, words: str) -> None:
    """The message says what was asked and what came back, and whose fault it is."""
    with pytest.raises(AdapterError) as caught:
        smoke_test(find_adapter(f"{tiny}:{name}"))
    assert words in caught.value.message
    assert caught.value.adapter == f"{tiny}:{name}"


def test_a_failed_smoke_test_tells_what_it_knows(tiny: str) -> None:
    """The kind says which laws are unknown; without a class not even that is known."""
    failure = try_adapter(find_adapter(f"{tiny}:Raises"))
    assert isinstance(failure, SmokeFailure)
    assert (failure.kind, "no way" in failure.message) == ("rows", True)
    failure = try_adapter(find_adapter("no_such_module_here:Cache"))
    assert isinstance(failure, SmokeFailure)
    assert failure.kind is None
    assert isinstance(try_adapter(find_adapter(f"{tiny}:TinyRows")), SmokeReport)


def test_a_program_that_does_not_speak_is_not_missing(tiny_program: Callable[..., str]) -> None:
    """It is there, and what it said is kept; one that cannot be started is missing."""
    silent = try_adapter(find_adapter(f"command:{tiny_program('hello', 'status-3')}"))
    assert isinstance(silent, SmokeFailure)
    assert (silent.kind, silent.is_missing) == (None, False)
    assert silent.conversation is not None
    assert silent.conversation.verdict == "crashed"
    gone = try_adapter(find_adapter("command:no-such-program-anywhere"))
    assert isinstance(gone, SmokeFailure)
    assert (gone.is_missing, gone.conversation) == (True, None)


def test_a_program_that_ends_in_its_smoke_test_is_told_of(tiny_program: Callable[..., str]) -> None:
    """The kind is known by then."""
    died = try_adapter(find_adapter(f"command:{tiny_program('op', 'kill')}"))
    assert isinstance(died, SmokeFailure)
    assert (died.kind, died.is_missing) == ("hashes", False)
    assert died.conversation is not None
    assert "! so long" in died.conversation.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_speaks_the_language_of_its_kind(kind: str) -> None:
    """Only operations of the kind, each with results that exist."""
    for step in make_sample(kind, {"page_size": 4, "track_slots": 1}, frozenset(CAPABILITIES)).values():
        assert type(step.operation) in OPERATIONS_OF[kind]
        assert set(LEGAL_RESULTS[type(step.operation)]) <= set(RESULTS)
        assert step.is_claimed


def test_what_is_not_claimed_is_asked_for_all_the_same() -> None:
    """It must be answered as unsupported; a cache without a pool stores the tokens themselves."""
    steps = make_sample("prefix", {"page_size": 1}, frozenset()).values()
    assert {step.needs for step in steps if not step.is_claimed} == {
        "pool",
        "hashes",
        "inspect",
        "faults",
        "mamba",
    }
    assert [step.operation.slots for step in steps if isinstance(step.operation, Insert)] == [None]


def test_a_key_comes_with_a_state_where_it_must() -> None:
    """M1: the state is the first track slot, and the second is given back after the reset."""
    for claims, has_state in (({"mamba"}, True), ({"mamba", "bare_inserts"}, False)):
        steps = make_sample("prefix", {"page_size": 1, "track_slots": 1}, claims)
        (insert,) = [step.operation for step in steps.values() if isinstance(step.operation, Insert)]
        assert (insert.state is not None) == has_state
        freed = [step.operation.slot.step for step in steps.values() if isinstance(step.operation, FreeTrack)]
        taken = [number for number, step in steps.items() if isinstance(step.operation, AllocTrack)]
        assert freed == taken[-1:]
        assert len(taken) == 1 + has_state


def test_track_slots_are_asked_for_where_there_are_some() -> None:
    """A pool without any has none to give."""
    for count in (0, 2):
        steps = make_sample("states", {"track_slots": count}, frozenset()).values()
        assert any(isinstance(step.operation, AllocTrack) for step in steps) == bool(count)
