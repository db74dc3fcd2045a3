"""The protocol as it is spoken."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pymllm.adapters.process.conversation import Asked, Conversation, answer_limit, seconds_per_answer
from pymllm.adapters.process.messages import LINE_LIMIT, Audited
from pymllm.errors import ConversationError, ProgramError
from pymllm.history.outcomes import Number, Outcome, Unsupported

EXAMPLE = Path(__file__).parents[4] / "examples" / "protocol" / "page_cache.py"
HASH = {"op": "hash_bytes", "data": "abcd"}


@contextmanager
def speaking_with(command: str) -> Iterator[Conversation]:
    conversation = Conversation("mine", shlex.split(command))
    try:
        yield conversation
    finally:
        conversation.end()


def test_a_program_introduces_itself_starts_does_looks_and_parts(tiny_program: Callable[..., str]) -> None:
    """Everything once."""
    with speaking_with(tiny_program()) as conversation:
        assert (conversation.program.name, conversation.program.kind) == ("tiny", "hashes")
        assert conversation.start({}, 0) == {"extra_key"}
        batch = [Asked(1, HASH), Asked(4, {"op": "slice_key"}), Asked(5, HASH)]
        conversation.ask(batch)
        told = [conversation.outcome_of(asked) for asked in batch]
        assert told == [Outcome(Number(4)), Outcome(Unsupported("slice_key")), Outcome(Number(4))]
        assert conversation.audit() == Audited(("K1",))
        assert conversation.is_open
        assert conversation.finish() == 0
        assert not conversation.is_open


def talk(command: str, said: list[Conversation], seconds: float) -> None:
    """Say everything once; from the first operation on, answers have so many seconds."""
    said.append(Conversation("mine", shlex.split(command)))
    said[0].start({}, 0)
    with answer_limit(seconds):
        said[0].ask([Asked(1, HASH)])
        said[0].outcome_of(Asked(1, HASH))
        said[0].audit()


@pytest.mark.parametrize(
    ("where", "behaviour", "verdict", "words"),
    [
        ("hello", "kill", "crashed", "was ended by SIGKILL before it answered; it was asked for hello"),
        ("hello", "garbage", "garbled", "'so what?' is not JSON"),
        ("hello", "no-utf8", "garbled", "is not JSON"),
        ("hello", "deep", "garbled", "wrote a line that is not a message"),
        ("hello", "no-object", "garbled", "it must be an object"),
        ("hello", "unknown", "garbled", "say is 'what'"),
        ("hello", "no-kind", "garbled", "kind is 'teapot'"),
        ("hello", "nothing-to-do", "garbled", "configurations has 0; it must have 1 to 256"),
        ("hello", "other", "garbled", "answered 'advanced'; it must answer 'hello'"),
        ("hello", "protocol-9", "foreign", "speaks protocol 9; pymllm speaks protocol 1"),
        ("start", "error", "gave-up", "cannot go on: no more; it was asked for start with {}"),
        ("start", "status-3", "crashed", "ended with status 3"),
        ("op", "wrong-step", "out-of-step", "answered step 99, but the next answer is of step 1"),
        ("op", "wrong-form", "garbled", "field 'value' is missing; it was asked for step 1, hash_bytes"),
        ("op", "hang", "hung", "--timeout waits longer"),
        ("audit", "close-output", "closed", "it was asked for audit"),
        ("hello", "many-slots", "garbled", "slots is 2,000,000,000; at most it is 1,048,576"),
        ("start", "twice", "garbled", "an object names 'capabilities' twice"),
        ("start", "last-words", "gave-up", "never nev...; it was asked for start"),
        (
            "audit",
            "unknown-law",
            "garbled",
            "its audit names 'ZZ99', which is no law of kind hashes; its laws",
        ),
        ("audit", "law-of-others", "garbled", "its audit names 'R6', which is no law of kind hashes"),
    ],
)
def test_where_it_does_not_go_on_the_program_is_ended_and_its_last_lines_are_kept(
    tiny_program: Callable[..., str], where: str, behaviour: str, verdict: str, words: str
) -> None:
    """With a verdict, and what it was asked for."""
    said: list[Conversation] = []
    with pytest.raises(ConversationError) as caught:
        talk(tiny_program(where, behaviour), said, 0.5 if verdict == "hung" else 20)
    error = caught.value
    assert error.verdict == verdict
    assert words in error.message
    command, reason, first = error.conversation.splitlines()[:3]
    assert command.endswith(f"tiny_program.py {where} {behaviour}")
    assert reason.startswith(f"# {verdict}: ")
    assert first.startswith('> {"say":"hello"')
    assert not any(conversation.is_open for conversation in said)


def test_a_late_answer_within_the_limit_is_an_answer(tiny_program: Callable[..., str]) -> None:
    """Nothing is said of how fast a program is."""
    with answer_limit(20), speaking_with(tiny_program("start", "late")) as conversation:
        assert conversation.start({}, 0) == {"extra_key"}


def test_an_answer_twice_is_out_of_step(tiny_program: Callable[..., str]) -> None:
    """The second one is taken for that of the next message, which it is not."""
    with answer_limit(20), speaking_with(tiny_program("op", "late")) as conversation:
        conversation.start({}, 0)
        conversation.ask([Asked(1, HASH), Asked(1, HASH)])
        conversation.outcome_of(Asked(1, HASH))
        with pytest.raises(ConversationError) as caught:
            conversation.outcome_of(Asked(2, HASH))
        assert caught.value.verdict == "out-of-step"


def test_an_interrupt_ends_the_program(
    tiny_program: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can go on with half a conversation."""

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with speaking_with(tiny_program()) as conversation:
        monkeypatch.setattr("pymllm.adapters.process.channel.Channel.receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            conversation.start({}, 0)
        assert not conversation.is_open


def test_the_clock_comes_before_each_operation_and_is_checked() -> None:
    """Of a program that goes by it."""
    with speaking_with(f"python3 {shlex.quote(str(EXAMPLE))}") as conversation:
        conversation.start({"page_size": 1, "pool": "token", "slots": 4}, 0)
        evict = {"op": "evict", "tokens": 1}
        asked = [Asked(1, evict, 1), Asked(2, evict, 2), Asked(3, evict, 9)]
        conversation.ask(asked)
        for fine in asked[:2]:
            conversation.outcome_of(fine)
        with pytest.raises(ConversationError, match="its clock shows 3; it must show 9"):
            conversation.outcome_of(asked[2])


def test_a_line_that_would_be_too_long_is_not_said(tiny_program: Callable[..., str]) -> None:
    """X1: the program was promised that none is; it goes on as if nothing had been."""
    with speaking_with(tiny_program()) as conversation:
        conversation.start({}, 0)
        with pytest.raises(ProgramError, match=f"a line has {LINE_LIMIT:,} at most"):
            conversation.ask([Asked(1, HASH), Asked(2, {"op": "hash_bytes", "data": "0" * LINE_LIMIT})])
        conversation.ask([Asked(1, HASH)])
        assert conversation.outcome_of(Asked(1, HASH)) == Outcome(Number(4))


def leave_inside() -> None:
    with answer_limit(1.0), answer_limit(2.0):
        raise KeyboardInterrupt


def test_a_limit_ends_with_its_block() -> None:
    """However that ends."""
    before = seconds_per_answer()
    with pytest.raises(KeyboardInterrupt):
        leave_inside()
    assert seconds_per_answer() == before
