"""Expected results of steps, compared with actual ones. A runner in another language does the same.

An expectation is plain data beside an answer's own: ``result``, ``effects`` and ``sizes``. The rules:

1. What an answer does not have is passed over, but ``is`` of a result. No ``effects`` are an empty list.
2. An object: each field that the expectation names is looked at, and no other.
3. A list or a plain value must be equal.
4. An object with one of these names is a form, and says less:

   - ``{"$of": spans}``: the numbers that spans name. ``{"step": 3, "start": 0, "stop": 2}`` are the first
     two ``slots`` that step 3 answered with; step 0 stands for the numbers ``start`` to ``stop`` themselves.
     Where a field has one number and no list, it is the only one.
   - ``{"$halves": spans}``: the same of ``swa_slots``.
   - ``{"$new": n, "page": p, "least": a, "most": b, "but": form}``: n different numbers in a..b, which fill
     pages of p numbers from their first on, the last page perhaps in part; none in a page of a number that
     ``but`` names.
   - ``{"$set": list}``: as many, each like another one of these, in any order.
   - ``{"$any": list}``: one of these.
   - ``{"$free": true}``: anything.
   - ``{"$calls": {"free": form, "callback": 2}, "inside": sizes}``: of the effects, all ``slots`` of the
     calls of a name together, each once and in any order; or how often a name was called. Of a name that is
     not there no call was made, but of ``callback``. ``inside`` is what each callback saw as ``sizes``.
   - ``{"$may": value, "or": list}``: this, or one of these; without ``or``, this or anything else. Where it
     is not this, the vector has ended and passes: what follows was made for this way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pymllm.history.spans import SPAN_LIMIT
from pymllm.text_file import cut

PARTS = ("result", "effects", "sizes")
FORMS = ("$of", "$halves", "$new", "$set", "$any", "$free", "$calls", "$may")


class OtherWay(Exception):
    """Raised when an implementation chose another right result, so that the vector no longer applies."""


class Mismatch(Exception):
    """Raised when a result differs from what a vector demands."""

    def __init__(self, where: str, expected: Any, seen: Any) -> None:
        super().__init__(f"{where}: expected {expected!r}, seen {seen!r}")
        self.where = where
        self.expected = expected
        self.seen = seen


class Given:
    """The numbers that steps returned, by name: ``slots``, and ``swa_slots`` for halves."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], Sequence[int]] = {}

    def record(self, step: int, result: Mapping[str, Any]) -> None:
        """Record the numbers that a step returned."""
        self._numbers["$of", step] = result.get("slots") or ()
        self._numbers["$halves", step] = result.get("swa_slots") or ()

    def numbers(self, form: str, spans: Sequence[Mapping[str, int]]) -> list[int]:
        """Return the numbers that spans name."""
        found: list[int] = []
        for span in spans:
            start, stop = span["start"], span["stop"]
            if span["step"] == 0:
                found += range(start, stop)
            else:
                found += self._numbers[form, span["step"]][start:stop]
        return found


def match(expect: Mapping[str, Any], seen: Mapping[str, Any], given: Given) -> None:
    """Compare a result with its expectation; raise `Mismatch`, or `OtherWay` for a permitted difference.

    An answer ``{"is": "unsupported"}`` is the caller's to skip.
    """
    _compare(expect, {"effects": [], "sizes": {}, **seen}, given, "")


def _compare(expected: Any, seen: Any, given: Given, where: str) -> None:
    form = form_of(expected)
    is_right = True
    if form == "$may":
        if not _is(expected[form], seen, given, where):
            if "or" not in expected or any(_is(other, seen, given, where) for other in expected["or"]):
                raise OtherWay
            _compare(expected[form], seen, given, where)
    elif form in ("$of", "$halves"):
        is_right = given.numbers(form, expected[form]) == (seen if isinstance(seen, list) else [seen])
    elif form == "$new":
        is_right = _are_new(expected, seen, given)
    elif form == "$set":
        left = list(seen)
        for item in expected[form]:
            place = next((at for at, it in enumerate(left) if _is(item, it, given, where)), None)
            if place is None:
                raise Mismatch(where, expected[form], seen)
            del left[place]
        is_right = not left
    elif form == "$any":
        is_right = seen in expected[form]
    elif form == "$calls":
        for name, value in expected[form].items():
            _compare_calls(name, value, [it for it in seen if it["call"] == name], given, _at(where, name))
        for call in seen:
            if call["call"] == "callback":
                _compare(expected.get("inside", {}), call.get("sizes", {}), given, _at(where, "inside"))
            elif call["call"] not in expected[form]:
                raise Mismatch(where, expected, seen)
    elif form == "" and isinstance(expected, dict):
        for name, value in expected.items():
            if name in seen or name == "is":
                _compare(value, seen.get(name), given, _at(where, name))
    elif isinstance(expected, list):
        is_right = isinstance(seen, list) and len(expected) == len(seen)
        for place, (one, other) in enumerate(zip(expected, seen if is_right else (), strict=False)):
            _compare(one, other, given, f"{where}[{place}]")
    elif form == "":
        is_right = expected == seen
    if not is_right:
        raise Mismatch(where, expected, seen)


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _is(expected: Any, seen: Any, given: Given, where: str) -> bool:
    try:
        _compare(expected, seen, given, where)
    except Mismatch:
        return False
    return True


def _are_new(expected: Mapping[str, Any], seen: Any, given: Given) -> bool:
    if not isinstance(seen, list) or len(set(seen)) != len(seen) or len(seen) != expected["$new"]:
        return False
    page, ((form, spans),) = expected["page"], expected["but"].items()
    taken = {number // page for number in given.numbers(form, spans)}
    return all(
        expected["least"] <= number <= expected["most"]
        and number // page not in taken
        and number == seen[place - place % page] + place % page
        and (place % page != 0 or number % page == 0)
        for place, number in enumerate(seen)
    )


def _compare_calls(
    name: str, expected: Any, calls: Sequence[Mapping[str, Any]], given: Given, where: str
) -> None:
    if isinstance(expected, int):
        if len(calls) != expected:
            raise Mismatch(where, expected, len(calls))
        return
    ((form, spans),) = expected.items()
    slots = sorted(slot for call in calls for slot in call["slots"])
    if slots != sorted(given.numbers(form, spans)):
        raise Mismatch(where, sorted(given.numbers(form, spans)), slots)


# -- reading -----------------------------------------------------------------------------------------------


def form_of(expected: Any) -> str:
    """Return the form of a part of an expectation; empty if it has none."""
    return next((name for name in expected if name in FORMS), "") if isinstance(expected, dict) else ""


def check_expectation(expected: Any, where: str = "", *, is_top: bool = True) -> None:
    """Raise `ValueError` for an expectation with which no result can be compared."""
    if is_top and form_of(expected) == "$may":
        for other in (expected["$may"], *expected.get("or", ())):
            check_expectation(other, where)
        return
    if is_top:
        for part in expected:
            if part not in PARTS:
                raise ValueError(f"{where} expects {cut(repr(part))}; it may expect {', '.join(PARTS)}")
    form = form_of(expected)
    if isinstance(expected, dict):
        unknown = [name for name in expected if name.startswith("$") and name not in FORMS]
        if unknown:
            raise ValueError(f"{where} has {cut(repr(unknown[0]))}; the forms are {', '.join(FORMS)}")
        if form in ("$of", "$halves"):
            _check_spans(expected[form], where)
            return
        if form == "$new":
            names = {name for name in ("page", "least", "most") if type(expected.get(name)) is int}
            if type(expected[form]) is not int or len(names) != 3 or expected["page"] < 1:
                raise ValueError(f"{where}: $new needs the integers page, least and most")
            if form_of(expected.get("but")) not in ("$of", "$halves"):
                raise ValueError(f"{where}: $new needs but, the numbers that it excludes")
        if form in ("$set", "$any") and not isinstance(expected[form], list):
            raise ValueError(f"{where}: {form} needs a list")
        if form == "$calls":
            calls = expected[form]
            if not isinstance(calls, dict) or not all(
                type(it) is int or form_of(it) in ("$of", "$halves") for it in calls.values()
            ):
                raise ValueError(f"{where}: $calls needs a number or spans for each name")
        for item in expected.values():
            check_expectation(item, where, is_top=False)
    elif isinstance(expected, list):
        for item in expected:
            check_expectation(item, where, is_top=False)


def _check_spans(spans: Any, where: str) -> None:
    whole = isinstance(spans, list) and all(
        isinstance(it, dict)
        and it.keys() == {"step", "start", "stop"}
        and all(type(value) is int and 0 <= value < SPAN_LIMIT for value in it.values())
        for it in spans
    )
    if not whole:
        raise ValueError(f"{where}: spans are {cut(repr(spans))}; each has a step, a start and a stop")
