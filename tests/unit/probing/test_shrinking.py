"""The search for a smallest program, on a server that is made up here."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.probing.records import Answer, Ask, Cold, Head, History, Operation, Place, Step, asks_of
from pymllm.probing.shrinking import Shrinker

HEAD = Head(server="llamacpp", api="llama.cpp", cold="flag", has_salts=False, is_clean=True)
SHARED = tuple(range(50, 60))


def play(program: Sequence[Operation]) -> list[Step]:
    """Answer as a server with one slot that restores wrongly what another request has moved away."""
    steps, asked, slot, moved = list[Step](), dict[int, Ask](), (), set[tuple[int, ...]]()

    def answer(ask: Ask, off: float, cached: int) -> Answer:
        return Answer(prompt=ask.tokens, places=(Place(7, ((7, -1.0 - off), (8, -3.0))),), cached=cached)

    for operation in program:
        if isinstance(operation, Cold):
            steps.append(Step(operation=operation, answers=(answer(asked[operation.of[0]], 0, 0),)))
            continue
        [ask] = asks_of(operation)
        asked[ask.id] = ask
        is_held = slot[:3] == ask.tokens[:3]
        if not is_held and slot:
            moved.add(slot[:3])
        is_wrong = not is_held and ask.tokens[:3] in moved
        steps.append(Step(operation=operation, answers=(answer(ask, 0.5 * is_wrong, 3 * is_wrong),)))
        slot = ask.tokens
    return steps


def test_what_another_request_must_move_away_is_three_requests_at_once() -> None:
    """The pair, then the pair with each request between: a few tries lead to three requests."""
    asks = [Ask(1, (*SHARED, 1), 1), *(Ask(id, (id, id + 1, id + 2), 1) for id in range(2, 30, 3))]
    program = (*asks, Ask(40, (*SHARED, 2), 1), Cold((40,)))
    shrinker = Shrinker(History(HEAD, tuple(play(program))), "V1", play, 60)
    found = shrinker.shrink(len(program))
    assert found is not None
    assert [len(asks_of(it)) for it in found.program] == [1, 1, 1, 0]
    assert [len(it.tokens) for it in found.program if isinstance(it, Ask)] == [3, 1, 4]
    assert shrinker.tries < 60, shrinker.tries
