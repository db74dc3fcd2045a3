"""The judge of a probe's history: tests each law on the recorded answers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pymllm.errors import CapacityError, UsageError
from pymllm.oracle.laws.law import Broken, TextCheck, TextLaw
from pymllm.oracle.verdicts import Verdict
from pymllm.probing.comparison import LARGEST, Compared, compare, measure
from pymllm.probing.laws import (
    CLAIMS,
    EXACT_REUSE,
    LAWS,
    OF_ANSWERS,
    OF_COMPARED,
    OF_FIGURES,
    AnswerSeen,
    FiguresSeen,
)
from pymllm.probing.records import (
    Answer,
    Ask,
    Burst,
    Cold,
    Drop,
    Figures,
    Head,
    History,
    Reset,
    Step,
    Tolerance,
    asks_of,
)
from pymllm.probing.seen_prompts import SeenPrompts
from pymllm.watching.events import read_message
from pymllm.watching.judge import StreamJudge
from pymllm.watching.laws import LAWS as STREAM_LAWS

UNTESTED = "no request tested it; ask for more"
"""The default reason for a law that stayed unknown."""


@dataclass(frozen=True, slots=True)
class Violation:
    """The first broken law, with the step and the request that show it; request 0 if no single one does."""

    law: str
    message: str
    expected: str
    observed: str
    step: int
    request: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference of an answer from the same request made cold and alone, and its place.

    ``is_cold``: the answer was asked cold, too, so that it shows the spread of the server.
    """

    request: int
    is_cold: bool
    beside: int
    cached: int | None
    place: int
    size: float
    tolerance: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a history: the tests of each law or the reason for none, and the first violation."""

    tests: Mapping[str, int]
    reasons: Mapping[str, str]
    unclaimed: frozenset[str]
    tolerance: Tolerance
    violation: Violation | None
    compared: int
    left_out: int
    largest: float
    differences: tuple[Difference, ...]

    def verdict_of(self, law: str) -> Verdict:
        """Return the verdict on one law."""
        if self.violation is not None and self.violation.law == law:
            return Verdict.VIOLATED
        if law in self.unclaimed:
            return Verdict.NOT_CLAIMED
        return Verdict.HOLDS if self.tests.get(law) else Verdict.UNKNOWN


def judge(history: History, *, without: Collection[str] = ()) -> Judgement:
    """Judge a history up to its first violation, without the laws in ``without`` or in its head."""
    without = {*without, *history.head.without}
    for claim in without & CLAIMS.keys():
        without |= {*CLAIMS[claim]}
    tolerance = history.head.tolerance or measure(history.steps, history.head.floor)
    judging = _Judging(history, tolerance, without)
    for number, step in enumerate(history.steps, 1):
        judging.step(number, step)
        if judging.violation is not None:
            break
    return judging.judgement()


@dataclass(slots=True)
class _Sums:
    """Sums over the requests since the first reading of metrics: exact, and with all dropped streams."""

    requests: int = 0
    dropped: int = 0
    prompt: int = 0
    generated: int = 0
    dropped_prompt: int = 0
    dropped_generated: int = 0

    def add(self, answer: Answer) -> None:
        self.requests += 1
        self.prompt += len(answer.prompt) if answer.prompt_tokens is None else answer.prompt_tokens
        self.generated += len(answer.places) if answer.generated is None else answer.generated


@dataclass(slots=True)
class _Judging:
    history: History
    tolerance: Tolerance
    without: Collection[str]
    tests: Counter[str] = field(default_factory=Counter)
    violation: Violation | None = None
    compared: int = 0
    left_out: int = 0
    largest: float = 0.0
    differences: list[Difference] = field(default_factory=list)
    _seen: dict[str, SeenPrompts] = field(default_factory=dict)
    _all: SeenPrompts = field(default_factory=SeenPrompts)
    _ever: dict[str, SeenPrompts] = field(default_factory=dict)  # also before the cache was emptied
    _was_emptied: bool = False
    _lead: int | None = None
    _asked: dict[int, tuple[Answer, int]] = field(default_factory=dict)
    _cold: dict[int, Answer] = field(default_factory=dict)
    _postponed: dict[int, int] = field(default_factory=dict)
    _first: Figures | None = None
    _sums: _Sums = field(default_factory=_Sums)
    _has_others: bool = False
    _tells_cached: bool = False
    _was_served: bool = False
    _doubted: float = 0.0  # largest difference that may be rounding or a fault
    _stream: StreamJudge = field(default_factory=StreamJudge)
    _is_noisy: bool = False
    _deaf: str | None = None  # why the events say no more

    def step(self, number: int, step: Step) -> None:
        """Judge one step by its laws, first of answers and then of events, and update the state."""
        self._answer(number, step)
        if self.history.head.hears_events:
            self._hear(number, step)

    def _answer(self, number: int, step: Step) -> None:
        operation = step.operation
        if isinstance(operation, Ask | Burst):
            self._warm(number, asks_of(operation), step.answers)
        elif isinstance(operation, Cold):
            self._again(number, operation, step.answers)
        elif isinstance(operation, Drop):
            ask = operation.ask
            self._see(ask.salt, step.dropped, ask.max_tokens)
            self._sums.dropped += 1
            self._sums.dropped_prompt += len(step.dropped)
            self._sums.dropped_generated += ask.max_tokens
        elif isinstance(operation, Reset):
            self._forget()
        elif step.figures is not None:
            self._look(number, step.figures)

    # -- answers -------------------------------------------------------------------------------------------

    def _warm(self, number: int, asks: tuple[Ask, ...], answers: tuple[Answer, ...]) -> None:
        seen = []
        for at, (ask, answer) in enumerate(zip(asks, answers, strict=True)):
            own, anybody = SeenPrompts(), SeenPrompts()
            for other, (beside, told) in enumerate(zip(asks, answers, strict=True)):
                if other != at:
                    _add(anybody, told, beside.max_tokens)
                    _add(own if beside.salt == ask.salt else SeenPrompts(), told, beside.max_tokens)
            prompt = answer.prompt
            longest = max(self._all.longest_prefix(prompt), anybody.longest_prefix(prompt))
            mine = max(self._of(ask.salt).longest_prefix(prompt), own.longest_prefix(prompt))
            before = self._ever_of(ask.salt).longest_prefix(prompt) if self._was_emptied else None
            seen.append(self._about(ask.id, answer, len(asks) - 1, mine, longest, before=before))
        for ask, it in zip(asks, seen, strict=True):
            self._asked[ask.id] = (it.answer, it.beside)
            self._note(it.answer)
            self._see(ask.salt, it.answer.prompt, ask.max_tokens, it.answer)
            self._ask(number, OF_ANSWERS, it)

    def _again(self, number: int, cold: Cold, answers: tuple[Answer, ...]) -> None:
        way = self.history.head.cold
        if way == "reset":
            self._forget()
        for id, answer in zip(cold.of, answers, strict=True):
            longest = self._all.longest_prefix(answer.prompt)
            if way == "reset" and len(cold.of) > 1:
                longest = len(answer.prompt)
            self._ask(
                number,
                OF_ANSWERS,
                self._about(id, answer, len(cold.of) - 1, 0 if way == "salt" else longest, longest, way),
            )
        for id, answer in zip(cold.of, answers, strict=True):
            if way != "other":
                self._sums.add(answer)
                self._see("" if way != "salt" else None, answer.prompt, 0, answer)
            if len(cold.of) == 1:
                self._compare(number, id, answer)
            elif id in self._cold:
                self._ask_compared(number, self._about(id, answer, len(cold.of) - 1, way=way))
        if len(cold.of) > 1:
            self._catch_up(number, cold.of)

    def _compare(self, number: int, id: int, answer: Answer) -> None:
        """Compare a request with its cold and lone repetition, the first time that one exists.

        One of a burst waits for the others' cold answers: if those differ in company alone, V2 is to blame.
        """
        if id in self._cold:
            it = compare(self._cold[id], answer)
            self._note_difference(self._about(id, answer, 0, way=self.history.head.cold), it)
            return
        self._cold[id] = answer
        warm, beside = self._asked[id]
        if beside and warm.cached != 0:
            self._postponed[id] = number
        else:
            self._ask_compared(number, self._about(id, warm, beside))

    def _catch_up(self, number: int, of: Iterable[int]) -> None:
        for id in of:
            if self._postponed.pop(id, None) is not None:
                self._ask_compared(number, self._about(id, *self._asked[id]))

    def _ask_compared(self, number: int, seen: AnswerSeen) -> None:
        found = compare(self._cold[seen.request], seen.answer)
        self.compared += found.places
        self.left_out += found.left_out
        self.largest = max(self.largest, found.size)
        tolerance = self._note_difference(seen, found)
        is_warm = seen.cold is None and seen.answer.cached != 0
        if is_warm and tolerance < found.size <= self.tolerance.doubtful:
            self._doubted = max(self._doubted, found.size)
            return
        about = AnswerSeen(
            seen.request,
            seen.answer,
            seen.beside,
            cold=seen.cold,
            compared=found,
            tolerance=tolerance,
        )
        self._ask(number, OF_COMPARED, about)

    def _note_difference(self, seen: AnswerSeen, found: Compared) -> float:
        """Record a difference, and return the tolerance for it."""
        tolerance = self.tolerance.judged_company if seen.beside else self.tolerance.judged
        if seen.cold is None and seen.answer.cached != 0:
            tolerance = max(tolerance, self.tolerance.judged_warm)
        if found.places:
            self.differences.append(
                Difference(
                    seen.request,
                    seen.cold is not None,
                    seen.beside,
                    seen.answer.cached,
                    found.place + 1,
                    found.size,
                    tolerance,
                )
            )
        return tolerance

    def _about(
        self,
        id: int,
        answer: Answer,
        beside: int,
        own: int | None = None,
        anybody: int | None = None,
        way: str | None = None,
        before: int | None = None,
    ) -> AnswerSeen:
        head = self.history.head
        # Tokens of a text are the server's own, and nobody knows where they end.
        has_bounds = head.is_clean and head.has_ids and EXACT_REUSE not in self.without
        has_lead = head.has_ids and way != "other"
        if has_lead and self._lead is None and answer.prompt_tokens is not None:
            self._lead = max(0, answer.prompt_tokens - len(answer.prompt))
        return AnswerSeen(
            id,
            answer,
            beside,
            own if has_bounds else None,
            anybody if has_bounds else None,
            before,
            way,  # type: ignore[arg-type]  # of the head
            head.has_salts,
            lead=self._lead if has_lead else None,
        )

    def _note(self, answer: Answer) -> None:
        self._sums.add(answer)
        self._tells_cached |= answer.cached is not None
        self._was_served |= answer.cached != 0

    def _see(
        self, salt: str | None, prompt: tuple[int, ...], untold: int, answer: Answer | None = None
    ) -> None:
        own = [] if salt is None else [self._of(salt), self._ever_of(salt)]
        for seen in [self._all, *own]:
            if answer is None:
                seen.add(prompt, untold)
            else:
                _add(seen, answer, untold)

    def _of(self, salt: str) -> SeenPrompts:
        return self._seen.setdefault(salt, SeenPrompts())

    def _ever_of(self, salt: str) -> SeenPrompts:
        return self._ever.setdefault(salt, SeenPrompts())

    def _forget(self) -> None:
        self._seen, self._all, self._was_emptied = {}, SeenPrompts(), True

    # -- events --------------------------------------------------------------------------------------------

    def _hear(self, number: int, step: Step) -> None:
        """Judge the events of a step, and the hits of its requests by the events before."""
        stream, head = self._stream, self.history.head
        operation, asked = step.operation, [*zip(step.answers, step.salts, strict=False)]
        if isinstance(operation, Cold) and head.cold == "other":
            asked = []  # another server's
        ids = operation.of if isinstance(operation, Cold) else tuple(ask.id for ask in asks_of(operation))
        is_alone = len(asked) == 1 and not (isinstance(operation, Cold) and head.cold == "reset")

        def chains() -> list[int | None]:
            salts = [salt if head.has_salts else None for _, salt in asked]
            prompts = [answer.prompt for answer, _ in asked]
            return [stream.longest_chain(*it) for it in zip(prompts, salts, strict=True)]

        are_heard = not (self._is_noisy or step.is_noisy)  # the events before, and those of this step
        self._is_noisy = step.is_noisy
        known = [chains()]
        for message in step.messages if self._deaf is None else ():
            try:
                stream.feed(read_message(message))
            except (UsageError, CapacityError) as error:
                self._deaf = f"message {stream.messages + 1}: {error}"
                break
            if not is_alone:
                known.append(chains())
        for at, (id, (answer, _)) in enumerate(zip(ids, asked, strict=False)):
            are_known = are_heard and head.has_ids and answer.prompt_tokens in (None, len(answer.prompt))
            if answer.cached is not None and are_known and self._deaf is None:
                stream.judge_hit(id, answer.cached, [moment[at] for moment in known])
        self._blame_events(number)

    def _blame_events(self, number: int) -> None:
        for law, it in self._stream.first.items():
            if self.violation is None and law not in self.without:
                where = f"message {it.number}" + (f", event {it.event}" if it.event else "")
                what = it.what if law == "W8" else f"{where}, {it.what}"
                request = int(it.what.split()[3]) if law == "W8" else 0
                self.violation = Violation(law, what, it.expected, it.observed, number, request)

    def _sum_up_events(self, reasons: dict[str, str], unclaimed: dict[str, str]) -> None:
        """Count the tests of the laws of streams, and record why a law was not tested."""
        self.tests.update(
            {law: count for law, count in self._stream.tests.items() if law not in self.without}
        )
        unclaimed.setdefault("W7", "the number of blocks in the memory is unknown")
        if not self._tells_cached:
            unclaimed.setdefault("W8", "the server tells no cached tokens")
        why = None
        if self._deaf is not None:
            why = self._deaf
        elif not self._stream.messages:
            why = "no event was heard; is it the address of its publisher, and does that wait or connect?"
        if why is not None:
            reasons |= dict.fromkeys(STREAM_LAWS, why)
        elif any(step.is_noisy for step in self.history.steps):
            reasons["W8"] = (
                "the stream of events did not become quiet, so the events before a request are unknown"
            )
        elif self._stream.is_late:
            reasons["W8"] = "the beginning of the stream was not heard; a cleared cache would be told, too"

    # -- metrics -------------------------------------------------------------------------------------------

    def _look(self, number: int, now: Figures) -> None:
        first, sums = self._first, self._sums
        if first is None:
            self._first, self._sums = now, _Sums()
            self._has_others = not now.rests
            return
        if first.finished is None or now.finished is None:
            is_alone = False
        else:
            self._has_others |= now.finished - first.finished > sums.requests + sums.dropped
            is_alone = self.history.head.has_ids  # of texts nobody knows how many tokens were dropped
        seen = FiguresSeen(
            first,
            now,
            sums.requests,
            (sums.prompt, sums.prompt + sums.dropped_prompt),
            (sums.generated, sums.generated + sums.dropped_generated),
        )
        if not self._has_others:
            self._ask(
                number, {"V6": OF_FIGURES["V6"], **({"V7": OF_FIGURES["V7"]} if is_alone else {})}, seen
            )

    # -- the verdict ---------------------------------------------------------------------------------------

    def _ask(self, number: int, checks: Mapping[str, TextCheck], seen: AnswerSeen | FiguresSeen) -> None:
        for law, check in checks.items():
            if self.violation is not None or law in self.without:
                continue
            found = check(seen)
            if isinstance(found, Broken):
                request = seen.request if isinstance(seen, AnswerSeen) else 0
                self.violation = Violation(
                    law, found.what, str(found.expected), str(found.observed), number, request
                )
            self.tests[law] += found is not None

    def judgement(self) -> Judgement:
        """Return the judgement, with a reason for each law that was not tested."""
        for id, number in [*self._postponed.items()]:
            self._catch_up(number, [id])
        unclaimed: dict[str, str] = dict.fromkeys(
            laws_of(self.history.head).keys() & self.without, "left out by --without"
        )
        reasons: dict[str, str] = {}
        head, first = self.history.head, self._first
        if not head.has_salts:
            unclaimed.setdefault("V5", head.no_salts)
        if not head.has_ids:
            for law in ("V5", "V7"):
                unclaimed.setdefault(law, "prompts are texts, so the ends of their tokens are unknown")
        if self._asked and not self._tells_cached:
            for law in ("V3", "V4", "V5"):
                unclaimed.setdefault(law, "the server tells no cached tokens")
        if head.cold == "other":
            unclaimed.setdefault("V4", "cold requests went to another server")
        if first is None or (first.running is None and first.waiting is None and first.memory is None):
            unclaimed.setdefault("V6", "the metrics do not tell what runs")
        if (
            first is None
            or first.finished is None
            or (first.prompt_tokens is None and first.generated is None)
        ) and not self.tests["V7"]:
            unclaimed.setdefault("V7", "the metrics do not tell these sums")
        if self._has_others:
            reasons |= dict.fromkeys(
                ("V6", "V7"), "others use the server, too; probe while it is yours alone"
            )
        way = "use deterministic kernels and float32, or give --tolerance"
        if self.tolerance.judged > LARGEST:
            spread = f"{self.tolerance.alone or 0:.2g}"
            told = f"alone it differs from itself by {spread}, too much to tell a fault; {way}"
            reasons |= dict.fromkeys(("V1", "V2"), told)
        elif self.tolerance.judged_company > LARGEST:
            told = (
                f"in company it differs by {self.tolerance.company or 0:.2g}, too much to tell a fault; {way}"
            )
            reasons["V2"] = told
        if self._doubted and (self.violation is None or self.violation.law != "V1"):
            reasons["V1"] = (
                f"what was just cached differs by {self.tolerance.warm:.2g} from cold answers, and here "
                f"{self._doubted:.2g}: by rounding, or by a fault; {way}"
            )
            self.tests["V1"] = 0
        if self._asked and not self._was_served:
            reasons.setdefault("V1", "no request was served from the cache; is prefix caching on?")
        if head.hears_events:
            self._sum_up_events(reasons, unclaimed)
        untested = {law for law in laws_of(head) if not self.tests[law]}
        reasons = {law: reasons.get(law, UNTESTED) for law in untested}
        return Judgement(
            dict(self.tests),
            {**reasons, **unclaimed},
            frozenset(unclaimed),
            self.tolerance,
            self.violation,
            self.compared,
            self.left_out,
            self.largest,
            tuple(self.differences),
        )


def laws_of(head: Head) -> dict[str, TextLaw]:
    """Return the laws for a history: those of servers, and those of streams if events were recorded."""
    return {**LAWS, **STREAM_LAWS} if head.hears_events else dict(LAWS)


def _add(seen: SeenPrompts, answer: Answer, max_tokens: int) -> None:
    """Add a prompt and its answer; answer tokens that were not reported may be any tokens."""
    told = answer.tokens
    seen.add((*answer.prompt, *(told or ())), 0 if told is not None else max_tokens)
