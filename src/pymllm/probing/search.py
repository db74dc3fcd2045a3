"""A whole probe: the measurement, rounds of requests until a law breaks, and the shrinking."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from pymllm.errors import UsageError
from pymllm.probing.clients import Client, NotServed, ServerFailed
from pymllm.probing.judge import Judgement, judge
from pymllm.probing.player import Player
from pymllm.probing.probed import Probed
from pymllm.probing.programs import Generator
from pymllm.probing.records import Head, History, Step, Tolerance, Way
from pymllm.probing.shrinking import Program, Shrinker, with_other_tokens

if TYPE_CHECKING:
    from pymllm.probing.heard import Heard  # which needs pyzmq

Tell = Callable[[int], None]

_SUBSCRIBED_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """The plan of a probe: the number of requests or minutes, and the laws to judge."""

    seed: int = 0
    requests: int | None = 60
    minutes: float | None = None
    longest: int = 160
    max_tokens: int = 8
    floor: float = 1e-4
    tolerance: float | None = None
    without: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Servers:
    """The server under test, a second one for cold requests if any, and the way to renew the first.

    ``renew`` returns a client of a server without any contents; ``None``: its cache is emptied, or its
    namespaces are fresh, where it has either.
    """

    client: Client
    other: Client | None = None
    renew: Callable[[], Client] | None = None
    is_fresh: bool = False  # it was just started for this probe
    heard: Heard | None = None  # the events of its cache

    def player(self, now: Client | None = None, tell: Tell | None = None) -> Player:
        """Return a player on the server, or on its renewed client."""
        return Player(now or self.client, self.way, self.other, tell, self.heard)

    def empty(self) -> None:
        """Empty the server's cache if possible, and discard the events received so far."""
        if self.heard is not None:
            self.heard.take()
        if self.client.reset_path is not None:
            self.client.reset()

    def await_events(self) -> None:
        """Empty the cache repeatedly until an event arrives, since a new subscription takes time."""
        end = time.monotonic() + _SUBSCRIBED_SECONDS
        while self.heard is not None and not self.heard.has_heard and time.monotonic() < end:
            if self.client.reset_path is None:
                return
            self.client.reset()
            self.heard.take()

    @property
    def way(self) -> Way:
        """The way to make requests cold; raises `UsageError` if there is none."""
        if self.other is not None:
            return "other"
        if not self.client.ways:
            raise UsageError(
                f"{self.client.url} can neither be emptied nor asked without its cache; start a second one "
                "that caches nothing, and name it with --against URL"
            )
        return self.client.ways[0]


def probe(servers: Servers, plan: ProbePlan, tell: Tell | None = None) -> Probed:
    """Probe a server with random programs until a law breaks or the plan ends."""
    client = servers.client
    generator = Generator(
        plan.seed,
        longest=plan.longest,
        max_tokens=plan.max_tokens,
        has_salts=client.has_salts,
        can_reset=client.reset_path is not None,
    )
    end = None if plan.minutes is None else time.monotonic() + 60 * plan.minutes
    player = servers.player(tell=tell)
    head = _head(servers, plan)

    def judged() -> Judgement:
        return judge(History(head, tuple(player.steps)))

    def play() -> None:
        player.play(generator.measure())
        for operations in generator.rounds(plan.requests):
            if (end is not None and time.monotonic() > end) or judged().violation is not None:
                break
            player.play(operations)

    failure, interruption = _played(servers, player, play)
    return Probed(History(head, tuple(player.steps)), judged(), failure, interruption)


def play_again(servers: Servers, history: History, plan: ProbePlan, tell: Tell | None = None) -> Probed:
    """Play the program of a history again, with its own tolerance if it has one."""
    player = servers.player(tell=tell)
    head = _head(servers, plan, history.head)
    failure, interruption = _played(servers, player, lambda: player.play(history.program))
    again = History(head, tuple(player.steps))
    return Probed(again, judge(again), failure, interruption)


def _played(
    servers: Servers, player: Player, play: Callable[[], None]
) -> tuple[str | None, KeyboardInterrupt | None]:
    """Play on an emptied cache; return the error that ended the play early, if answers preceded it."""
    try:
        servers.await_events()
        servers.empty()
        play()
    except (ServerFailed, NotServed, KeyboardInterrupt) as error:
        if not isinstance(error, ServerFailed) and not any(step.answers for step in player.steps):
            raise
        if isinstance(error, KeyboardInterrupt):
            return "it was interrupted", error
        return str(error), None
    return None, None


def shrink(servers: Servers, probed: Probed, seconds: float, tell: Tell | None = None) -> None:
    """Search for the smallest program that breaks the same law, and store it in ``probed``.

    An interrupt ends the search; the smallest program so far is kept, and so is the interrupt.
    """
    violation, client = probed.judgement.violation, servers.client
    assert violation is not None
    if servers.renew is None and client.reset_path is None and not client.has_salts:
        probed.unshrunk = "this server cannot be emptied between tries; --start 'COMMAND' starts it again"
        return

    if servers.renew is None and violation.law == "V6":
        probed.unshrunk = "what is held stays held until the server is started again, as --start does"
        return

    # Where a reset leaves something, the server is as good as new for prompts that nobody has asked.
    is_left_over = violation.law == "V4" and servers.renew is None and not client.has_salts
    random = Random()

    def play(program: Program, now: Client = client) -> Sequence[Step]:
        player = servers.player(now)
        player.play(program)
        return player.steps

    def play_emptied(program: Program) -> Sequence[Step]:
        servers.empty()
        return play(with_other_tokens(program, random) if is_left_over else program)

    def play_renewed(program: Program) -> Sequence[Step]:
        assert servers.renew is not None
        return play(program, servers.renew())

    head = probed.history.head
    fixed = History(_with_tolerance(head, probed.judgement.tolerance), probed.history.steps)
    end = time.monotonic() + seconds
    shrinker = Shrinker(fixed, violation.law, play_emptied, seconds, tell)
    # A start can take minutes. So what can be emptied is started again for the first and the last try alone.
    made, is_over = 0, False
    is_quick = violation.law != "V6" and (client.has_salts or client.reset_path is not None)
    try:
        if servers.renew is None:
            shrinker.shrink(violation.step)
            is_over = shrinker.is_over
        else:
            if is_quick:
                servers.renew()
                with suppress(ServerFailed):
                    shrinker.shrink(violation.step)
                is_over = shrinker.is_over
            if not (is_quick and shrinker.confirm(play_renewed)):
                made, left = shrinker.tries, max(0.0, end - time.monotonic())
                shrinker = Shrinker(fixed, violation.law, play_renewed, left, tell)
                shrinker.shrink(violation.step)
                is_over = shrinker.is_over
    except (ServerFailed, NotServed) as error:
        probed.unshrunk = f"shrinking ended early: {error}"
    except KeyboardInterrupt as error:
        probed.interruption = error
    probed.smallest = shrinker.smallest
    probed.tries = made + shrinker.tries
    if probed.interruption is not None:
        why = "shrinking was interrupted"
        if probed.smallest is None:
            probed.unshrunk = why
        else:
            probed.notes.append(f"perhaps not the smallest program: {why}")
    elif probed.smallest is None:
        probed.unshrunk = (
            probed.unshrunk or "it did not show again when the same requests were made once more"
        )
    elif is_over:
        why = f"{probed.tries} tries in {seconds:g} s"
        probed.notes.append(f"perhaps not the smallest program: shrinking ended after {why}")


def _head(servers: Servers, plan: ProbePlan, before: Head | None = None) -> Head:
    client = servers.client
    tolerance = None if before is None else before.tolerance
    if plan.tolerance is not None:
        tolerance = Tolerance(judged=plan.tolerance, judged_company=plan.tolerance)
    return Head(
        server=client.server,
        api=client.api,
        cold=servers.way,
        has_salts=client.has_salts,
        has_ids=client.has_ids,
        no_salts="" if client.has_salts else client.no_salts,
        hears_events=servers.heard is not None,
        is_clean=servers.is_fresh or client.has_salts or client.reset_path is not None,
        seed=plan.seed if before is None else before.seed,
        model=client.model,
        floor=plan.floor,
        without=(*sorted({*plan.without, *(() if before is None else before.without)}),),
        tolerance=tolerance,
    )


def _with_tolerance(head: Head, tolerance: Tolerance) -> Head:
    import msgspec

    return msgspec.structs.replace(head, tolerance=tolerance)
