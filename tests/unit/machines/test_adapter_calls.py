"""Calls of adapters: what they raise by the name of the call, and an end to those that never answer."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest

from pymllm.adapters.base import Adapter, BaseAdapter, header_of
from pymllm.adapters.process.conversation import seconds_per_answer
from pymllm.adapters.registry import find_adapter
from pymllm.errors import AdapterError, ConversationError, InvariantViolation, ProgramError, UsageError
from pymllm.history.files import History, Step
from pymllm.history.operations import Clear
from pymllm.history.outcomes import Done, Outcome
from pymllm.machines import adapter_calls
from pymllm.machines.adapter_calls import (
    EndedConversation,
    apply_step,
    audit_adapter,
    build_adapter,
    close_adapter,
    closing,
    ended_conversation,
    load_class,
)
from pymllm.work.time_limit import (
    AdapterCall,
    HungError,
    TookTooLong,
    call_in_progress,
    deadline,
    time_limit,
)

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
    """An error names the failed call, so that no traceback is needed."""
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
    with pytest.raises(AdapterError, match=r"with {'max_reqs': 3}: .*asks for 'max_context_len'"):
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
    """The program of a call that never came back ends with its step."""
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


def test_only_the_error_of_a_conversation_has_one() -> None:
    """Any other adapter has said nothing."""
    ended = ended_conversation(ConversationError("mine", "gave no answer", "hung", "> hello\n"))
    assert ended == EndedConversation("hung", "> hello\n")
    assert ended_conversation(AdapterError("mine", "no module")) is None


def call(make: Callable[[], object], **more: float) -> AdapterCall[object]:
    return AdapterCall("slow:Cache", make, lambda: "step 3", **more)


def test_what_answers_in_time_is_left_alone() -> None:
    """Its answer and its errors come through, and no alarm rings later."""
    with time_limit(0.05):
        assert call(lambda: 7).within_limit() == 7
        with pytest.raises(KeyError):
            call(lambda: {}["x"]).within_limit()
        time.sleep(0.1)
    assert call_in_progress() is None


def test_what_takes_too_long_is_left() -> None:
    """A call that takes too long is left with its adapter, step and time, and the handler is restored."""
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(0.05), pytest.raises(HungError) as caught:
        call(lambda: time.sleep(60)).within_limit()
    assert str(caught.value) == (
        "adapter slow:Cache: hung in step 3: no answer within 0.05 s (--timeout waits longer)"
    )
    assert signal.getsignal(signal.SIGALRM) is before


def test_an_adapter_that_catches_its_alarm_hears_another() -> None:
    """Once is not enough for a loop that tries again whatever happens."""
    caught: list[BaseException] = []

    def stubborn() -> None:
        while True:
            try:
                time.sleep(60)
            except BaseException as error:
                caught.append(error)
                if len(caught) == 2:
                    raise

    with time_limit(0.05), pytest.raises(HungError):
        call(stubborn).within_limit()
    assert len(caught) == 2


def test_a_process_that_was_stopped_is_not_late() -> None:
    """Ctrl-Z, or a machine that sleeps: of all the rings meanwhile one is heard."""

    def stopped() -> str:
        until = time.monotonic() + 0.5
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        time.sleep(until - time.monotonic())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        return "answered"

    with time_limit(0.2):
        assert call(stopped).within_limit() == "answered"


def test_some_calls_have_more_time() -> None:
    """An import does not answer as fast as a lookup."""
    with time_limit(0.05):
        assert call(lambda: time.sleep(0.1), seconds_least=60).within_limit() is None


def test_without_a_limit_nothing_is_watched() -> None:
    """0 is none, and so is any number where signals cannot be had."""
    seen: list[object] = []
    with time_limit(0):
        call(lambda: seen.append(call_in_progress())).within_limit()

    def beside() -> None:
        with time_limit(0.01):
            call(lambda: (time.sleep(0.05), seen.append(call_in_progress()))).within_limit()

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join(60)
    assert seen == [None, None]


def test_another_thread_sees_how_much_time_is_left() -> None:
    """Where the one that calls hears nothing."""
    left: list[float] = []

    def look() -> None:
        time.sleep(0.05)
        pending = call_in_progress()
        assert pending is not None
        assert pending.program() is None
        left.append(pending.seconds_left)

    with time_limit(60):
        thread = threading.Thread(target=look)
        thread.start()
        call(lambda: thread.join(30)).within_limit()
    assert 0 < left[0] < 60


def test_an_alarm_that_comes_late_is_not_heard() -> None:
    """Between two calls it has nothing to end."""
    with time_limit(60):
        signal.raise_signal(signal.SIGALRM)
        assert call(lambda: 1).within_limit() == 1


def test_a_program_in_another_process_has_the_limit_too() -> None:
    """A program in another process gets most of the limit, so that its words are kept; threads, too."""
    seen: list[float | None] = []
    with time_limit(10):
        seen.append(seconds_per_answer())
        thread = threading.Thread(target=lambda: seen.append(seconds_per_answer()))
        thread.start()
        thread.join()
        with time_limit(0):
            seen.append(seconds_per_answer())
    assert seen == [9.0, 9.0, None]


def test_an_endless_loop_is_left() -> None:
    """By what no implementation can take for an answer."""

    def spin() -> None:
        with deadline(0.05):
            while True:
                pass

    with pytest.raises(TookTooLong, match=r"still running after 0\.05 s"):
        spin()
    assert not issubclass(TookTooLong, Exception)


def test_only_work_counts_until_the_wait_is_ten_times_as_long() -> None:
    """A call that sleeps may exceed its deadline for a while, and a call that waits for ever is stopped."""
    with deadline(0.05):
        time.sleep(0.2)
    with pytest.raises(TookTooLong), deadline(0.05):
        time.sleep(60)


class _Stubborn:
    """Works while it is destroyed, where Python prints what is raised, and goes on."""

    def __del__(self) -> None:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_alarm_that_was_swallowed_rings_again() -> None:
    """A search went on for ever: its only alarm rang in the callback of a reference."""

    def spin() -> None:
        with deadline(0.05):
            _Stubborn()
            while True:
                pass

    with pytest.raises(TookTooLong):
        spin()


def test_what_ends_in_time_is_left_alone() -> None:
    """A call that ends in time leaves the alarm off and the earlier handler in place."""
    before = signal.getsignal(signal.SIGALRM)
    with deadline(60):
        assert signal.getsignal(signal.SIGALRM) != before
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_other_threads_have_no_limit() -> None:
    """They cannot set the alarm, and go on without."""
    done: list[int] = []

    def work() -> None:
        with deadline(60):
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]


@pytest.mark.parametrize("error", [None, ZeroDivisionError("in the middle")])
def test_what_comes_of_clearing_up_is_no_answer(error: Exception | None) -> None:
    """A program that was torn out of the middle of something shows anything, or nothing."""

    def clear_up() -> None:
        with deadline(0.05):
            try:
                while True:
                    pass
            except TookTooLong:
                if error is not None:
                    raise error from None

    with pytest.raises(TookTooLong):
        clear_up()
