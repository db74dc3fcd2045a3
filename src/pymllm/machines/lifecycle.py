"""Machines that run a simulated engine over an adapter, for sequences that only an engine produces.

The part that all of them share is here, with the machine of prefix caches; the one of contexts is in
`pymllm.machines.block_lifecycle`. An act arranges something, such as a request or an abort, or lets the
engine go on. Every call that the engine makes becomes an operation of an ordinary history
(`pymllm.machines.driven_cache`); what the engine itself checks, content, ownership and its own counters (laws
E1 to E6), is counted beside what the judge tests.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

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
from pymllm.workloads.live_request import LiveRequest, LiveSequence
from pymllm.workloads.request import Request
from pymllm.workloads.source import Stage


class DrawnSource:
    """The requests and decisions that acts have prepared for an engine; without any, sensible defaults."""

    may_abort = True

    def __init__(self) -> None:
        self.chunk = 0  # most tokens of a prefill chunk; 0 for no limit
        self.victim = 0  # how many places before the youngest the next victims stand, counted round
        self.aborting: Stage | None = None  # where the last abort was asked for, until somebody clears it
        self._requests: deque[Request] = deque()
        self._doomed: set[tuple[int, Stage]] = set()

    @property
    def pending(self) -> int:
        """The number of requests pushed and not yet taken."""
        return len(self._requests)

    @property
    def pending_ids(self) -> list[int]:
        """The ids of pending requests, in the order of arrival."""
        return [request.request_id for request in self._requests]

    def push(self, request: Request) -> None:
        """Add a request that arrives next."""
        self._requests.append(request)

    def doom(self, request_id: int, stage: Stage) -> None:
        """Mark a request to be aborted at a stage."""
        self._doomed.add((request_id, stage))

    def calm(self) -> None:
        """Make all requests finish from now on."""
        self.chunk = self.victim = 0
        self._doomed.clear()

    def next_request(self) -> Request | None:
        """Return the next pushed request."""
        return self._requests.popleft() if self._requests else None

    def abort(self, request_id: int, stage: Stage) -> bool:
        """Tell whether a request is marked to be aborted at this stage."""
        if (request_id, stage) not in self._doomed:
            return False
        self._doomed.remove((request_id, stage))
        self.aborting = stage
        return True

    def chunk_limit(self, request_id: int, limit: int) -> int:
        """Return `chunk`, the limit of tokens in a chunk."""
        return min(self.chunk or limit, limit)

    def retract_victim(self, candidates: Sequence[int]) -> int:
        """Return `victim`, the request to retract; by default the youngest."""
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


class EngineNotes:
    """An observer of engine events that counts the coverage goals that any engine can reach."""

    PLAIN: ClassVar[Mapping[Event, str]]

    def __init__(self, judge: Judge[Any], source: DrawnSource, just_fits: int) -> None:
        self._meet = judge.evidence.meet
        self._source = source
        self._just_fits = just_fits  # tokens of the shortest request that takes every page there is for it
        self._admitted: set[int] = set()
        self._retracted: set[int] = set()

    def begin_iteration(self) -> None:
        """Forget the requests that the last iteration admitted."""
        self._admitted.clear()

    def __call__(self, event: Event, live: Any) -> None:
        """Count the coverage goals of an event."""
        if event in self.PLAIN:
            self._meet(self.PLAIN[event])
        if event is Event.ADMITTED:
            self.note_admission(live)
        elif event is Event.RETRACTED:
            self.note_retraction(live)
        elif event is Event.ABORTED:
            self.note_abort(live)
        elif event is Event.FINISHED:
            self._note_finish(live)

    def note_admission(self, live: Any) -> None:
        """Count the coverage goals of an admission."""
        self._admitted.add(live.request_id)
        self._meet("a retracted request is admitted again", live.request_id in self._retracted)

    def note_retraction(self, live: Any) -> None:
        """Count the coverage goals of a retraction."""
        self._meet("a request is retracted twice", live.request_id in self._retracted)
        self._retracted.add(live.request_id)
        where = "between two chunks" if live.length < live.prompt_length else "in decode"
        self._meet(f"a request is retracted {where}")

    def note_abort(self, live: Any) -> None:
        """Count the coverage goals of an abort, at the stage for which it was ordered."""
        self._meet(_ABORTS[self._source.aborting])
        self._source.aborting = None

    def _note_finish(self, live: LiveSequence) -> None:
        self._meet("a request finishes inside its first chunk", live.request_id in self._admitted)
        self._meet("a request finishes in decode", live.prompt_length < live.final_length)
        self._meet("a request that just fits finishes", live.final_length >= self._just_fits)

    def note_operation(self, operation: Operation, outcome: Outcome) -> None:
        """Count the coverage goals of an operation of the engine."""


class LifecycleNotes(EngineNotes):
    """An observer of engine events that counts the coverage goals of an engine over a prefix cache."""

    PLAIN = _PLAIN

    def __init__(
        self,
        judge: Judge[CacheModel],
        cache: DrivenCache,
        source: DrawnSource,
        rows: ReqToTokenPool,
        config: EngineConfig,
    ) -> None:
        super().__init__(judge, source, config.capacity - config.page_size + 1)
        self._model = judge.model.cache
        self._cache = cache
        self._rows = rows
        self._partings: set[Path] = set()
        self._has_just_evicted = False

    def __call__(self, event: Event, live: LiveRequest) -> None:
        """Count the coverage goals of an event; a refusal for lack of a row counts separately."""
        super().__call__(event, live)
        if event is Event.REFUSED:
            self._meet("an admission fails for want of a row", not self._rows.available_size())

    def note_abort(self, live: LiveRequest) -> None:
        """Count the goals of an abort, also those about a shared prefix and a held state."""
        stage = self._source.aborting
        super().note_abort(live)
        self._meet("a request is aborted while another holds part of its prefix", self._is_shared(live))
        if stage in _ABORTS_WITH_STATES:
            self._meet(_ABORTS_WITH_STATES[stage], self._holds_state(live))

    def _is_shared(self, live: LiveRequest) -> bool:
        if not (live.row and live.held_length):
            return False
        return self._model.locks(self._held(live).upto(self._model.page_size)) > 1

    def _holds_state(self, live: LiveRequest) -> bool:
        states = self._model.states
        return states is not None and live.row > 0 and self._held(live) in states

    def _held(self, live: LiveRequest) -> Path:
        return self._cache.path_of_key(live.key(live.held_length))

    def note_retraction(self, live: LiveRequest) -> None:
        """Count the goals of a retraction, also those about a held state and an owned track slot."""
        super().note_retraction(live)
        self._meet("a request is retracted while it holds a state", self._holds_state(live))
        self._meet("a request is retracted with a track slot in its hands", live.track_slot)

    def note_admission(self, live: LiveRequest) -> None:
        """Count the goals of an admission, also those about the cached and the held prefix."""
        super().note_admission(live)
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

    def note_operation(self, operation: Operation, outcome: Outcome) -> None:
        """Count the coverage goals of an operation of the engine."""
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

_MOST_WAITING = 6
_SPACES = (None, None, None, "a", 1, "1")
_OTHER_SPACES = (None, None, None, "", 0, "0")  # false where one only asks whether there is one
_BRANCHES = (0, 4, 8, 0)  # ways in which prompts part at one block; 0 for few, at any of several
_PICK = (0, 7)
_OUTPUT = (0, 9)
_RARE = (0, 11)


class EngineMachine(ActingMachine):
    """A machine that runs an engine over an adapter; requests arrive, run, are aborted and retracted.

    Prompts are made of few blocks: a trunk that all share, which each prompt leaves at some block for one of
    a few branches. A prompt that fills the pool is as common as one that cannot fit.
    """

    engine: Any
    RESET_LAW: ClassVar[str]  # that an engine breaks which empties the cache by itself
    LAWS_OF_CALLS: ClassVar[Mapping[type[Operation], str]]
    """The law that an engine breaks by a forbidden call, by operation; by default E2."""

    # -- setting up ------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Start an engine over the adapter."""
        self.demand_engine()
        judge = self.examiner.judge
        self.judge = judge
        # An iteration is some eight operations; one walk for all of them makes 2,650 a second of 1,600.
        self.examiner.audits_steps = False
        self.source = DrawnSource()
        self._requests = 0
        self._may_not_reset = False
        self._branches = 0
        self._carrier = Carrier(self._carry, judge)
        self.set_up()

    @abstractmethod
    def demand_engine(self) -> None:
        """Raise an error for an adapter that no engine can drive."""

    @abstractmethod
    def set_up(self) -> None:
        """Read the sizes of the configuration, and start the first engine."""

    @property
    @abstractmethod
    def allocating(self) -> Any:
        """The part of the engine's memory that allocates; its ``refuses`` is called before it does."""

    @property
    @abstractmethod
    def notes(self) -> EngineNotes:
        """The observer of the engine's events."""

    def _carry(self, operation: Operation) -> Outcome:
        outcome = self.do(operation)
        if self._may_not_reset and isinstance(operation, ops.Reset):
            raise InvariantViolation(self.RESET_LAW, "the engine emptied the cache without being asked")
        self.notes.note_operation(operation, outcome)
        return outcome

    # -- the engine ------------------------------------------------------------------------------------
    @act(weight=5, times=(1, 4))
    def step(self, times: int) -> None:
        """Run a few iterations of the engine."""
        for _ in range(times):
            self._advance()

    @act(rare=_RARE)
    def settle(self, rare: int) -> None:
        """Run the engine until all requests finish, and check that no memory is held."""
        if rare < 3:
            self._settle()

    @act(needs="is_at_rest")
    def flush(self) -> None:
        """Reset the cache while no request uses it."""
        self.reset_cache()
        self.judge.evidence.meet("the cache is emptied at rest")

    @abstractmethod
    def reset_cache(self) -> None:
        """Empty the cache by one operation."""

    @property
    def is_at_rest(self) -> bool:
        """Whether no request is waiting or live."""
        return not self._lives()

    def _advance(self) -> bool:
        self.notes.begin_iteration()
        is_going: bool = self.checked(self.engine.step)
        self._watched(self.examiner.look_in_turn)
        return is_going

    def _settle(self) -> None:
        while self._advance():
            pass
        self.checked(self.engine.check_quiescent)
        self.judge.evidence.meet("the engine comes to rest")

    def end_engine(self) -> None:
        """End all requests, and have the engine empty the cache."""
        self.checked(self.engine.drain)
        self.empty()

    def empty(self) -> None:
        """Have the engine empty the cache, and check that the pool is whole."""
        self.checked(self.engine.evict_everything)

    def checked(self, call: Callable[[], T], *, may_reset: bool = False) -> T:
        """Make a call to the engine, and count the laws that it tested."""
        self._may_not_reset = not may_reset
        result = self._watched(lambda: self._held_responsible(call))
        self._may_not_reset = False
        exercised, tested = self.judge.evidence.exercised, self.engine.watch.tested
        for law, times in tested.items():  # which takes a tenth of the time of adding two counters
            if times:
                exercised[law] += times
        tested.clear()
        return result

    def _held_responsible(self, call: Callable[[], T]) -> T:
        """Turn a forbidden call by the engine into a violation, since the engine chose its arguments."""
        try:
            return call()
        except UsageError as error:
            asked = self._carrier.asked
            law = "E2" if asked is None else self.LAWS_OF_CALLS.get(type(asked), "E2")
            raise InvariantViolation(law, f"the engine made a forbidden call: {error}") from error

    # -- requests --------------------------------------------------------------------------------------
    @act(which=(0, len(_BRANCHES) - 1))
    def use_branches(self, which: int) -> None:
        """Make later short prompts branch in many ways or live in other namespaces, or end that."""
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
        """Add a request whose prompt shares its beginning with others and may end inside a page."""
        size, page_size = self.block_tokens, self.engine.config.page_size
        if self._branches:
            blocks, turn = 1 + blocks % 3, turn % 2
        prompt = blocks * size - cut % size
        if cut == 4:
            prompt = max(page_size, prompt // page_size * page_size)
        self._push(prompt, self.output_of(output), turn, branch, space)

    @act(needs="may_ask", beyond=(0, 3), output=_OUTPUT, turn=(0, 5))
    def ask_for_everything(self, beyond: int, output: int, turn: int) -> None:
        """Add a request that fills the pool, or one slightly too long to fit at all."""
        total, tokens = self.engine.config.max_context + (beyond == 3), self.output_of(output)
        self._push(total + 1 - tokens, tokens, turn, branch=1, space=0)

    @act(needs="may_ask", weight=2, chunk=(1, 6), slack=(0, 3), turn=(0, 1))
    def crowd(self, chunk: int, slack: int, turn: int) -> None:
        """Run one decoding request while another's prompt is computed in chunks, until there is no room."""
        self.source.chunk = chunk * self.scale
        (prompt, output), other = self.crowd_sizes(slack)
        self._push(prompt, output, turn, branch=0, space=0)
        self._push(other, 1, turn, branch=1, space=0)

    @property
    @abstractmethod
    def scale(self) -> int:
        """The unit of lengths, in tokens: whole pages."""

    @property
    @abstractmethod
    def block_tokens(self) -> int:
        """The length of a prompt's block, not a multiple of a page, so that prompts part inside pages."""

    @abstractmethod
    def output_of(self, output: int) -> int:
        """Return the number of tokens that a request produces; 1 token needs no decode step."""

    @abstractmethod
    def crowd_sizes(self, slack: int) -> tuple[tuple[int, int], int]:
        """Return the prompt and output of a growing request, and a prompt that finds no room with it."""

    @property
    def may_ask(self) -> bool:
        """Whether so few requests wait that another may arrive."""
        return len(self.engine.queue) + self.source.pending < _MOST_WAITING

    def _push(self, prompt: int, output: int, turn: int, branch: int, space: int) -> None:
        prompt, output = max(prompt, 1), max(output, 1)  # of a pool of a few tokens a share may be none
        size = self.block_tokens
        places = range(-(-prompt // size))
        if self._branches:
            # Block 0 is the first of a branch, behind the trunk; the others differ from it in upper bits.
            first = (branch + 2 * self._requests) % self._branches * 2**15
            blocks = tuple(first + place - turn if place >= turn else 1 + place for place in places)
        else:
            blocks = tuple(place if place < turn else (branch + 1) * 32 + place for place in places)
        self.source.push(Request(self._requests, 0.0, prompt, output, blocks, size, self._namespace(space)))
        self._requests += 1

    def _namespace(self, space: int) -> str | int | None:
        spaces = _OTHER_SPACES if self._branches else _SPACES
        return spaces[space % len(spaces)] if self.has_spaces else None

    @property
    def has_spaces(self) -> bool:
        """Whether prompts may belong to several namespaces."""
        return True

    @act(needs="may_abort", pick=_PICK, held=(0, 1))
    def abort(self, pick: int, held: int) -> None:
        """Mark a request to be aborted at its present stage, or once its prefix is held."""
        lives = [*self._lives(), *((number, Stage.QUEUED) for number in self.source.pending_ids)]
        request_id, stage = lives[pick % len(lives)]
        self.source.doom(request_id, Stage.HELD if stage is Stage.QUEUED and held else stage)

    @act(tokens=(0, 5))
    def limit_chunks(self, tokens: int) -> None:
        """Limit prompts to small chunks, or remove the limit."""
        self.source.chunk = tokens * self.chunk_unit

    @property
    def chunk_unit(self) -> int:
        """The unit of the chunk limit, in tokens."""
        return 1

    @act(victim=(0, 2))
    def choose_victims(self, victim: int) -> None:
        """Choose the requests that are retracted when memory runs short."""
        self.source.victim = victim

    @property
    def may_abort(self) -> bool:
        """Whether any request is pending, waiting or live."""
        return bool(self.source.pending or self._lives())

    def _lives(self) -> list[tuple[int, Stage]]:
        return [(live.request_id, stage) for stage, lives in self.engine.by_stage() for live in lives]

    # -- the end ---------------------------------------------------------------------------------------
    def end(self) -> None:
        """Run the engine until all requests finish, empty the cache, and check that the pool is whole."""
        self.source.calm()
        self._settle()
        self.empty()


class LifecycleMachine(EngineMachine):
    """A machine that runs an engine over a prefix cache and its pool."""

    RESET_LAW = "R3"
    LAWS_OF_CALLS: ClassVar[Mapping[type[Operation], str]] = {
        **dict.fromkeys((ops.Free, ops.FreeSWA, ops.FreeTrack, ops.Unlock), "E3"),
        ops.Alloc: "E4",
    }
    engine: Engine

    def demand_engine(self) -> None:
        """Raise an error for an adapter that no engine can drive."""
        header = self.examiner.history.header
        if "engine" not in header.capabilities or header.kind != "prefix":
            raise AdapterError(header.adapter, "an engine needs a prefix cache that claims it can be driven")

    def set_up(self) -> None:
        """Start the first engine, which frees memory behind a window early; later ones may free it late."""
        self._scale = 1 if self.judge.model.page_size == 1 else 2
        self._has_states = self.judge.model.tracks is not None
        self.start(headroom=0, early=1)  # what is cached then is dead in part

    def start(self, *, headroom: int, early: int) -> None:
        """Start an engine with some reserved tokens, which frees memory behind a window early or late."""
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

    @property
    def allocating(self) -> Any:
        """The allocator of the engine's slot pool."""
        return self.engine.memory.pools.allocator

    @property
    def notes(self) -> LifecycleNotes:
        """The observer of the engine's events."""
        return self._notes

    @act(rare=_RARE, headroom=(0, 2), early=(0, 1))
    def start_again(self, rare: int, headroom: int, early: int) -> None:
        """End all requests, empty the cache, and start another engine."""
        if rare < 2:
            self.end_engine()
            self.start(headroom=headroom, early=early)

    @act(tokens=(0, 6), secondary=(0, 6))
    def evict(self, tokens: int, secondary: int) -> None:
        """Evict between two iterations of the engine, as another caller would."""
        self._notes.begin_iteration()
        self._cache.evict(tokens * self._scale, secondary * (1 if self._has_states else self._scale))
        self.judge.evidence.meet("somebody else evicts between two iterations", self._lives())

    def reset_cache(self) -> None:
        """Empty the cache by one operation."""
        self._cache.reset()

    @property
    def scale(self) -> int:
        """The unit of lengths, in tokens: whole pages."""
        return self._scale

    @property
    def block_tokens(self) -> int:
        """The length of a prompt's block, in tokens."""
        return 2 if self._scale == 1 else 5

    def output_of(self, output: int) -> int:
        """Return the number of tokens that a request produces."""
        return output * self._scale if output > 1 else 1

    def crowd_sizes(self, slack: int) -> tuple[tuple[int, int], int]:
        """Return the prompt and output of a growing request, and a prompt that finds no room with it."""
        total = self.engine.config.capacity
        prompt = total // 6
        return (prompt, total // 2), total - prompt - slack * self._scale

    @property
    def has_spaces(self) -> bool:
        """Whether prompts may belong to several namespaces."""
        return "extra_key" in self.examiner.history.header.capabilities
