"""A program as an adapter, by its name, and kept between two adapters."""

from __future__ import annotations

import random
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pymllm.adapters.process import adapter as process_adapter
from pymllm.adapters.process.adapter import ProcessAdapter, end_idle_programs, lend, load_command, take_back
from pymllm.adapters.process.command_name import split_command
from pymllm.adapters.registry import make_adapter
from pymllm.errors import AdapterError, ConversationError, InvariantViolation, ProgramError, UsageError
from pymllm.history import operations as ops
from pymllm.history.outcomes import Inserted, Locked, Matched, NoRoom, Number, Outcome, Slots, Unsupported

EXAMPLE = Path(__file__).parents[4] / "examples" / "protocol" / "page_cache.py"
CONFIG = {"page_size": 2, "window": None, "pool": "token", "slots": 8, "swa_slots": 0}


def make(command: str, config: dict[str, int | str | bool | None]) -> ProcessAdapter:
    adapter = make_adapter(f"command:{command}", config)
    assert isinstance(adapter, ProcessAdapter)
    return adapter


@pytest.fixture
def cache() -> Iterator[ProcessAdapter]:
    adapter = make(shlex.join([sys.executable, "-S", str(EXAMPLE)]), dict(CONFIG))
    yield adapter
    adapter.close()


KEY = ops.Key((7, 8, 9, 10), "a")
PROGRAM: list[ops.Operation] = [
    ops.Alloc(4),
    ops.Insert(KEY, (ops.Span(1, 0, 4),)),
    ops.Match(KEY),
    ops.Lock(2),
    ops.Evict(4),
    ops.Unlock(4),
    ops.Evict(1),
    ops.Match(KEY),
    ops.Free((ops.Span(0, 0, 0),)),
    ops.Reset(),
    ops.Alloc(9),
]


def test_a_cache_behind_a_program_does_what_a_cache_does(cache: ProcessAdapter) -> None:
    """Slots that it gave out are told as numbers, nodes and holds as steps."""
    told = [cache.apply(step, operation) for step, operation in enumerate(PROGRAM, 1)]
    assert [outcome.result for outcome in told[:4]] == [
        Slots((2, 3, 4, 5)),
        Inserted(0, ((0, 4),), 4),
        Matched((2, 3, 4, 5), 4, 4),
        Locked(),
    ]
    assert told[6].effects[0].slots == (4, 5)
    assert told[7].result == Matched((2, 3), 2, 2)
    assert told[10] == Outcome(NoRoom(), (), {"total_size": 0, "protected_size": 0, "evictable_size": 0,
                                              "available_size": 8})  # fmt: skip


def test_many_at_once_answer_as_one_by_one(cache: ProcessAdapter) -> None:
    """Steps in batches are answered as single steps are, though they need numbers of each other."""
    program = list(PROGRAM)
    source = random.Random(1)
    while len(program) < 400:
        key = ops.Key(tuple(source.choices((1, 2), k=source.randrange(7))))
        step = len(program) + 1
        program += [
            ops.Match(key),
            ops.Lock(step),
            ops.Unlock(step + 1),
            ops.Evict(source.randrange(3)),
            ops.Alloc(2),
        ]
        program += [ops.Insert(ops.Key((3, step)), (ops.Span(step + 4, 0, 2),))] if step % 3 == 0 else []
        program += [ops.Reset()]
    steps = list(enumerate(program, 1))
    batched = list(cache.apply_many(steps))
    cache.close()
    again = make_adapter(cache.name, dict(CONFIG))
    assert batched == [again.apply(step, operation) for step, operation in steps]
    again.close()


@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (ops.Lock(1), "step 1 gave no node"),
        (ops.Lock(9), "step 9 gave no node"),
        (ops.Hash(1), "step 1 gave no node"),
        (ops.Unlock(2), "step 2 took no hold"),
        (ops.Unlock(3, at=1), "step 1 gave no node"),
        (ops.Unlock(3, token=2), "step 2 took no hold"),
        (ops.Free((ops.Span(1, 0, 3),)), "step 1 gave 2 numbers"),
        (ops.Free((ops.Span(8, 0, 1),)), "step 8 gave 0 numbers"),
    ],
)
def test_a_program_without_sense_is_not_said(
    cache: ProcessAdapter, operation: ops.Operation, words: str, is_batched: bool
) -> None:
    """X1: a child need not look at what a step gave."""
    steps: list[tuple[int, ops.Operation]] = [
        (1, ops.Alloc(2)),
        (2, ops.Match(KEY)),
        (3, ops.Lock(2)),
        (4, operation),
    ]
    with pytest.raises(ProgramError, match=words):
        play(cache, steps, is_batched)


def play(cache: ProcessAdapter, steps: list[tuple[int, ops.Operation]], is_batched: bool) -> None:
    if is_batched:
        list(cache.apply_many(steps))
    else:
        for step, operation in steps:
            cache.apply(step, operation)


def test_a_hold_may_be_named_for_its_node(cache: ProcessAdapter) -> None:
    """A lock of a lock; and another token than its own."""
    steps = [ops.Match(KEY), ops.Lock(1), ops.Lock(2), ops.Unlock(2, at=3, token=3), ops.Unlock(3, token=0)]
    assert len([cache.apply(step, operation) for step, operation in enumerate(steps, 1)]) == 5


def test_what_is_unsupported_can_be_named_and_is_unsupported_again(cache: ProcessAdapter) -> None:
    """Nothing was given, and that is no fault of the program's."""
    assert cache.apply(1, ops.AllocTrack()).result == Unsupported("alloc_track")
    assert cache.apply(2, ops.FreeTrack(ops.Span(1, 0, 1))) == Outcome(Unsupported("free_track"))
    assert cache.apply(3, ops.ReadRows()) == Outcome(Unsupported("read_rows"))
    with pytest.raises(ProgramError, match="read_rows is not for prefix"):
        list(cache.apply_many([(4, ops.ReadRows())]))


def test_two_adapters_of_one_command_are_two_caches(cache: ProcessAdapter) -> None:
    """As a program is run again beside itself (X3)."""
    twin = make_adapter(cache.name, dict(CONFIG))
    cache.apply(1, ops.Alloc(8))
    assert twin.apply(1, ops.Alloc(8)).result == Slots(tuple(range(2, 10)))
    twin.close()


def test_a_new_adapter_begins_anew(cache: ProcessAdapter) -> None:
    """Although it is the same process (X7)."""
    cache.apply(1, ops.Alloc(8))
    cache.close()
    again = make_adapter(cache.name, dict(CONFIG))
    assert again.apply(1, ops.Alloc(8)).result == Slots(tuple(range(2, 10)))
    again.close()


def test_claims_are_those_of_the_configuration(cache: ProcessAdapter) -> None:
    """`Started` may have them."""
    assert cache.capabilities == {"pool", "extra_key", "exact_lru", "engine"}
    bare = make_adapter(cache.name, {**CONFIG, "pool": "none"})
    assert bare.capabilities == {"extra_key", "exact_lru"}
    bare.close()


def test_closing_twice_is_closing_once(cache: ProcessAdapter) -> None:
    """Or one program would be lent to two."""
    cache.close()
    cache.close()
    two = [make_adapter(cache.name, dict(CONFIG)) for _ in range(2)]
    assert [adapter.apply(1, ops.Alloc(8)).result for adapter in two] == [Slots(tuple(range(2, 10)))] * 2
    for adapter in two:
        adapter.close()


def test_an_audit_counts_or_refuses(tiny_program: Callable[..., str]) -> None:
    """A walk from inside, in another process."""
    fine = make(tiny_program(), {})
    assert fine.apply(1, ops.HashBytes("00")).result == Number(2)
    assert fine.apply(2, ops.HashInt64("00")).result == Unsupported("hash_int64")
    assert tuple(fine.audit()) == ("K1",)
    fine.close()
    broken = make(tiny_program("audit", "broken"), {})
    with pytest.raises(InvariantViolation, match="K1: a key: expected 1, observed None"):
        broken.audit()
    broken.close()


def test_a_program_that_offers_none_is_not_asked_for_an_audit(cache: ProcessAdapter) -> None:
    """And counts none."""
    assert tuple(cache.audit()) == ()


def test_a_program_that_died_is_not_kept(tiny_program: Callable[..., str]) -> None:
    """Closing it is no error, and the next one lives."""
    command = tiny_program("op", "kill")
    for _ in range(2):
        adapter = make(command, {})
        with pytest.raises(ConversationError, match="SIGKILL"):
            adapter.apply(1, ops.HashBytes("00"))
        adapter.close()


def test_a_class_knows_what_the_program_is(tiny_program: Callable[..., str]) -> None:
    """Asked once."""
    name = f"command:{tiny_program()}"
    loaded = load_command(name)
    assert (loaded.KIND, loaded.CONFIGURATIONS, loaded.__doc__) == ("hashes", ({},), "tiny 7, in Python.")
    assert load_command(name) is loaded
    with pytest.raises(AdapterError, match="cannot be started"):
        load_command("command:no-such-program-anywhere")


def test_what_a_program_says_of_a_broken_law_is_cut(tiny_program: Callable[..., str]) -> None:
    """A line may be a megabyte, and a table has no room for it."""
    adapter = make(tiny_program("audit", "long-story"), {})
    with pytest.raises(InvariantViolation) as caught:
        adapter.audit()
    adapter.close()
    assert [len(part or "") for part in caught.value.args[1:]] == [400] * 3


@pytest.fixture
def command(tiny_program: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command of which nothing is idle yet."""
    monkeypatch.setattr(process_adapter, "_shelf", process_adapter._Shelf())
    return shlex.split(tiny_program())


def test_a_program_that_was_taken_back_is_lent_again(command: list[str]) -> None:
    """One by one; two at the same time are two."""
    first, second = lend("mine", command), lend("mine", command)
    assert first is not second
    take_back(first, command)
    assert lend("mine", command) is first
    for conversation in (first, second):
        conversation.end()


def test_another_command_gets_another_program(command: list[str], tiny_program: Callable[..., str]) -> None:
    """Arguments count."""
    first = lend("mine", command)
    take_back(first, command)
    other = lend("mine", shlex.split(tiny_program("bye", "ignore")))
    assert other is not first
    other.end()
    end_idle_programs()


def test_one_that_cannot_be_asked_any_more_is_not_kept(command: list[str]) -> None:
    """It was ended."""
    first = lend("mine", command)
    first.end()
    take_back(first, command)
    second = lend("mine", command)
    assert second.is_open
    second.end()


def test_more_than_anybody_needs_are_let_go(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is every one at the end."""
    monkeypatch.setattr(process_adapter, "_KEPT", 1)
    first, second = lend("mine", command), lend("mine", command)
    take_back(first, command)
    take_back(second, command)
    assert (first.is_open, second.is_open) == (True, False)
    end_idle_programs()
    assert not first.is_open


def test_after_a_fork_the_programs_are_somebody_elses(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two must not speak with one."""
    first = lend("mine", command)
    take_back(first, command)
    with monkeypatch.context() as forked:
        forked.setattr(process_adapter.os, "getpid", lambda: 0)
        end_idle_programs()
        assert process_adapter._shelf.owner == 0
    assert first.is_open
    first.end()


def test_another_folder_may_have_another_program_of_that_name(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A path is that of the current folder."""
    first = lend("mine", command)
    take_back(first, command)
    with monkeypatch.context() as there:
        there.chdir(tmp_path)
        other = lend("mine", command)
        assert other is not first
        take_back(other, command)
    end_idle_programs()
    assert not first.is_open
    assert not other.is_open


@pytest.mark.parametrize(
    ("name", "words"), [("command:", "names no program"), ("command:'x", "no closing quotation")]
)
def test_a_command_has_to_name_a_program(name: str, words: str) -> None:
    """X1: before anything is started."""
    with pytest.raises(UsageError, match=words):
        split_command(name)


def test_a_command_is_split_as_a_shell_does() -> None:
    """There is none."""
    assert split_command("command:./a 'b c' $HOME") == ["./a", "b c", "$HOME"]
