"""A machine that drives the simulated engine over an adapter: legal sequences that only an engine produces.

An act arranges something, such as a request or an abort, or lets the engine go on. Every call that the
engine makes becomes an operation of an ordinary history (`pymllm.conformance.driven_cache`); what the engine
itself checks, content and ownership (laws E1 to E5), is counted beside what the judge tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pymllm.conformance.acting import ActingMachine, act
from pymllm.conformance.drawn_source import DrawnSource
from pymllm.conformance.driven_cache import Carrier
from pymllm.conformance.driven_pools import driven_config, make_driven_cache, make_driven_pools
from pymllm.conformance.lifecycle_situations import LifecycleNotes
from pymllm.errors import AdapterError, InvariantViolation, UsageError
from pymllm.history.operations import Alloc, Free, FreeSWA, FreeTrack, Operation, Reset, Unlock
from pymllm.history.outcomes import Outcome
from pymllm.oracle.prefix_judge import PrefixJudge
from pymllm.workloads.engine import Engine
from pymllm.workloads.request import Request
from pymllm.workloads.source import Stage

__all__ = ["LifecycleMachine"]

T = TypeVar("T")

_LAWS_OF_CALLS: dict[type[Operation], str] = {
    **dict.fromkeys((Free, FreeSWA, FreeTrack, Unlock), "E3"),
    Alloc: "E4",
}
"""What an engine breaks with a call that no caller may make; the others name what is not its own, E2."""
_MOST_WAITING = 6
_SPACES = (None, None, None, "a", 1, "1")
_PICK = (0, 7)
_OUTPUT = (0, 9)
_RARE = (0, 11)


class LifecycleMachine(ActingMachine):
    """Requests arrive, run, are aborted and retracted, over the adapter's cache and pool.

    Prompts are made of few blocks: a trunk that all share, which each prompt leaves at some block for one of
    a few branches. A prompt that fills the pool is as common as one that cannot fit.

    Attributes
    ----------
    engine : Engine
        The running engine; a new one after every `start_again`.
    source : DrawnSource
        Its choices.
    """

    # -- setting up ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start an engine over the adapter."""
        judge, header = self.examiner.judge, self.examiner.history.header
        if "engine" not in header.capabilities or not isinstance(judge, PrefixJudge):
            raise AdapterError(header.adapter, "an engine needs a prefix cache that claims it can be driven")
        self.judge = judge
        # An iteration is some eight operations; one walk for all of them makes 2,650 a second of 1,600.
        self._audits, self.examiner.audits_steps = self.examiner.audits_steps, False
        self.source = DrawnSource()
        self._requests = 0
        self._is_intact = True
        self._is_engines_turn = False
        self._scale = 1 if judge.model.page_size == 1 else 2
        self._has_states = judge.books.tracks is not None
        self._spaces = _SPACES if "extra_key" in header.capabilities else (None,)
        self._carrier = Carrier(self._carry, judge)
        self._start(headroom=0, early=1)  # what is cached then is dead in part; later engines may be lazy

    def _start(self, headroom: int, early: int) -> None:
        header = self.examiner.history.header
        config = driven_config(
            header,
            max_running=3,
            chunk_tokens=6 * self._scale,
            decode_headroom=headroom,
            release_window_early=bool(early),
        )
        self._cache = make_driven_cache(self._carrier, config)
        pools = make_driven_pools(self._carrier, self._cache, config, header)
        self._notes = LifecycleNotes(self.judge, self._cache, self.source, pools.rows, config)
        self.engine = Engine(config, self.source, pools=pools, onlooker=self._notes)

    def _carry(self, operation: Operation) -> Outcome:
        outcome = self.do(operation)
        if self._is_engines_turn and isinstance(operation, Reset):
            raise InvariantViolation("R3", "the engine emptied the cache, though nobody asked for it")
        self._notes.note_operation(operation, outcome)
        return outcome

    # -- the engine ------------------------------------------------------------------------------------

    @act(weight=5, times=(1, 4))
    def step(self, times: int) -> None:
        """Let the engine go on for a few iterations."""
        for _ in range(times):
            self._advance()

    @act(rare=_RARE)
    def settle(self, rare: int) -> None:
        """Let everything finish that may, and look at what is left."""
        if rare < 3:
            self._settle()

    @act(rare=_RARE, headroom=(0, 2), early=(0, 1))
    def start_again(self, rare: int, headroom: int, early: int) -> None:
        """End everything where it stands, empty the cache, and start another engine."""
        if rare < 2:
            self._checked(self.engine.drain)
            self._empty()
            self._start(headroom, early)

    @act(needs="is_at_rest")
    def flush(self) -> None:
        """Reset the cache while nobody uses it."""
        self._cache.reset()
        self.judge.evidence.meet("the cache is emptied at rest")

    @act(tokens=(0, 6), secondary=(0, 6))
    def evict(self, tokens: int, secondary: int) -> None:
        """Evict on somebody else's behalf, between two iterations."""
        self._notes.begin_iteration()
        self._cache.evict(tokens * self._scale, secondary * (1 if self._has_states else self._scale))
        self.judge.evidence.meet("somebody else evicts between two iterations", self._lives())

    @property
    def is_at_rest(self) -> bool:
        """Whether no request waits or lives."""
        return not self._lives()

    def _advance(self) -> bool:
        self._notes.begin_iteration()
        is_going = self._checked(self.engine.step)
        if self._audits:
            self._watched(self.examiner.look_inside)
        return is_going

    def _settle(self) -> None:
        while self._advance():
            pass
        self._checked(self.engine.check_quiescent)
        self.judge.evidence.meet("the engine comes to rest")

    def _empty(self) -> None:
        self._checked(self.engine.evict_everything)

    def _checked(self, call: Callable[[], T]) -> T:
        """Let the engine do something, and count what it tested."""
        self._is_intact, self._is_engines_turn = False, True
        result = self._watched(lambda: self._held_responsible(call))
        self._is_intact, self._is_engines_turn = True, False
        self.judge.evidence.exercised.update(+self.engine.watch.tested)
        self.engine.watch.tested.clear()
        return result

    def _held_responsible(self, call: Callable[[], T]) -> T:
        """Take what the specification forbids for the engine's doing: nobody else chose what to ask for."""
        try:
            return call()
        except UsageError as error:
            asked = self._carrier.asked
            law = "E2" if asked is None else _LAWS_OF_CALLS.get(type(asked), "E2")
            raise InvariantViolation(law, f"the engine did what no caller may: {error}") from error

    # -- requests --------------------------------------------------------------------------------------

    @act(
        needs="may_ask",
        weight=4,
        blocks=(1, 7),
        cut=(0, 4),
        turn=(0, 5),
        branch=(0, 1),
        output=_OUTPUT,
        space=(0, 5),
    )
    def ask(self, blocks: int, cut: int, turn: int, branch: int, output: int, space: int) -> None:
        """Let a request arrive whose prompt begins like others; it may end with a page or anywhere."""
        size, page_size = self._block_tokens, self.judge.model.page_size
        prompt = blocks * size - cut % size
        if cut == 4:
            prompt = max(page_size, prompt // page_size * page_size)
        self._push(prompt, self._output(output), turn, branch, space)

    @act(needs="may_ask", beyond=(0, 3), output=_OUTPUT, turn=(0, 5))
    def ask_for_everything(self, beyond: int, output: int, turn: int) -> None:
        """Let a request arrive that fills the pool, or that is a little too long ever to fit."""
        total, tokens = self.engine.config.capacity + (beyond == 3), self._output(output)
        self._push(total + 1 - tokens, tokens, turn, branch=1, space=0)

    @act(needs="may_ask", weight=2, chunk=(1, 6), slack=(0, 3), turn=(0, 1))
    def crowd(self, chunk: int, slack: int, turn: int) -> None:
        """Let one request produce while the prompt of another comes in chunks, until there is no room."""
        total, scale = self.engine.config.capacity, self._scale
        prompt = total // 6
        self.source.chunk = chunk * scale
        self._push(prompt, total // 2, turn, branch=0, space=0)
        self._push(total - prompt - slack * scale, 1, turn, branch=1, space=0)

    def _output(self, output: int) -> int:
        return output * self._scale if output > 1 else 1  # a single token takes no decode step at all

    @property
    def may_ask(self) -> bool:
        """Whether few enough wait."""
        return len(self.engine.queue) + self.source.pending < _MOST_WAITING

    @property
    def _block_tokens(self) -> int:
        return 2 if self._scale == 1 else 5  # no multiple of a page: prompts part inside pages, too

    def _push(self, prompt: int, output: int, turn: int, branch: int, space: int) -> None:
        prompt, output = max(prompt, 1), max(output, 1)  # of a pool of a few tokens a share may be none
        size = self._block_tokens
        places = range(-(-prompt // size))
        blocks = tuple(place if place < turn else (branch + 1) * 32 + place for place in places)
        namespace = self._spaces[space % len(self._spaces)]
        self.source.push(Request(self._requests, 0.0, prompt, output, blocks, size, namespace))
        self._requests += 1

    @act(needs="may_abort", pick=_PICK, held=(0, 1))
    def abort(self, pick: int, held: int) -> None:
        """Doom a request at the stage where it is; one that waits there or once its prefix is held."""
        lives = [*self._lives(), *((number, Stage.QUEUED) for number in self.source.pending_ids)]
        request_id, stage = lives[pick % len(lives)]
        self.source.doom(request_id, Stage.HELD if stage is Stage.QUEUED and held else stage)

    @act(tokens=(0, 5))
    def limit_chunks(self, tokens: int) -> None:
        """Let prompts be computed in small pieces, or lift the limit."""
        self.source.chunk = tokens

    @act(victim=(0, 2))
    def choose_victims(self, victim: int) -> None:
        """Say who must yield when memory is short."""
        self.source.victim = victim

    @property
    def may_abort(self) -> bool:
        """Whether any request comes, waits or lives."""
        return bool(self.source.pending or self._lives())

    def _lives(self) -> list[tuple[int, Stage]]:
        engine = self.engine
        return [
            (live.request_id, stage)
            for stage, lives in (
                (Stage.QUEUED, engine.queue),
                (Stage.PREFILL, engine.prefilling),
                (Stage.DECODE, engine.decoding.requests),
            )
            for live in lives
        ]

    # -- the end ---------------------------------------------------------------------------------------

    def end(self) -> None:
        """Let everything finish, and empty the cache: the pool is whole again."""
        if not self._is_intact:
            return  # something else than a violation came out of the engine: it cannot go on
        self.source.calm()
        self._settle()
        self._empty()
