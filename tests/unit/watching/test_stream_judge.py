"""The judge of streams: sound producers, planted faults, and what nobody is blamed for."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from pymllm.errors import CapacityError
from pymllm.oracle.verdicts import Verdict
from pymllm.watching import judge as judging
from pymllm.watching.events import read_message
from pymllm.watching.judge import StreamJudge
from pymllm.watching.laws import LAWS
from tests.unit.watching.producer import SIZE, Producer, removed, stored

FAULTS = {
    "gap": ("W1", ""),
    "twice": ("W1", ""),
    "more tokens": ("W2", ""),
    "lost parent": ("W3", "W6"),
    "other block": ("W4", "W7"),
    "second copy": ("W5", "W7"),
    "one hash": ("W6", "W3 W4 W5 W7"),
    "two hashes": ("W6", "W7"),
    "silent evictions": ("W7", ""),
    "silent clear": ("W7", "W5"),
}
"""Each fault, the law that it is meant to break, and others that it breaks with it."""


def judged(producer: Producer, messages: int = 600, **options: Any) -> StreamJudge:
    judge = StreamJudge(producer.room, **options)
    for plain in producer.messages(messages):
        judge.feed(read_message(plain))
    return judge


def feed(judge: StreamJudge, *batches: list[Any], start: int = 0) -> StreamJudge:
    for number, events in enumerate(batches, start):
        judge.feed(read_message({"topic": "kv", "seq": number, "batch": [0.0, events, 0]}))
    return judge


def prompt_of(path: tuple[int, ...]) -> list[int]:
    """The tokens of a path of blocks, and one behind them, which is always computed."""
    return [token for piece in path for token in [piece] * SIZE] + [9]


def ask(judge: StreamJudge, producer: Producer, paths: list[tuple[int, ...]]) -> None:
    """Make requests that hit what the producer really has."""
    for number, path in enumerate(paths):
        hit = next(end for end in range(len(path), -1, -1) if not end or path[:end] in producer.there)
        judge.judge_hit(number, hit * SIZE, [judge.longest_chain(prompt_of(path))])


def broken(judge: StreamJudge) -> dict[str, int]:
    return {law: count for law, count in judge.broken.items() if count}


@pytest.mark.parametrize("seed", range(3))
def test_a_sound_producer_breaks_no_law_and_tests_each(seed: int) -> None:
    """Every law is tested, and what is there in the end is what the producer has."""
    producer = Producer(seed)
    judge = judged(producer)
    ask(judge, producer, [(1, 2), (2,), *producer.there])
    assert {law: judge.verdict_of(law) for law in LAWS} == dict.fromkeys(LAWS, Verdict.HOLDS)
    assert judge.copies == len(producer.there) <= judge.most_copies <= producer.room
    assert not judge.is_late


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught_by_its_law(fault: str, seed: int) -> None:
    """From each seed, and by no law that it has nothing to do with."""
    judge = judged(Producer(seed, fault=fault))
    meant, beside = FAULTS[fault]
    assert meant in broken(judge).keys() <= {meant, *beside.split()}


@pytest.mark.parametrize("fault", ["other block", "silent evictions", "second copy"])
def test_a_request_hits_what_was_told(fault: str) -> None:
    """W8: more or less is a fault of the stream, or of the cache."""
    producer = Producer(0, fault=fault)
    judge = StreamJudge()
    for plain in producer.messages(100):
        judge.feed(read_message(plain))
        ask(judge, producer, [*product(range(3), repeat=4)])
    assert judge.verdict_of("W8") is Verdict.VIOLATED
    assert judge.first["W8"].what.startswith("tokens that request ")


def test_a_hit_is_counted_in_whole_blocks_that_leave_a_token() -> None:
    """In its namespace; of several moments the longest counts, and less may be hit."""
    judge = feed(StreamJudge(), [stored([(1,), (1, 2)]), {**stored([(3,)]), "extra_keys": [["s"]]}])
    prompt = prompt_of((1, 2))
    assert judge.longest_chain(prompt) == 2 * SIZE
    assert judge.longest_chain(prompt[:-1]) == SIZE
    assert judge.longest_chain(prompt, "s") == judge.longest_chain([]) == 0
    assert judge.longest_chain(prompt_of((3,)), "s") == SIZE
    judge.judge_hit(1, SIZE, [0, 2 * SIZE, SIZE])
    assert (judge.tests["W8"], broken(judge)) == (1, {})
    judge.judge_hit(2, 0, [SIZE])
    assert (judge.first["W8"].expected, judge.first["W8"].observed) == ("4", "0")


def test_a_window_has_a_say_in_what_is_hit() -> None:
    """Less may be hit than the layers with all tokens have, and no more."""
    window = {**stored([(1,)]), "group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    judge = feed(StreamJudge(), [stored([(1,)]), window])
    for hit in (0, SIZE):
        judge.judge_hit(1, hit, [SIZE])
    assert broken(judge) == {}
    judge.judge_hit(1, 2 * SIZE, [SIZE])
    assert judge.first["W8"].expected == "at most 4"


def test_what_was_not_heard_tests_no_hit() -> None:
    """Late listeners, several producers, and blocks without tokens."""
    late = feed(StreamJudge(), [stored([(1,)])], start=3)
    several = feed(StreamJudge(), [stored([(1,)])])
    several.feed(read_message({"topic": "kv", "seq": 0, "batch": [0.0, [stored([(1,)])], 1]}))
    untold = feed(StreamJudge(), [{**stored([(1,)]), "token_ids": [], "block_size": 0}])
    for judge in (late, several, untold, StreamJudge()):
        assert judge.longest_chain(prompt_of((1,))) is None
        judge.judge_hit(1, 99, [None])
        assert judge.verdict_of("W8") is Verdict.UNKNOWN


def test_the_first_event_that_breaks_a_law_is_kept() -> None:
    """With the messages that told the block."""
    judge = feed(StreamJudge(), [stored([(1,)])], [stored([(1,)])], [removed((1,))])
    it = judge.first["W5"]
    assert (it.number, it.event, it.place, it.told_in) == (2, 1, "group 0, GPU", (0, 1))
    assert it.observed == "removed while 2 copies were there"


def test_a_removal_takes_one_copy_where_the_claim_is_withdrawn() -> None:
    """Then the second removal finds the second copy."""
    judge = feed(
        StreamJudge(without=frozenset({"W5"})),
        [stored([(1,)]), stored([(1,)])],
        [removed((1,)), removed((1,))],
    )
    assert judge.verdict_of("W5") is Verdict.NOT_CLAIMED
    assert broken(judge) == {}
    assert judge.copies == 0


def test_a_late_listener_blames_nobody_for_what_it_did_not_hear() -> None:
    """Until everything is cleared; then it knows."""
    unknown = [removed((1,)), stored([(1, 2)])]
    judge = feed(StreamJudge(), unknown, start=7)
    assert judge.is_late
    assert (judge.tests["W3"], judge.tests["W4"]) == (0, 0)
    feed(judge, [{"type": "AllBlocksCleared"}], [removed((5,))], start=8)
    assert not judge.is_late
    assert broken(judge) == {"W4": 1}


def test_what_a_gap_hides_is_blamed_once() -> None:
    """By the numbers; the blocks that it may have told are not missed."""
    judge = feed(StreamJudge(), [stored([(1,)])])
    feed(judge, [removed((2,))], start=2)
    assert broken(judge) == {"W1": 1}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["BlockRemoved", "BlockStored", "AllBlocksCleared"])
def test_one_lost_message_of_a_sound_stream_breaks_w1_alone(kind: str, seed: int) -> None:
    """Whatever it told: each event is a message, and the fifth one of a kind is lost, or the first clear."""
    producer = Producer(seed)
    events = [event for plain in producer.messages(600) for event in plain["batch"][1]]
    of_kind = [number for number, event in enumerate(events) if event["type"] == kind]
    lost = of_kind[0 if kind == "AllBlocksCleared" else 4]
    judge = feed(StreamJudge(producer.room), *([it] for it in events[:lost]))
    feed(judge, *([it] for it in events[lost + 1 :]), start=lost + 1)
    assert broken(judge) == {"W1": 1}


def test_a_lost_removal_blames_no_later_removal_and_no_capacity() -> None:
    """Of a block that was stored again behind it, and of a full memory."""
    judge = feed(StreamJudge(1), [stored([(1,)])])
    feed(judge, [stored([(1,)])], [removed((1,))], [stored([(2,)])], start=2)
    assert broken(judge) == {"W1": 1}
    assert (judge.copies, judge.is_late) == (1, True)


def test_what_is_told_behind_a_gap_is_judged() -> None:
    """As of whoever joins late: two copies and too many blocks are blamed."""
    judge = feed(StreamJudge(1), [stored([(1,)])])
    feed(judge, [stored([(2,)])], [stored([(2,)])], [removed((2,))], start=2)
    assert broken(judge) == {"W1": 1, "W5": 1, "W7": 1}


@pytest.mark.parametrize(
    ("number", "path", "what", "observed"),
    [
        (2, (3,), "a number that came before", "number 2 again, with the same events"),
        (2, (4,), "a number that came before", "number 2 again, with other events"),
        (1, (4,), "a number out of order", "number 1 behind number 2"),
        (9, (4,), "a gap in the numbers", "number 9"),
    ],
)
def test_a_wrong_number_is_told_for_what_it_is(
    number: int, path: tuple[int, ...], what: str, observed: str
) -> None:
    """Number 1 was never heard; a number that came is told with whether its events are the same."""
    judge = feed(StreamJudge(), [stored([(3,)])], start=2)
    feed(judge, [stored([path])], start=number)
    it = judge.first["W1"]
    assert (it.what, it.expected, it.observed) == (what, "number 3", observed)


def test_a_producer_that_starts_anew_has_nothing() -> None:
    """Number 0 with other events is a new beginning, and no fault."""
    judge = feed(StreamJudge(), [stored([(1,)])], [stored([(2,)])])
    feed(judge, [stored([(3,)])])
    assert (judge.restarts, judge.copies, broken(judge)) == (1, 1, {})


def test_a_window_s_parents_may_be_gone() -> None:
    """A missing parent breaks no law in a group with a window, and W3 in another group of the same stream."""
    child = stored([(1, 2)])
    windowed = {**child, "kv_cache_spec_kind": "sliding_window"}
    assert broken(feed(StreamJudge(), [windowed])) == {}
    assert broken(feed(StreamJudge(), [windowed, {**child, "group_idx": 1}])) == {"W3": 1}


def test_salts_and_adapters_keep_contents_apart() -> None:
    """Equal tokens under two salts have two hashes; under one they may not."""
    one, two = stored([(1,)]), {**stored([(1,)]), "block_hashes": [99]}
    salted = {**two, "extra_keys": [["s"]]}
    tuned = {**two, "lora_name": "a"}
    assert broken(feed(StreamJudge(), [one, salted])) == {}
    assert broken(feed(StreamJudge(), [one, tuned])) == {}
    assert broken(feed(StreamJudge(), [one, two])) == {"W6": 1}


def test_a_removal_that_tells_no_memory_finds_the_block_where_it_lies() -> None:
    """As TensorRT-LLM's, of a block that was moved to another memory; once, in its group alone."""
    block = {"block_hash": 7, "tokens": [{"token_id": 1}], "cache_level": 0}
    told = [
        {"type": "stored", "parent_hash": None, "blocks": [block]},
        {"type": "updated", "block_hash": 7, "cache_level": {"old_value": 0, "new_value": 1}},
        {"type": "removed", "block_hashes": [7]},
    ]
    judge = StreamJudge()
    for number, data in enumerate([*told, told[-1]]):
        judge.feed(read_message({"event_id": number, "data": data}))
    assert (broken(judge), judge.copies) == ({"W4": 1}, 0)
    elsewhere = StreamJudge()
    elsewhere.feed(read_message({"event_id": 0, "data": told[0]}))
    elsewhere.feed(read_message({"event_id": 1, "data": told[-1], "window_size": 64}))
    assert (broken(elsewhere), elsewhere.copies) == ({"W4": 1}, 1)


def test_producers_are_judged_apart() -> None:
    """Each rank numbers its own messages."""
    judge = StreamJudge()
    for rank in (0, 1):
        judge.feed(read_message({"topic": "kv", "seq": 0, "batch": [0.0, [stored([(1,)])], rank]}))
    assert (judge.producers, judge.copies, broken(judge)) == (2, 2, {})


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that stores for ever ends with an error that names the bound."""
    monkeypatch.setattr(judging, "MOST_BLOCKS", 10)
    endless = [stored([(1, digit) for digit in range(8)])]
    with pytest.raises(CapacityError, match=r"rank 0 has told more than 10 blocks"):
        feed(StreamJudge(), endless, endless)


def test_old_messages_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes again much later is still no new one."""
    monkeypatch.setattr(judging, "RECENT", 2)
    judge = feed(StreamJudge(), [stored([(1,)])], *([[]] * 5))
    feed(judge, [stored([(1,)])], start=1)
    assert (broken(judge), judge.copies) == ({"W1": 1}, 1)
