"""Adapters and programs that are tried before they are judged."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pymllm.adapters.base import CAPABILITIES
from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.process import VERDICTS
from pymllm.adapters.process.conversation import answer_limit
from pymllm.adapters.registry import OWN, find_adapter
from pymllm.errors import AdapterError, UsageError
from pymllm.history.operations import KINDS, OPERATIONS_OF, AllocTrack, FreeTrack, Insert
from pymllm.history.outcomes import RESULTS
from pymllm.machines.smoke import (
    LEGAL_RESULTS,
    SmokeFailure,
    SmokeReport,
    make_sample,
    smoke_test,
    try_adapter,
)
from pymllm.search import protocol_check
from pymllm.search.protocol_check import check_protocol


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
        (
            "LacksSetting",
            "asks for 'max_context_len', which is not in it; add it to LacksSetting.CONFIGURATIONS",
        ),
        ("JudgeLacksSetting", "a judge cannot be made for"),
        ("ClaimsMagic", "claim() returned 'magic', which is no capability; there are pool"),
        ("ClaimsList", "capabilities must be a frozenset, not ['pool']"),
        ("ClaimsByChance", "differ in claims"),
        ("Raises", " raised ZeroDivisionError: no way"),
        ("AnswersNone", "answered None, which is not an Outcome"),
        ("AnswersMatched", "branching=None); it must be Table"),
        ("Forgets", "is unsupported (read_rows), although everything that it needs is claimed"),
        ("Refuses", "a plain legal call failed with TypeError: takes a list"),
        ("SizesAreFloats", "the size 'size' is 3.0; sizes are integers by name"),
        ("EffectsAreList", "effects are []; they must be a tuple of Effect"),
        ("NotJSON", "JSON does not keep"),
        ("ListsInJSON", "JSON turns"),
        ("KnowsTooMuch", "although it claims no 'swa'; it must be Unsupported"),
    ],
)
def test_a_faulty_adapter_is_named(tiny: str, name: str, words: str) -> None:
    """The message names the faulty adapter, the question, and its wrong answer."""
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
    """A silent program is not missing, and its words are kept; a program that cannot start is missing."""
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
        "events",
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


EXAMPLES = Path(__file__).parents[3] / "examples" / "protocol"


def test_a_right_program_is_asked_everything_and_nothing_is_wrong() -> None:
    """Each configuration one by one and in a batch, what it cannot know, the clock, and the end."""
    report = check_protocol(f"command:{shlex.join([sys.executable, '-S', str(EXAMPLES / 'page_cache.py')])}")
    assert report.problems == ()
    assert report.program is not None
    assert report.program.name == "page-cache"
    told = [(exchange.said, exchange.answered) for exchange in report.exchanges]
    assert told.count(("start", "started")) == 4
    assert told.count(("malformed", "outcome, unsupported")) == 2
    assert told.count(("insert", "outcome, inserted")) == 2  # a batch names no slots
    assert told.count(("reset", "outcome, done")) == 4
    assert told.count(("advance", "advanced")) == sum(
        said not in ("hello", "start", "advance", "bye") for said, _ in told
    )
    assert told[-1] == ("bye", "status 0")
    assert [exchange.line for exchange in report.exchanges] == list(range(1, len(told) + 1))


def test_a_program_that_audits_is_asked_for_one(tiny_program: Callable[..., str]) -> None:
    """Of another kind."""
    report = check_protocol(f"command:{tiny_program()}")
    said = [exchange.said for exchange in report.exchanges]
    assert "audit" in said
    assert said.count("hash_bytes") == 2
    # It does one operation of its kind only, and says so: what is claimed must be there.
    assert {exchange.said for exchange in report.problems} == {
        "slice_key",
        "pick_token",
        "hash_page",
        "hash_int64",
    }


@pytest.mark.parametrize(
    ("where", "behaviour", "said", "answered", "words", "advice"),
    [
        (
            "hello",
            "garbage",
            "hello",
            "not JSON",
            "'so what?' is not JSON",
            "nothing else; logs go to stderr",
        ),
        ("hello", "no-object", "hello", "not a message", "must be an object", "pymllm schema protocol"),
        ("hello", "no-kind", "hello", "not a message", "kind is 'teapot'", "pymllm schema protocol"),
        ("hello", "protocol-9", "hello", "hello", "protocol is 9; it must be 1", "speak protocol 1"),
        ("hello", "no-claim", "hello", "hello", "'flying' is no capability", "there are pool"),
        ("hello", "kill", "hello", "nothing", "was ended by SIGKILL", "run it by hand"),
        ("hello", "hang", "hello", "nothing", "gave no answer", "flush standard output"),
        ("start", "error", "start", "error", "cannot go on: no more", "answer unsupported to what"),
        ("start", "other", "start", "advanced", "the answer must be started", "answer in order"),
        ("op", "wrong-step", "slice_key", "outcome, done", "step is 99; it must be 1", "answer in order"),
        (
            "op",
            "wrong-form",
            "slice_key",
            "not a message",
            "field 'value' is missing",
            "pymllm schema protocol",
        ),
        (
            "op",
            "wrong-result",
            "slice_key",
            "outcome, done",
            "it must be Tokens",
            "claim only what the program can do",
        ),
        ("op", "wrong-result", "malformed", "outcome, done", "answered Done()", "answer unsupported"),
        ("bye", "status-3", "bye", "status 3", "after bye: status 3", "end with status 0"),
        ("bye", "hang", "bye", "it did not end", "after bye: it did not end", "end with status 0"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(
    tiny_program: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    behaviour: str,
    said: str,
    answered: str,
    words: str,
    advice: str,
) -> None:
    """And with the line that has it."""
    if behaviour == "hang":
        monkeypatch.setattr("pymllm.adapters.process.channel._FAREWELL", 0.2)
    with answer_limit(0.8 if behaviour == "hang" and where == "hello" else 20):
        report = check_protocol(f"command:{tiny_program(where, behaviour)}")
    assert any(
        words in (found.problem or "") and advice in (found.advice or "")
        for found in report.problems
        if (found.said, found.answered) == (said, answered)
    )
    assert report.conversation.startswith('> {"say":"hello"') or report.conversation.startswith("# ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('cache.clock += message["ticks"]', "pass"), "the clock shows 0; it must show 1"),
        (('"capabilities": claims', '"capabilities": ["flying", *claims]'), "'flying' is no capability"),
        (('"slots": taken[: op["tokens"]]', '"slots": ["one"]'), "must be an integer"),
        (('"slots": 48', '"slots": 47'), "slots is 47; it must be a multiple of page_size, 4"),
        (('"window": None', '"window": 3'), "cannot be judged: a cache with a window claims swa"),
    ],
)
def test_the_rest_is_asked_whatever_is_wrong_with_one_answer(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    """After a wrong answer the rest is asked, but for steps that name slots of no answer."""
    text = (EXAMPLES / "page_cache.py").read_text(encoding="utf-8")
    assert change[0] in text
    (tmp_path / "wrong.py").write_text(text.replace(*change), encoding="utf-8")
    report = check_protocol(f"command:{shlex.join([sys.executable, '-S', str(tmp_path / 'wrong.py')])}")
    assert any(words in (problem.problem or "") for problem in report.problems)
    assert report.exchanges[-1].said == "bye"


def test_an_answer_may_be_wrong_in_two_ways(tiny_program: Callable[..., str]) -> None:
    """Each stands there, with the same line."""
    report = check_protocol(f"command:{tiny_program('op', 'wrong-step')}")
    first, second = [problem for problem in report.problems if problem.said == "slice_key"][:2]
    assert first.line == second.line
    assert first.problem != second.problem


def test_there_is_advice_for_every_verdict() -> None:
    """Whatever a program does instead of answering."""
    assert set(protocol_check._ADVICE) == set(VERDICTS)


def test_what_cannot_be_started_cannot_be_checked() -> None:
    """X1: that is no matter of the protocol."""
    with pytest.raises(AdapterError, match="cannot be started"):
        check_protocol("command:no-such-program-anywhere")
    with pytest.raises(UsageError, match="names no program"):
        check_protocol("command:")
