"""The comparison of two answers to the same request, and the differences that a server has in any case."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pymllm.probing.records import Answer, Ask, Cold, Look, Place, Step, Token, Tolerance

FACTOR = 20
"""The factor from the measured spread to the tolerance."""

LARGEST = 0.3
"""The tolerance above which nothing is judged: wrong memory may cause smaller differences."""

ROUNDING_MOST = 1e-3
"""The largest rounding difference expected of an answer served from a fresh cache entry."""

DOUBT_MOST = 0.2
"""The largest difference that may be left in doubt; rounding in 16 bits is far below it."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The distance of an answer from the expected one: the largest difference, its place, and gaps."""

    size: float = 0.0
    place: int = 0
    expected: str = ""
    observed: str = ""
    places: int = 0
    left_out: int = 0


def compare(cold: Answer, warm: Answer) -> Compared:
    """Compare two answers up to their first different token.

    A place is compared by log-probabilities of the tokens that both list. Another token counts as far as the
    margin between the two best there: near ties may fall either way. Places without log-probabilities are
    left out, as are all places behind a different token.
    """
    found, places = Compared(), 0
    longest = max(len(cold.places), len(warm.places))
    for at, (expected, observed) in enumerate(zip(cold.places, warm.places, strict=False)):
        is_same = expected.token == observed.token
        sizes = [*_differences(expected, observed)]
        margin = _margin(expected)
        if not is_same and margin is not None:
            sizes.append((margin, f"token {expected.token!r}", f"token {observed.token!r}"))
        if sizes:
            places += 1
            size, wanted, seen = max(sizes, key=lambda it: it[0])
            if size > found.size or not found.expected:
                found = Compared(size, at, wanted, seen)
        if not is_same:
            break
    else:
        at = len(warm.places)
        margin = _margin(cold.places[at]) if at < len(cold.places) and warm.is_stopped else None
        if margin is not None:
            places += 1
            if margin > found.size:
                found = Compared(margin, at, f"token {cold.places[at].token!r}", "the end of the answer")
    return Compared(found.size, found.place, found.expected, found.observed, places, longest - places)


def _differences(expected: Place, observed: Place) -> Iterator[tuple[float, str, str]]:
    """Yield the differences of log-probabilities; for a token that one list lacks, a lower bound."""
    cold, warm = _listed(expected), _listed(observed)
    if not cold or not warm:
        return
    least_cold, least_warm = min(cold.values()), min(warm.values())
    for token in {**cold, **warm}:
        if token in cold and token in warm:
            told = cold[token], warm[token]
            yield abs(told[0] - told[1]), _said(token, told[0]), _said(token, told[1])
        elif token in cold and cold[token] > least_warm and len(warm) > 1:
            yield cold[token] - least_warm, _said(token, cold[token]), f"below {_said(token, least_warm)}"
        elif token in warm and warm[token] > least_cold and len(cold) > 1:
            yield warm[token] - least_cold, f"below {_said(token, least_cold)}", _said(token, warm[token])


def _listed(place: Place) -> Mapping[Token, float]:
    """Return the log-probabilities of a place, without texts that are only part of a character."""
    return {token: value for token, value in place.top if not (isinstance(token, str) and "\ufffd" in token)}


def _said(token: Token, value: float) -> str:
    return f"{value:.6f} for token {token!r}"


def _margin(place: Place) -> float | None:
    """Return the lead of the best token at a place; ``None`` if it is not reported."""
    values = sorted((value for _, value in place.top), reverse=True)
    return values[0] - values[1] if len(values) > 1 else None


# -- the spread --------------------------------------------------------------------------------------------


def measure(steps: Iterable[Step], floor: float) -> Tolerance:
    """Return the tolerances of a server, from the spread that a history measured.

    Prompts that were asked cold several times alone are the measurement, with the first time that they were
    asked cold at once; and, up to the second look at the metrics, what was served from the cache.
    """
    alone: dict[int, list[Answer]] = {}
    company: dict[int, Answer] = {}
    warm: list[Answer] = []
    looks = 0
    for step in steps:
        operation = step.operation
        if isinstance(operation, Cold):
            is_alone = len(operation.of) == 1
            for id, answer in zip(operation.of, step.answers, strict=True):
                if is_alone:
                    alone.setdefault(id, []).append(answer)
                elif len(alone.get(id, ())) > 1:
                    company.setdefault(id, answer)
        elif isinstance(operation, Ask) and looks == 1:
            warm += (answer for answer in step.answers if answer.cached != 0)
        looks += isinstance(operation, Look)
    repeated = [compare(first, it).size for first, *others in alone.values() for it in others]
    beside = [compare(alone[id][0], answer).size for id, answer in company.items()]
    cold = {answers[0].prompt: answers[0] for answers in alone.values()}
    served = [compare(cold[answer.prompt], answer).size for answer in warm if answer.prompt in cold]
    spread = max(repeated, default=None)
    spread_beside = statistics.median(beside) if beside else None
    spread_warm = max(served, default=None)
    just = spread_warm or 0.0
    judged = max(floor, FACTOR * (spread or 0.0))
    return Tolerance(
        alone=spread,
        company=spread_beside,
        warm=spread_warm,
        judged=judged,
        judged_company=max(judged, FACTOR * (spread_beside or 0.0)),
        judged_warm=max(judged, FACTOR * just if just <= ROUNDING_MOST else 0.0),
        doubtful=min(FACTOR * just, DOUBT_MOST) if ROUNDING_MOST < just <= DOUBT_MOST else 0.0,
    )
