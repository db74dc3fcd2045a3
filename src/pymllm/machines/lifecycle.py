"""A machine that drives the simulated engine over an adapter: legal sequences that only an engine produces.

An act arranges something, such as a request or an abort, or lets the engine go on. Every call that the
engine makes becomes an operation of an ordinary history (`pymllm.machines.driven_cache`); what the engine
itself checks, content and ownership (laws E1 to E5), is counted beside what the judge tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from pymllm.errors import AdapterError, InvariantViolation, UsageError
from pymllm.history import operations as ops
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Evicted, NoRoom, Outcome, Slots
from pymllm.machines.acting import ActingMachine, act
from pymllm.machines.driven_cache import (
    Carrier,
    DrivenCache,
    driven_config,
    make_driven_cache,
    make_driven_pools,
)
from pymllm.mem_cache.memory_pool import ReqToTokenPool
from pymllm.oracle.judge import Judge
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_model import Path, path_of_key
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request
from pymllm.workloads.source import Stage


class DrawnSource:
    """Answers as it was told beforehand, and sensibly where it was told nothing."""

    may_abort = True

    def __init__(self) -> None:
        self.chunk = 0  # most tokens of a prefill chunk; 0 for no limit
        self.victim = 0  # how many places before the youngest the next victims stand, counted round
        self.aborting: Stage | None = None  # where the last abort was asked for, until somebody clears it
        self._requests: deque[Request] = deque()
        self._doomed: set[tuple[int, Stage]] = set()

    @property
    def pending(self) -> int:
        """Requests that were pushed and not taken yet."""
        return len(self._requests)

    @property
    def pending_ids(self) -> list[int]:
        """Their ids, in the order of arrival."""
        return [request.request_id for request in self._requests]

    def push(self, request: Request) -> None:
        """Let a request arrive next."""
        self._requests.append(request)

    def doom(self, request_id: int, stage: Stage) -> None:
        """Abort a request when it is next asked about at a stage."""
        self._doomed.add((request_id, stage))

    def calm(self) -> None:
        """Let everything that was asked for finish from now on."""
        self.chunk = self.victim = 0
        self._doomed.clear()

    def next_request(self) -> Request | None:
        """Give the next request that was pushed."""
        return self._requests.popleft() if self._requests else None

    def abort(self, request_id: int, stage: Stage) -> bool:
        """Abort who is doomed here."""
        if (request_id, stage) not in self._doomed:
            return False
        self._doomed.remove((request_id, stage))
        self.aborting = stage
        return True

    def chunk_limit(self, request_id: int, limit: int) -> int:
        """Allow `chunk` tokens."""
        return min(self.chunk or limit, limit)

    def retract_victim(self, candidates: Sequence[int]) -> int:
        """Choose `victim`; the youngest by default."""
        return candidates[-1 - self.victim % len(candidates)]


_ABORTS = {
    Stage.QUEUED: "a waiting request is aborted",
    Stage.HELD: "a request is aborted while its prefix is held",
    Stage.PREFILL: "a request is aborted between two chunks",
    Stage.DECODE: "a request is aborted in decode",
    None: "the engine is drained with requests in it",
}
_ABORTS_WITH_STATES = {
    Stage.PREFILL: "a request is aborted between two chunks while it holds a state",
    Stage.DECODE: "a request is aborted in decode while it holds a state",
}
_PLAIN = {
    Event.REJECTED: "a request can never fit",
    Event.REFUSED: "an admission fails",
    Event.DUPLICATED: "duplicates are given back",
    Event.UNCACHED: "the cache takes nothing of what was computed",
    Event.SNAPSHOT_SKIPPED: "a snapshot is left out for want of a track slot",
    Event.STATE_DUPLICATED: "the track slot of a state that is cached meanwhile is given back",
}


class LifecycleNotes:
    """An onlooker that counts coverage goals in the judge's evidence."""

    def __init__(
        self,
        judge: Judge[CacheModel],
        cache: DrivenCache,
        source: DrawnSource,
        rows: ReqToTokenPool,
        config: EngineConfig,
    ) -> None:
        self._meet = judge.evidence.meet
        self._model = judge.model.cache
        self._cache = cache
        self._source = source
        self._rows = rows
        self._config = config
        self._admitted: set[int] = set()
        self._retracted: set[int] = set()
        self._partings: set[Path] = set()
        self._has_just_evicted = False

    def begin_iteration(self) -> None:
        """Forget who was admitted in the iteration before."""
        self._admitted.clear()

    def __call__(self, event: Event, live: LiveRequest) -> None:
        """Count what an event of the engine means."""
        if event in _PLAIN:
            self._meet(_PLAIN[event])
        if event is Event.REFUSED:
            self._meet("an admission fails for want of a row", not self._rows.available_size())
        elif event is Event.ADMITTED:
            self._note_admission(live)
        elif event is Event.RETRACTED:
            self._note_retraction(live)
        elif event is Event.ABORTED:
            self._note_abort(live)
        elif event is Event.FINISHED:
            self._note_finish(live)

    def _note_abort(self, live: LiveRequest) -> None:
        stage = self._source.aborting
        self._meet(_ABORTS[stage])
        self._meet("a request is aborted while another holds part of its prefix", self._is_shared(live))
        if stage in _ABORTS_WITH_STATES:
            self._meet(_ABORTS_WITH_STATES[stage], self._holds_state(live))
        self._source.aborting = None

    def _is_shared(self, live: LiveRequest) -> bool:
        if not (live.row and live.held_length):
            return False
        return self._model.locks(self._held(live).upto(self._model.page_size)) > 1

    def _holds_state(self, live: LiveRequest) -> bool:
        states = self._model.states
        return states is not None and live.row > 0 and self._held(live) in states

    def _held(self, live: LiveRequest) -> Path:
        return self._cache.path_of_key(live.key(live.held_length))

    def _note_retraction(self, live: LiveRequest) -> None:
        self._meet("a request is retracted twice", live.request_id in self._retracted)
        self._retracted.add(live.request_id)
        where = "between two chunks" if live.length < live.prompt_length else "in decode"
        self._meet(f"a request is retracted {where}")
        self._meet("a request is retracted while it holds a state", self._holds_state(live))
        self._meet("a request is retracted with a track slot in its hands", live.track_slot)

    def _note_admission(self, live: LiveRequest) -> None:
        self._admitted.add(live.request_id)
        self._meet("a retracted request is admitted again", live.request_id in self._retracted)
        prompt = self._cache.path_of_key(live.key(live.prompt_length))
        stored = len(self._model.stored(prompt)) * self._model.page_size
        self._meet("a full hit leaves a token to compute", stored == live.prompt_length)
        lost = min(stored, live.queried_length) > live.held_length
        kept_from = "behind a dead window" if self._model.states is None else "beyond the last state"
        self._meet(f"cached tokens lie {kept_from}", lost)
        held = prompt.upto(live.held_length)
        again = held.tokens and live.request_id in self._retracted
        self._meet("a retracted request finds cached what it had", again)
        self._meet("two requests hold one prefix", held.tokens and self._model.locks(held) > 1)
        self._meet("a request resumes from a state", self._holds_state(live))
        self._partings.add(prompt.upto(live.branching_length))

    def _note_finish(self, live: LiveRequest) -> None:
        self._meet("a request finishes inside its first chunk", live.request_id in self._admitted)
        self._meet("a request finishes in decode", live.prompt_length < live.final_length)
        just = live.final_length > self._config.capacity - self._config.page_size
        self._meet("a request that just fits finishes", just)

    def note_operation(self, operation: Operation, outcome: Outcome) -> None:
        """Count what an operation of the engine met."""
        result = outcome.result
        if isinstance(operation, ops.Evict) and isinstance(result, Evicted) and result.full + result.swa:
            self._meet("an eviction makes room")
            self._meet("an eviction makes room for a prompt just admitted", self._admitted)
            self._meet("an eviction for slots takes a state along", operation.tokens and result.states)
        self._meet("halves behind a window are returned", isinstance(operation, ops.FreeSWA))
        if self._has_just_evicted:
            self._meet(
                "evicting is not enough", isinstance(operation, ops.Alloc) and isinstance(result, NoRoom)
            )
            self._meet(
                "an eviction makes room for a snapshot",
                isinstance(operation, ops.AllocTrack) and isinstance(result, Slots),
            )
        if isinstance(operation, ops.Insert) and operation.state is not None:
            path = path_of_key(operation.key)
            self._meet("a snapshot is taken where prompts part", path in self._partings)
        self._has_just_evicted = isinstance(operation, ops.Evict)


T = TypeVar("T")

_LAWS_OF_CALLS: dict[type[Operation], str] = {
    **dict.fromkeys((ops.Free, ops.FreeSWA, ops.FreeTrack, ops.Unlock), "E3"),
    ops.Alloc: "E4",
}
"""What an engine breaks with a call that no caller may make; the others name what is not its own, E2."""
_MOST_WAITING = 6
_SPACES = (None, None, None, "a", 1, "1")
_OTHER_SPACES = (None, None, None, "", 0, "0")  # false where one only asks whether there is one
_BRANCHES = (0, 4, 8, 0)  # ways in which prompts part at one block; 0 for few, at any of several
_PICK = (0, 7)
_OUTPUT = (0, 9)
_RARE = (0, 11)


class LifecycleMachine(ActingMachine):
    """Requests arrive, run, are aborted and retracted, over the adapter's cache and pool.

    Prompts are made of few blocks: a trunk that all share, which each prompt leaves at some block for one of
    a few branches. A prompt that fills the pool is as common as one that cannot fit.
    """

    # -- setting up ------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Start an engine over the adapter."""
        judge, header = self.examiner.judge, self.examiner.history.header
        if "engine" not in header.capabilities or header.kind != "prefix":
            raise AdapterError(header.adapter, "an engine needs a prefix cache that claims it can be driven")
        self.judge = judge
        # An iteration is some eight operations; one walk for all of them makes 2,650 a second of 1,600.
        self.examiner.audits_steps = False
        self.source = DrawnSource()
        self._requests = 0
        self._is_engines_turn = False
        self._scale = 1 if judge.model.page_size == 1 else 2
        self._has_states = judge.model.tracks is not None
        self._has_spaces = "extra_key" in header.capabilities
        self._branches = 0
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
        if self._is_engines_turn and isinstance(operation, ops.Reset):
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
        self._watched(self.examiner.look_in_turn)
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
        self._is_engines_turn = True
        result = self._watched(lambda: self._held_responsible(call))
        self._is_engines_turn = False
        exercised, tested = self.judge.evidence.exercised, self.engine.watch.tested
        for law, times in tested.items():  # which takes a tenth of the time of adding two counters
            if times:
                exercised[law] += times
        tested.clear()
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
    @act(which=(0, len(_BRANCHES) - 1))
    def use_branches(self, which: int) -> None:
        """Let short prompts part in many ways from now on, and have other namespaces, or be as usual."""
        self._branches = _BRANCHES[which]

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
        if self._branches:
            blocks, turn = 1 + blocks % 3, turn % 2
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
        if self._branches:
            # Block 0 is the first of a branch, behind the trunk; the others differ from it in upper bits.
            first = (branch + 2 * self._requests) % self._branches * 2**15
            blocks = tuple(first + place - turn if place >= turn else 1 + place for place in places)
        else:
            blocks = tuple(place if place < turn else (branch + 1) * 32 + place for place in places)
        namespace = self._namespace(space)
        self.source.push(Request(self._requests, 0.0, prompt, output, blocks, size, namespace))
        self._requests += 1

    def _namespace(self, space: int) -> str | int | None:
        spaces = _OTHER_SPACES if self._branches else _SPACES
        return spaces[space % len(spaces)] if self._has_spaces else None

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
        self.source.calm()
        self._settle()
        self._empty()
