"""The smoke test: an adapter's fault is said to be the adapter's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.adapters.registry import OWN, AdapterEntry, find_adapter
from pymllm.conformance.smoke import SmokeFailure, SmokeReport, smoke_test, try_adapter
from pymllm.errors import AdapterError


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
