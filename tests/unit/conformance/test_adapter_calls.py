"""What adapters raise, by the name of the call."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from pymllm.adapters.base import Adapter, BaseAdapter, header_of
from pymllm.adapters.registry import find_adapter
from pymllm.conformance import adapter_calls
from pymllm.conformance.adapter_calls import (
    apply_step,
    audit_adapter,
    build_adapter,
    close_adapter,
    closing,
    load_class,
)
from pymllm.conformance.time_limit import AdapterCall, HungError
from pymllm.errors import AdapterError, InvariantViolation, ProgramError, UsageError
from pymllm.history.files import History, Step
from pymllm.history.operations import Clear
from pymllm.history.outcomes import Done, Outcome

HISTORY = History(header_of(type("Rows", (BaseAdapter,), {"KIND": "rows"})("x", {})))


def adapter_with(**methods: Callable[..., object]) -> Adapter:
    return type("Odd", (BaseAdapter,), {"KIND": "rows", **methods})("odd", {})


def fail(*arguments: object) -> None:
    raise ValueError("stuck")


def leave(*arguments: object) -> None:
    sys.exit(3)


def leave_off(*arguments: object) -> None:
    raise GeneratorExit


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


class UnreadableError(Exception):
    """Cannot be put into words."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def fail_without_words(*arguments: object) -> None:
    raise UnreadableError


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (
            lambda: apply_step(adapter_with(apply=fail), 3, Clear()),
            "step 3, Clear() raised ValueError",
        ),
        (
            lambda: audit_adapter(adapter_with(audit=fail), HISTORY),
            "its audit after step 0 raised",
        ),
        (lambda: close_adapter(adapter_with(close=fail)), "close raised ValueError: stuck (line "),
        (lambda: close_adapter(adapter_with(close=leave)), "close tried to end the process, SystemExit(3)"),
        (lambda: close_adapter(adapter_with(close=leave_off)), "close raised GeneratorExit (line "),
        (
            lambda: close_adapter(adapter_with(close=fail_without_words)),
            "close raised UnreadableError, which cannot be put into words (line ",
        ),
    ],
)
def test_an_error_is_named_with_its_call(act: Callable[[], object], words: str) -> None:
    """Nobody has to read a traceback to see what was asked."""
    with pytest.raises(AdapterError) as caught:
        act()
    assert caught.value.message.startswith(words)
    assert caught.value.adapter == "odd"


@pytest.mark.parametrize(
    "error", [AdapterError("odd", "lost"), InvariantViolation("P1", "looked"), ProgramError("no such step")]
)
def test_what_says_whose_fault_it_is_passes(error: Exception) -> None:
    """An adapter may know it best."""

    def apply(*arguments: object) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        apply_step(adapter_with(apply=apply), 1, Clear())
    assert caught.value is error


def test_an_interrupt_is_the_adapters_only_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it is the user's, who waits for a call to end."""
    with pytest.raises(KeyboardInterrupt):
        close_adapter(adapter_with(close=interrupt))
    monkeypatch.setattr(adapter_calls, "is_worker", lambda: True)
    with pytest.raises(AdapterError, match="close raised KeyboardInterrupt"):
        close_adapter(adapter_with(close=interrupt))


def test_an_answer_comes_through(tiny: str) -> None:
    """Classes, adapters and outcomes."""
    assert load_class(find_adapter(f"{tiny}:TinyRows")).KIND == "rows"
    adapter = build_adapter(f"{tiny}:TinyRows")
    assert apply_step(adapter, 1, Clear()) == Outcome(Done(), (), adapter.sizes())
    assert audit_adapter(adapter, HISTORY) == ()
    with pytest.raises(UsageError, match="no adapter 'tiny'"):
        build_adapter("tiny")


def test_a_class_that_cannot_be_built_says_so(tiny: str) -> None:
    """With the configuration, and the name of the error."""
    with pytest.raises(AdapterError, match=r"with {'max_reqs': 3}: KeyError: 'max_context_len'"):
        build_adapter(f"{tiny}:LacksSetting")


def test_the_first_error_is_the_one_that_is_told() -> None:
    """An adapter in disorder cannot be closed either; one that hung is not asked once more."""
    closed: list[int] = []
    with pytest.raises(KeyError, match="first"), closing(adapter_with(close=fail)):
        raise KeyError("first")
    with pytest.raises(AdapterError, match="close raised"), closing(adapter_with(close=fail)):
        pass
    with pytest.raises(HungError), closing(adapter_with(close=lambda self: closed.append(1))):
        raise HungError("odd", "hung")
    assert closed == []


def test_the_program_of_a_call_ends_with_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved of a call that never came back."""
    calls: list[AdapterCall[Outcome]] = []
    monkeypatch.setattr(adapter_calls, "answer_of", calls.append)
    apply_step(adapter_with(), 5, Clear(), HISTORY)
    apply_step(adapter_with(), 5, Clear())
    with_history, without = (call.program() for call in calls)
    assert with_history == History(HISTORY.header, [Step(5, Clear())])
    assert without is None
    audit_adapter(adapter_with(), HISTORY)
    close_adapter(adapter_with(), HISTORY)
    assert [call.program() for call in calls[2:]] == [HISTORY, HISTORY]


def test_a_configuration_that_is_too_large_is_not_built() -> None:
    """X1: before the adapter is asked, which would fill the memory."""
    with pytest.raises(ProgramError, match="slots is 1,000,000,000,000; at most it is 1,048,576"):
        build_adapter("radix", {"page_size": 1, "window": None, "pool": "token", "slots": 10**12})
