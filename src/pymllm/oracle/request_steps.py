"""The judge of a step, and what it shares with that of whole requests: the books, and looks at them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import Fault, RunStep
from pymllm.history.outcomes import (
    INJECTED,
    ContextBlock,
    ContextView,
    Failed,
    Outcome,
    Ran,
    RequestRun,
    RequestView,
)
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.models.request_model import (
    DECODE,
    PAUSED,
    PREFILL,
    WAITING,
    Kept,
    Leaving,
    RequestModel,
    ServedRequest,
    priority,
)

if TYPE_CHECKING:
    from pymllm.oracle.request_judge import RequestJudge


class RequestBooks:
    """What the judges of one context share: the model, the evidence, and what was let fail."""

    def __init__(self, header: Header, evidence: Evidence) -> None:
        self.evidence = evidence
        self.model = RequestModel(header.config)
        self.claims = frozenset(header.capabilities)
        self.fault: Fault | None = None  # the call that the operation at hand was told to let fail
        self.has_states = self.model.slots.total > 0
        if self.has_states != ("mamba" in self.claims):
            raise ProgramError("an adapter with slots for states claims mamba, and no other does")

    def find(self, step: int, act: str) -> ServedRequest | None:
        """Return the request of a step, which must be able to do something; ``None`` once it was released.

        A request that was in a step that failed can only leave: a `ProgramError` else.
        """
        if step in self.model.gone:
            return None
        if step not in self.model.served:
            raise ProgramError(f"step {step} added no request that could {act}")
        request = self.model.served[step]
        if request.is_spoiled and act != "leave":
            raise ProgramError(
                f"the request of step {step} was in a step that failed; it can only be released"
            )
        return request

    def is_struck(self, outcome: Outcome, *calls: str) -> bool:
        """Tell whether an operation failed because one of these calls was told to."""
        result = outcome.result
        if not isinstance(result, Failed) or result.error != INJECTED:
            return False
        return self.is_armed(*calls)

    def is_armed(self, *calls: str) -> bool:
        """Tell whether one of these calls was told to fail."""
        return self.fault is not None and self.fault.call in calls

    def demand_strike(self, what: str, outcome: Outcome, *calls: str, made: int = 1) -> None:
        """Refuse an outcome of an operation in which a call was to fail, if as many were made for sure."""
        if self.is_armed(*calls) and self.fault is not None and self.fault.nth <= made:
            self.evidence.refuse("X2", f"{what} whose {self.fault.call} fails", INJECTED, outcome.result)

    def survive(self, what: str, outcome: Outcome | None = None) -> str:
        """Count a failure that has left no trace, and return the law of its traces."""
        if outcome is not None:
            self.check_effects("X2", "what failed", (), outcome)
        if "faults" in self.claims:
            self.evidence.count("X2")
        self.evidence.meet(what)
        return "X2"

    def check_effects(self, law: str, what: str, expected: Collection[int], outcome: Outcome) -> None:
        """Test which blocks were told to be deregistered or free, each once, whatever the order."""
        others = [effect.call for effect in outcome.effects if effect.call != "callback"]
        if others:
            self.evidence.refuse(law, f"effects of {what}", "callbacks alone", others)
        told = sorted(block for effect in outcome.effects for block in effect.slots)
        if expected or told:
            self.evidence.expect(law, f"blocks that {what} gives up", sorted(expected), told)

    def check_new(self, request: ServedRequest, blocks: Sequence[int], missing: int) -> list[int]:
        """Test the row of a request that has got ``missing`` new blocks; return those.

        What was evicted for them is already free in the model.
        """
        had, evidence = len(request.blocks), self.evidence
        if had:
            evidence.expect(
                "E2", f"first blocks of request {request.step}", tuple(request.blocks), tuple(blocks[:had])
            )
        new = [*blocks[had:]]
        evidence.expect("E2", f"blocks of request {request.step}", had + missing, len(blocks))
        wrong = [block for block in new if block not in self.model.blocks.free]
        if new:
            distinct = len({*new}) == len(new)
            evidence.demand(
                "C1", distinct and not wrong, "blocks handed out", "free ones, each once", lambda: new
            )
        return new


_ORDER = (PAUSED, DECODE, PREFILL, WAITING)


def first_row(books: RequestBooks, region: str) -> int:
    """Return the first row of a region."""
    return sum(len(books.model.of(each)) for each in _ORDER[: _ORDER.index(region)])


def check_request(books: RequestBooks, request: ServedRequest, view: RequestView) -> None:
    """Test one request: where it stands, its row, and what is in its blocks and in its live state."""
    expect, who = books.evidence.expect, f"request {request.step}"
    expect("E2", "the request that is told of", request.step, view.request)
    expect("E2", f"region of {who}", request.region, view.region)
    first = first_row(books, request.region)
    rows = range(first, first + len(books.model.of(request.region)))
    books.evidence.demand("E2", view.row in rows, f"row of {who}", f"one of {rows}", lambda: view.row)
    expect("E2", f"blocks of {who}", tuple(request.blocks), view.blocks)
    expect("E2", f"finished tokens of {who}", min(request.computed, request.prompt), view.finished)
    if request.is_spoiled:
        return
    cold, size = books.model.cold, books.model.block_size
    cold.extend(request.prefixes, request.tokens)
    whole = max(request.computed // size, request.matched)
    wanted = tuple(prefix.kv for prefix in request.prefixes[:whole])
    if len(view.kv) != len(request.blocks):
        books.evidence.refuse("E1", f"sums of the blocks of {who}", len(request.blocks), len(view.kv))
    if wanted:
        expect("E1", f"KV in the blocks of {who}", wanted, view.kv[:whole])
    if books.model.layers:
        state = cold.state_at(request.prefixes, request.tokens, request.start)
        expect("E1", f"live state of {who} after {request.start} tokens", state, view.state)


def check_view(books: RequestBooks, view: ContextView) -> None:
    """Test everything that there is."""
    model, expect = books.model, books.evidence.expect
    expect("E2", "requests", sorted(model.served), sorted(each.request for each in view.requests))
    expect("E2", "rows", [*range(len(view.requests))], [each.row for each in view.requests])
    for each in view.requests:
        check_request(books, model.served[each.request], each)
    expect("C1", "blocks that are not free", model.blocks.occupied, [each.block for each in view.blocks])
    for block in view.blocks:
        _check_block(books, block)


def _check_block(books: RequestBooks, view: ContextBlock) -> None:
    model, expect, who = books.model, books.evidence.expect, f"block {view.block}"
    expect("C1", f"references of {who}", model.blocks.refs[view.block], view.references)
    hash_value = model.blocks.hash_of.get(view.block, -1)
    expect("C3", f"hash of {who}", hash_value, view.hash)
    if not books.has_states:
        return
    expect("C2", f"slot of {who}", model.slots.slot_of.get(view.block, -1), view.slot)
    if view.slot < 0 and view.state:
        books.evidence.refuse("C7", f"cached state of {who}, which has none", (), view.state)
    if view.slot >= 0 and hash_value != -1:
        expect("C7", f"cached state of {who}", model.prefix_of[view.block].state, view.state)


_FORWARD = "forward"
_COMMIT = ("allocate_slots", "store_states")


class StepJudge:
    """Judges steps over the books of a context."""

    def __init__(self, books: RequestBooks) -> None:
        self._books = books
        self._model = books.model
        self._evidence = books.evidence

    def judge(self, operation: RunStep, outcome: Outcome, judge: RequestJudge) -> str:
        """Judge one step and follow it; return the law of the sizes afterwards."""
        decoding, chunks = self._model.of(DECODE), self._model.of(PREFILL)
        if not operation.next_tokens or any(not 0 <= token < 2**32 for token in operation.next_tokens):
            raise ProgramError("next_tokens must name one token at least, each in 0 .. 2**32 - 1")
        if any(request.is_spoiled for request in (*decoding, *chunks)):
            raise ProgramError("a request of a step that failed is still there; release it first")
        full = [request for request in decoding if self._model.missing(request)]
        if any(len(request.blocks) == self._model.max_blocks for request in full):
            self._evidence.meet("a request is as long as it may be")
            self._books.check_effects("X1", "a refused step", (), outcome)
            return judge.expect_refusal("X1", "a step beyond a row's end", outcome, "UsageError")
        if self._failed_early(len(full), outcome):
            return "X2"
        ran = judge.answer(
            Ran, "E4", f"a step that needs {len(full)} of {self._model.room()} blocks", outcome
        )
        states = {*self._model.slots.slot_of}
        victims = self._model.evict(len(full))
        self._books.check_effects("C1", "an eviction", victims, outcome)
        if states.intersection(victims):
            told = {*ran.dropped}.intersection(victims)
            self._evidence.expect(
                "C6", "states of evicted blocks that go", states.intersection(victims), told
            )
        ran = replace(ran, dropped=tuple(block for block in ran.dropped if block not in victims))
        self._evidence.meet("cached blocks are evicted for a decoding request", victims)
        self._judge_batch(decoding, chunks, ran)
        if ran.error:
            self._follow_failure(ran)
        else:
            self._books.demand_strike("a step", outcome, _FORWARD, made=len(ran.requests))
            self._follow_success(operation.next_tokens, ran, outcome)
        return self._law_of_sizes(outcome)

    def _law_of_sizes(self, outcome: Outcome) -> str:
        """Return the law that is broken if the sizes are wrong: of slots, if nothing else is (C1, C2)."""
        wanted = self._model.sizes()
        wrong = {name for name, size in outcome.sizes.items() if size != wanted.get(name, size)}
        return "C2" if self._books.has_states and wrong <= {"free_count"} else "C1"

    def _failed_early(self, missing: int, outcome: Outcome) -> bool:
        """Judge whether a step failed for want of blocks, before it began (X2, X4)."""
        room = self._model.room()
        is_short = missing > room
        if missing and self._books.is_struck(outcome, "allocate_blocks"):
            self._books.survive("a step that gets no block leaves no trace")
        elif is_short or (
            missing and self._books.is_armed("no_blocks") and isinstance(outcome.result, Failed)
        ):
            what = f"a step that needs {missing} blocks of {room}"
            self._evidence.expect_error("X4", what, outcome, "CapacityError", "MambaSlotCapacityError")
            self._evidence.meet("a step finds too few blocks for decoding requests", is_short)
        else:
            if missing:
                self._books.demand_strike("a step", outcome, "allocate_blocks", "no_blocks")
            return False
        self._books.check_effects("X2", "a failed step", (), outcome)
        return True

    # -- what is computed ----------------------------------------------------------------------------------

    def _judge_batch(
        self, decoding: Sequence[ServedRequest], chunks: Sequence[ServedRequest], ran: Ran
    ) -> None:
        told = [run.request for run in ran.requests]
        first = [request.step for request in decoding]
        expected = (sorted(first), sorted(request.step for request in chunks))
        split = len(first)
        self._evidence.expect(
            "E2", "requests of the batch", expected, (sorted(told[:split]), sorted(told[split:]))
        )
        begin = first_row(self._books, DECODE)
        rows = [*range(begin, begin + len(told))]
        self._evidence.expect("E2", "rows of the batch", rows, [run.row for run in ran.requests])
        for run in ran.requests:
            self._judge_run(self._model.served[run.request], run, is_cut_short=bool(ran.error))
        self._note_batch(decoding, chunks)

    def _judge_run(self, request: ServedRequest, run: RequestRun, is_cut_short: bool) -> None:
        expect, who = self._evidence.expect, f"request {request.step}"
        missing = self._model.missing(request)
        self._model.extend(request, self._books.check_new(request, run.blocks, missing))
        self._evidence.meet("a decoding request goes on in a new block", missing)
        count = request.stop - request.start
        law = "E4" if not run.count else "E1"
        expect(law, f"tokens that {who} computes", (request.start, count), (run.start, run.count))
        self._judge_writes(request, run)
        if self._books.has_states:
            offsets = self._model.offsets(request) if request.chunk else ()
            expect("C8", f"offsets of {who}", offsets, run.offsets)
            self._evidence.meet("states are extracted inside a chunk", offsets)
        expect("E1", f"whether {who} samples", request.stop >= request.prompt, run.is_sampled)
        cold = self._model.cold
        cold.extend(request.prefixes, request.tokens)
        if self._model.layers:
            state = cold.state_at(request.prefixes, request.tokens, request.start)
            expect("E1", f"state of {who} after {request.start} tokens", state, run.state)
        if run.kv or not is_cut_short:
            kv = cold.kv_until(request.prefixes, request.tokens, request.stop)
            ahead = (0,) * (len(request.blocks) - len(kv))  # blocks that it does not reach yet
            expect("E1", f"KV that {who} reads", kv + ahead, run.kv)

    def _judge_writes(self, request: ServedRequest, run: RequestRun) -> None:
        """Where the KV of each token goes: to its place, or to the dummy if that is a shared block's (E5)."""
        size, place = self._model.block_size, request.start
        for first, count in run.writes:
            at, offset = divmod(place, size)
            homes = [request.blocks[at]] if at < len(request.blocks) else []
            homes += [self._model.dummy] if at < request.matched else []
            allowed = [block * size + offset for block in homes]
            law = "E5" if at < request.matched or first // size == self._model.dummy else "E2"
            what = f"where request {request.step} writes token {place}"
            is_right = first in allowed and 0 < count <= size - offset
            self._evidence.demand(law, is_right, what, f"{allowed}", lambda: run.writes)
            self._evidence.meet("KV of shared blocks goes to the dummy", first // size == self._model.dummy)
            place += count
        self._evidence.expect("E2", f"end of what request {request.step} writes", request.stop, place)

    def _note_batch(self, decoding: Sequence[ServedRequest], chunks: Sequence[ServedRequest]) -> None:
        meet = self._evidence.meet
        meet("several requests compute chunks in one step", len(chunks) > 1)
        meet("a step decodes and computes chunks", decoding and chunks)
        meet("a later chunk is computed", any(request.computed for request in chunks))

    # -- what is left --------------------------------------------------------------------------------------

    def _follow_success(self, next_tokens: Sequence[int], ran: Ran, outcome: Outcome) -> None:
        requests = [self._model.served[run.request] for run in ran.requests]
        expected = self._register(requests)
        self._evidence.expect("C3", "blocks that are registered", sorted(expected), sorted(ran.registered))
        if self._books.has_states:
            plan = self._plan_commit(ran.requests)
            if plan.new:
                self._books.demand_strike("a step", outcome, *_COMMIT)
            self._judge_commit(plan, ran)
        sampling = sorted(request.step for request in requests if request.stop >= request.prompt)
        for request in requests:
            place = sampling.index(request.step) if request.step in sampling else 0
            self._model.finish_step(request, next_tokens[place % len(next_tokens)])

    def _register(self, requests: Sequence[ServedRequest]) -> list[int]:
        """Register what was computed, in the order of the batch."""
        registered: list[int] = []
        for request in requests:
            was_known = request.is_known
            registered += self._model.register(request, request.stop)
            self._evidence.meet("a block stays unregistered", was_known and not request.is_known)
        return registered

    def _plan_commit(self, runs: Sequence[RequestRun]) -> Kept:
        """Work out which states the step keeps (C6, C7)."""
        leaving = [each for run in runs for each in self._leaving(self._model.served[run.request], run.row)]
        wanted = [block for block in priority(leaving) if block in self._model.blocks.hash_of]
        self._evidence.meet(
            "a state is not kept, since its block has no hash", len(wanted) < len(priority(leaving))
        )
        self._evidence.meet(
            "requests of a step leave the state of one block", len(priority(leaving)) < len(leaving)
        )
        return self._model.plan_commit(wanted)

    def _leaving(self, request: ServedRequest, row: int) -> list[Leaving]:
        if not request.chunk:
            return []
        size = self._model.block_size
        depths = [request.start + offset for offset in self._model.offsets(request)]
        leaving = [Leaving(True, -depth, row, request.blocks[depth // size - 1]) for depth in depths]
        if request.stop >= request.prompt and not request.prompt % size:
            leaving.append(Leaving(False, -request.prompt, row, request.blocks[request.prompt // size - 1]))
        return leaving

    def _judge_commit(self, expected: Kept, ran: Ran) -> None:
        meet, expect = self._evidence.meet, self._evidence.expect
        if expected.new or ran.kept:
            what = f"blocks whose states are kept, {len(expected.left_out)} left out"
            # Where there is room for all, what is missing was no candidate.
            law = "C7" if expected.left_out else "C8"
            expect(law, what, sorted(expected.new), sorted(each.block for each in ran.kept))
        if expected.victims or ran.dropped:
            expect("C6", "blocks that lose their states", sorted(expected.victims), sorted(ran.dropped))
        self._keep(ran)
        meet("a commit runs out of slots", expected.left_out)
        meet("a commit takes slots from released blocks", expected.victims)
        meet("a step keeps several states", len(expected.new) > 1)

    def _keep(self, ran: Ran) -> None:
        """Follow the slots; each must be of no other block (C2)."""
        slots = self._model.slots
        slots.drop(ran.dropped)
        new = {each.block: each.slot for each in ran.kept}
        others = [slot for block, slot in slots.slot_of.items() if block not in new]
        taken = [*others, *new.values()]
        is_partial = len({*taken}) == len(taken) and all(0 <= slot < slots.total for slot in taken)
        if new:
            what = f"distinct ones of {slots.total}, none of {sorted(others)}"
            self._evidence.demand("C2", is_partial, "slots of new states", what, lambda: ran.kept)
        slots.slot_of.update(new)

    def _follow_failure(self, ran: Ran) -> None:
        """Follow a step that failed: nothing was taken over but what it says, and its requests must go."""
        fault = self._books.fault
        armed = self._books.is_armed(_FORWARD, *_COMMIT)
        if fault is not None and fault.call == _FORWARD and fault.nth > len(ran.requests):
            armed = False  # it was not come to
        if not armed or ran.error != INJECTED:
            self._evidence.refuse("C7", "a step", "no error", ran.error)
        requests = [self._model.served[run.request] for run in ran.requests]
        is_early = self._books.is_armed(_FORWARD)
        self._evidence.expect(
            "X2", "blocks that a failed forward pass registers", True, not (is_early and ran.registered)
        )
        if ran.registered:
            expected = self._register(requests)
            self._evidence.expect(
                "X2", "blocks that are registered", sorted(expected), sorted(ran.registered)
            )
        if self._books.has_states:
            self._judge_failed_commit(ran, is_early)
        for request in requests:
            request.is_spoiled = True
        self._books.survive("a forward pass fails" if is_early else "a commit fails")

    def _judge_failed_commit(self, ran: Ran, is_early: bool) -> None:
        """Nothing is kept that was not filled, and nothing is lost that the commit did not ask for (X2)."""
        expected = Kept((), (), ()) if is_early else self._plan_commit(ran.requests)
        asked = (
            set()
            if is_early
            else {
                each.block
                for run in ran.requests
                for each in self._leaving(self._model.served[run.request], run.row)
            }
        )
        self._evidence.expect("X2", "states kept by a step that failed", (), ran.kept)
        lost = {*ran.dropped} - {*expected.victims} - asked
        self._evidence.expect("X2", "states lost by a step that failed", set(), lost)
        self._keep(ran)
