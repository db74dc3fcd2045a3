"""What of an outcome is determined, asked of the judge: each part is varied, and what it lets pass is free.

A program is played on a sound implementation. At each step the judge, which knows the steps before it as
they were, is shown that step otherwise: with another number, in another order, with an effect less. What it
refuses in every variation is expected as it was; where it lets one pass, the expectation is a form that says
less, or `$may`. So a vector demands nothing that a law does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from pymllm import errors
from pymllm.conformance.vectors.format import Vector, VectorStep, make_id
from pymllm.conformance.vectors.play import plain_outcome
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.claims import REFUSALS
from pymllm.history.codec import encode
from pymllm.history.files import Config, Header, Step
from pymllm.history.operations import (
    Alloc,
    AllocSlots,
    AllocTrack,
    Evict,
    EvictSlots,
    FindSlots,
    Inspect,
    Operation,
    ReadKV,
    ReadLive,
    ReadRows,
    ReadStates,
)
from pymllm.history.outcomes import (
    Done,
    Effect,
    Evicted,
    Failed,
    Inspected,
    Matched,
    NodeView,
    NoRoom,
    Outcome,
    Slots,
)
from pymllm.history.spans import GivenNumbers
from pymllm.oracle.judge import make_judge
from pymllm.oracle.laws import find_law

_ERRORS = (
    *("TypeError", "ValueError", "IndexError", "KeyError", "RuntimeError", "AttributeError", "InjectedFault"),
    *("OverflowError", "MemoryError", "AssertionError", "NotImplementedError"),
    *(name for name in errors.__all__),
)
"""Names of errors that a law may ask for; the one that no law knows stands for any."""

_UNTOLD = {"token", "message"}
"""Fields that are opaque, or for people."""

_Passes = Callable[[Any], bool | None]
_FREE = {"$free": True}
_FAR = 1 << 20
_MOST_CHOICES = 3000
_MOST_OTHERS = 16
_PAGES_CHOSEN = 10


class Asker:
    """Asks whether an outcome of one step would be let pass, after the steps before it."""

    def __init__(self, header: Header, steps: Sequence[Step]) -> None:
        self._header = header
        self._steps = steps

    def accepts(self) -> bool:
        """Tell whether the judge lets the whole program pass."""
        try:
            self._judge_before(len(self._steps))
        except (InvariantViolation, ProgramError):
            return False
        return True

    def refuses(self) -> bool:
        """Tell whether the judge finds a law broken."""
        try:
            self._judge_before(len(self._steps))
        except InvariantViolation:
            return True
        except ProgramError:
            return False
        return False

    def lets_pass(self, place: int, outcome: Outcome) -> bool:
        """Tell whether the judge lets an outcome of the step at a place pass."""
        judge, step = self._judge_before(place), self._steps[place]
        try:
            judge.judge(step.number, step.operation, outcome)
        except InvariantViolation:
            return False
        return True

    def _judge_before(self, place: int) -> Any:
        judge = make_judge(self._header, coverage=False)
        for step in self._steps[:place]:
            assert step.outcome is not None
            judge.judge(step.number, step.operation, step.outcome)
        return judge


class _Names:
    """Names numbers by the steps that gave them: slots, rows and blocks; states beside them; and halves."""

    def __init__(self) -> None:
        self._given = {space: GivenNumbers() for space in ("slots", "states", "halves")}
        self.slots: set[int] = set()

    def record(self, number: int, operation: Operation, outcome: Outcome) -> None:
        result = outcome.result
        if isinstance(result, Slots | Matched):
            space = space_of(operation)
            self._given[space].record(number, result.slots)
            if space == "slots":
                self.slots.update(result.slots)
        if isinstance(result, Slots) and 0 not in result.swa_slots:
            self._given["halves"].record(number, result.swa_slots)

    def knows(self, number: int, space: str = "slots") -> bool:
        return self._given[space].origin(number) != 0

    def of(self, numbers: Sequence[int], space: str = "slots") -> Any:
        form = "$halves" if space == "halves" else "$of"
        return {form: [encode(span) for span in self._given[space].name(numbers)]}

    def of_or_plain(self, numbers: Sequence[int], space: str = "slots") -> Any:
        is_named = any(self.knows(it, space) for it in numbers)
        return self.of(numbers, space) if is_named else list(numbers)


def space_of(operation: Operation) -> str:
    """Return what an operation's answer has the numbers of."""
    return "states" if isinstance(operation, AllocTrack | AllocSlots | EvictSlots) else "slots"


_BY_PLACE = (ReadStates, ReadRows, ReadKV, ReadLive, FindSlots)
"""Operations whose answer has a number's content at its place, or numbers that nobody names."""


def derive(
    kind: str,
    law: str,
    needs: Collection[str],
    config: Config,
    steps: Sequence[Step],
    *,
    level: str = "observable",
    bug: str = "",
    link: str = "",
    specification: str,
) -> Vector:
    """Make a vector of a program and of what a sound implementation answered.

    `ProgramError`: the judge does not let the program pass, so that nothing can be asked of it.
    """
    header = Header("", kind, dict(config), tuple(sorted(needs)), specification=specification)
    asker = Asker(header, steps)
    if not asker.accepts():
        raise ProgramError(f"the judge does not let the program pass with the claims {', '.join(needs)}")
    names = _Names()
    is_by_place = any(
        isinstance(it.operation, _BY_PLACE) or (kind != "prefix" and isinstance(it.operation, Inspect))
        for it in steps
    )
    made: list[VectorStep] = []
    for place, step in enumerate(steps):
        assert step.outcome is not None
        expect = _Expecter(asker, place, step.operation, step.outcome, names, config, is_by_place).expect()
        made.append(VectorStep(step.operation, expect))
        names.record(step.number, step.operation, step.outcome)
    is_free = '"$may"' in str(msgspec.json.encode([it.expect for it in made]))
    return Vector(
        make_id(kind, law, tuple(needs), config, [it.operation for it in made]),
        law,
        find_law(law).sentence,
        level,
        "may" if is_free else "must",
        tuple(sorted(needs)),
        dict(config),
        tuple(made),
        bug,
        link,
    )


class _Expecter:
    """Makes the expectation of one step."""

    def __init__(
        self,
        asker: Asker,
        place: int,
        operation: Operation,
        outcome: Outcome,
        names: _Names,
        config: Mapping[str, Any],
        is_by_place: bool,
    ) -> None:
        self._asker = asker
        self._is_by_place = is_by_place
        self._place = place
        self._operation = operation
        self._outcome = outcome
        self._names = names
        page = config.get("page_size", 1)
        self._page: int = page if isinstance(operation, Alloc) and isinstance(page, int) else 1
        self._page_size: int = page if isinstance(page, int) else 1
        self._has_pool = config.get("pool") not in (None, "none")
        self._has_window = config.get("window") is not None

    def expect(self) -> dict[str, Any]:
        """Return what the step must come to."""
        result, effects = self._result(), self._effects()
        sizes = {
            name: size
            for name, size in self._outcome.sizes.items()
            if not any(
                self._passes(sizes={**self._outcome.sizes, name: other})
                for other in _vary(size)
                if other != size
            )
        }
        expect = {"result": result}
        if effects is not None:
            expect["effects"] = effects
        if sizes:
            expect["sizes"] = sizes
        others = self._other_choices()
        if others is None:
            return {"$may": expect}
        return {"$may": expect, "or": others} if others else expect

    def _passes(self, **changes: Any) -> bool:
        return self._asker.lets_pass(self._place, msgspec.structs.replace(self._outcome, **changes))

    # -- results --
    def _result(self) -> Any:
        result = self._outcome.result
        plain = plain_outcome(self._outcome)["result"]
        others = (Done(), NoRoom(), Failed("NoSuchError"), Slots(()))
        if any(type(it) is not type(result) and self._passes(result=it) for it in others):
            return {"$may": plain}
        if isinstance(result, Failed):
            return self._failure(result)
        made = {"is": plain.pop("is")}
        for name, value in plain.items():
            if name not in _UNTOLD:
                is_nodes = isinstance(result, Inspected)
                found = self._nodes(name) if is_nodes else self._field(name, value)
                if found is not _NOTHING:
                    made[name] = found
        return made

    def _nodes(self, name: str) -> Any:
        """Return what is determined of each node, in any order; its number is its own business."""
        result = self._outcome.result
        assert isinstance(result, Inspected)
        if name != "nodes" or (result.nodes and self._passes(result=Inspected(result.nodes[:-1]))):
            return _NOTHING
        made = []
        for place, node in enumerate(result.nodes):
            fields: dict[str, Any] = {}
            for field, value in _plain_node(node).items():

                def passes(other: Any, field: str = field, place: int = place, node: NodeView = node) -> bool:
                    changed = msgspec.structs.replace(node, **{field: _tupled(other)})
                    nodes = (*result.nodes[:place], changed, *result.nodes[place + 1 :])
                    return self._passes(result=msgspec.structs.replace(result, nodes=nodes))

                if not any(passes(it) for it in _vary(value) if it != value and type(it) is type(value)):
                    is_named = field == "slots" and value
                    fields[field] = self._names.of_or_plain(value) if is_named else value
                    if field == "state":
                        fields[field] = self._names.of((value,), "states")
            made.append(fields)
        return {"$set": made}

    def _failure(self, result: Failed) -> Any:
        if self._passes(result=Failed("NoSuchError")):
            return {"is": "failed"}
        known = sorted({name for name in _ERRORS if self._passes(result=Failed(name))} | {result.error})
        return {"is": "failed", "error": known[0] if len(known) == 1 else {"$any": known}}

    def _field(self, name: str, value: Any) -> Any:
        result: Any = self._outcome.result

        def passes(other: Any) -> bool | None:
            try:
                changed = msgspec.convert({name: other}, _only(type(result), name))
            except msgspec.ValidationError:
                return None  # nobody can answer so
            return self._passes(result=msgspec.structs.replace(result, **{name: getattr(changed, name)}))

        if isinstance(result, Slots | Matched) and name in ("slots", "swa_slots") and value:
            space = space_of(self._operation) if name == "slots" else "halves"
            if isinstance(result, Slots) and self._are_chosen(value, passes):
                return {"$may": value} if self._is_by_place else self._new(value, passes, space)
            if not any(passes(other) for other in _vary(value) if other != value):
                return self._names.of_or_plain(value, space)
            return {"$may": value}
        found = self._part(value, passes)
        if found == value and name == "state" and isinstance(result, Matched) and value is not None:
            return self._names.of((value,), "states")
        return _NOTHING if found == _FREE else found

    def _part(self, value: Any, passes: _Passes) -> Any:
        """Return what is determined of a value; ``passes`` tells whether another one would be right."""
        if isinstance(value, dict):
            parts = {
                name: self._part(item, partial(_with_item, passes, value, name))
                for name, item in value.items()
            }
            return {name: part for name, part in parts.items() if part != _FREE}
        if not isinstance(value, list) or not value:
            told = [right for other in _vary(value) if other != value if (right := passes(other)) is not None]
            return value if not any(told) else _FREE if all(told) else {"$may": value}
        shorter_or_longer: tuple[list[Any], ...] = (value[:-1], value[1:], [*value, value[-1]], [])
        told = [right for other in shorter_or_longer if (right := passes(other)) is not None]
        if any(told):
            return _FREE if all(told) else {"$may": value}
        turned = value[::-1]
        if turned != value and passes(turned):
            return {"$set": value}
        return [self._part(item, partial(_with_place, passes, value, at)) for at, item in enumerate(value)]

    def _are_chosen(self, value: list[int], passes: _Passes) -> bool:
        """Tell whether other numbers, or these in another order, would be right as well."""
        pages = _pages(value, self._page)
        if len(pages) > 1 and self._outcome.result and passes(_joined([*pages[1:], pages[0]], len(value))):
            return True
        return next(self._others(value, passes), None) is not None

    def _others(self, value: list[int], passes: _Passes) -> Iterator[int]:
        """Yield the pages that could stand in the place of the first one."""
        pages = _pages(value, self._page)
        own = {page[0] // self._page for page in pages}
        first = len(pages[0])
        for page in range(max((*own, *(it // self._page for it in self._names.slots), 0)) + 40):
            start = page * self._page
            if page not in own and passes([*range(start, start + first), *value[first:]]):
                yield page

    def _new(self, value: list[int], passes: _Passes, space: str) -> Any:
        pages = _pages(value, self._page)
        own = {page[0] // self._page for page in pages}
        others = set(self._others(value, passes))
        right = own | others
        top = max(right | {number // self._page for number in self._names.slots}) + 1
        named: dict[int, list[int]] = {}
        for page in range(top + 1):
            slots = [
                it for it in range(page * self._page, (page + 1) * self._page) if self._names.knows(it, space)
            ]
            if page not in right and slots:
                named[page] = slots
        known = right | set(named)
        if known != set(range(min(known), max(known) + 1)):
            return {"$may": value}
        if others == set() and len(pages) == 1:
            return self._names.of_or_plain(value, space)
        is_whole = len(value) == len(set(value)) and all(
            page
            == list(range(page[0] // self._page * self._page, page[0] // self._page * self._page + len(page)))
            for page in pages
        )
        if not is_whole or passes([*value[:-1], value[0]] if len(value) > 1 else [*value, *value]):
            return {"$may": value}
        least, most = min(known) * self._page, (max(known) + 1) * self._page - 1
        but = self._names.of([slot for page in sorted(named) for slot in named[page]], space)
        return {"$new": len(value), "page": self._page, "least": least, "most": most, "but": but}

    # -- effects --
    def _effects(self) -> Any:
        effects = self._outcome.effects
        if not effects:
            tries = [Effect("callback"), *(Effect("free", (it,)) for it in sorted(self._names.slots)[:4])]
            tries += [Effect("free_swa", (it,)) for it in sorted(self._names.slots)[:4]]
            return None if any(self._passes(effects=(it,)) for it in tries) else []
        bare = tuple(it for it in effects if it.call != "callback")
        is_bare = bare != effects and self._passes(effects=bare)  # nobody asks whether it called back
        told = bare if is_bare else effects
        if any(self._passes(effects=(*told[:at], *told[at + 1 :])) for at in range(len(told))):
            return None
        if is_bare or (
            not any(it.target for it in effects)
            and any(self._passes(effects=other) for other in _regrouped(effects))
        ):
            return self._calls(told)
        return self._exact_effects()

    def _calls(self, effects: Sequence[Effect]) -> dict[str, Any]:
        calls: dict[str, Any] = {}
        for name in dict.fromkeys(it.call for it in effects):
            slots = [slot for it in effects if it.call == name for slot in it.slots]
            count = sum(it.call == name for it in effects)
            space = "states" if name == "free_state" else "slots"
            calls[name] = self._names.of(sorted(slots), space) if slots or name != "callback" else count
        inside = [it.sizes for it in effects if it.call == "callback"]
        sizes = {
            name: size
            for name, size in (inside[0] if inside else {}).items()
            if all(it.get(name) == size for it in inside) and not self._inside_passes(name)
        }
        return {"$calls": calls, "inside": sizes} if sizes else {"$calls": calls}

    def _inside_passes(self, name: str) -> bool:
        return any(
            self._changed_passes(place, it, "sizes", {**it.sizes, name: other})
            for place, it in enumerate(self._outcome.effects)
            if it.call == "callback"
            for other in (it.sizes[name] + 1, it.sizes[name] - 1)
        )

    def _exact_effects(self) -> list[Any]:
        exact = []
        for place, effect in enumerate(self._outcome.effects):
            made: dict[str, Any] = {"call": effect.call}
            if effect.slots and not self._changed_passes(place, effect, "slots", effect.slots[::-1]):
                made["slots"] = self._names.of_or_plain(effect.slots)
            if effect.target and not self._changed_passes(place, effect, "target", effect.target[::-1]):
                made["target"] = self._names.of_or_plain(effect.target)
            if not self._changed_passes(place, effect, "note", effect.note + "?"):
                made["note"] = effect.note
            sizes = {
                name: size
                for name, size in effect.sizes.items()
                if not self._changed_passes(place, effect, "sizes", {**effect.sizes, name: size + 1})
            }
            if sizes:
                made["sizes"] = sizes
            exact.append(made)
        return exact

    def _changed_passes(self, place: int, effect: Effect, name: str, value: Any) -> bool:
        if value == getattr(effect, name):
            return False
        changed = msgspec.structs.replace(effect, **{name: value})
        effects = self._outcome.effects
        return self._passes(effects=(*effects[:place], changed, *effects[place + 1 :]))

    # -- choices --
    def _other_choices(self) -> list[dict[str, Any]] | None:
        """Return what an eviction could have come to as well; ``None`` where that is too much to ask."""
        outcome, operation = self._outcome, self._operation
        result: Any = outcome.result
        if not isinstance(operation, Evict) or isinstance(result, Failed):
            return []
        calls = range(1 + max(1, len(self._names.slots))) if outcome.effects else (0,)
        backs = {count: tuple(Effect("callback", node=_FAR + it) for it in range(count)) for count in calls}
        found: list[dict[str, Any]] = []
        for asked, (counts, freed) in enumerate(self._choices()):
            if asked * len(calls) > _MOST_CHOICES or len(found) > _MOST_OTHERS:
                return None
            other = Evicted(*counts)
            if self._is_as_seen(other, freed):
                continue
            orders = ((*freed, *it) for it in backs.values())
            turned = ((*it, *freed) for it in backs.values() if it and freed)
            if any(
                self._passes(result=other, effects=effects, sizes={})
                for effects in itertools.chain(orders, turned)
            ):
                made = {"is": "evicted", "full": counts[0], "swa": counts[1], "states": counts[2]}
                named = {it.call: self._names.of(it.slots) for it in freed}
                found.append({"result": made, "effects": {"$calls": named}})
        return found

    def _is_as_seen(self, other: Evicted, freed: Sequence[Effect]) -> bool:
        seen = {(it.call, slot) for it in self._outcome.effects if it.call != "callback" for slot in it.slots}
        return (
            other == self._outcome.result and {(it.call, slot) for it in freed for slot in it.slots} == seen
        )

    def _choices(self) -> Iterator[tuple[tuple[int, int, int], tuple[Effect, ...]]]:
        """Yield what might be evicted: tokens, of them in the window's half, states; and what is freed."""
        sizes, result = self._outcome.sizes, self._outcome.result
        assert isinstance(result, Evicted)
        states = range(1 + (result.states + 2 if "mamba_evictable_size" in sizes else 0))
        if not self._has_pool:
            full = range(1 + result.full + sizes.get("total_size", _PAGES_CHOSEN))
            halves = range(1 + (result.swa + len(full) if self._has_window else 0))
            for counts in itertools.product(full, halves, states):
                yield counts, ()
            return
        pages = sorted({it // self._page_size for it in self._names.slots})
        ways = ("kept", "gone", "half gone", "gone with its half") if self._has_window else ("kept", "gone")
        for fate in itertools.product(ways, repeat=len(pages)):
            told: dict[str, list[int]] = {"free": [], "free_swa": []}
            swa = 0
            for page, way in zip(pages, fate, strict=True):
                slots = range(page * self._page_size, (page + 1) * self._page_size)
                told["free"] += slots if way.startswith("gone") else ()
                told["free_swa"] += slots if way == "half gone" else ()
                swa += self._page_size * (way in ("half gone", "gone with its half"))
            freed = tuple(Effect(name, tuple(slots)) for name, slots in told.items() if slots)
            bare = tuple(it for it in freed if it.call == "free")
            for count in states:
                yield (len(told["free"]), swa, count), freed
                if bare != freed:
                    yield (len(told["free"]), swa, count), bare


_NOTHING = object()


def _plain_node(node: NodeView) -> dict[str, Any]:
    names = (
        *("tokens", "extra_key", "slots", "is_alive", "lock_ref", "swa_lock_ref", "hit_count"),
        *("kept_bytes", "state", "state_lock_ref", "page_hashes"),
    )
    told = {name: _listed(getattr(node, name)) for name in names}
    return {name: value for name, value in told.items() if value is not None}


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, tuple | list) else value


def _tupled(value: Any) -> Any:
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value


def _only(kind: Any, name: str) -> Any:
    """Make a record of one field of another, which reads lists as what that holds."""
    field = next(it for it in msgspec.structs.fields(kind) if it.name == name)
    return msgspec.defstruct("Only", [(name, field.type)])


def _with_item(passes: _Passes, value: dict[str, Any], name: str, other: Any) -> bool | None:
    return passes({**value, name: other})


def _with_place(passes: _Passes, value: list[Any], at: int, other: Any) -> bool | None:
    return passes([*value[:at], other, *value[at + 1 :]])


def _pages(numbers: Sequence[int], page: int) -> list[list[int]]:
    return [list(numbers[at : at + page]) for at in range(0, len(numbers), page)]


def _joined(pages: Iterable[Sequence[int]], count: int) -> list[int]:
    """Join pages in another order; a part of one that is not the last any more is filled up."""
    pages = list(pages)
    longest = max(map(len, pages))
    whole = [list(range(page[0], page[0] + longest)) for page in pages]
    return list(itertools.chain.from_iterable(whole))[:count]


def _counted(value: Any) -> list[str]:
    return sorted(map(str, value)) if isinstance(value, list) else [str(value)]


def _regrouped(effects: Sequence[Effect]) -> Iterator[tuple[Effect, ...]]:
    """Yield effects in another order, and the same slots in other calls."""
    yield tuple(reversed(effects))
    names = list(dict.fromkeys(it.call for it in effects))
    frees = [it for it in effects if it.call != "callback"]
    backs = [it for it in effects if it.call == "callback"]
    joined = [
        Effect(name, tuple(slot for it in frees if it.call == name for slot in it.slots))
        for name in names
        if name != "callback"
    ]
    single = [Effect(it.call, (slot,)) for it in frees for slot in it.slots]
    turned = [msgspec.structs.replace(it, slots=it.slots[::-1]) for it in frees]
    for some in (joined, single, turned):
        for other in ((*some, *backs), (*backs, *some)):
            if other != tuple(effects):
                yield other


def _vary(value: Any) -> Iterator[Any]:
    """Yield values unlike this one, of its type."""
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, value - 1, value + 4, 0, value + _FAR)
        case str():
            yield value + "?"
        case None:
            yield from (0, 1, "a")
        case list():
            yield from _vary_list(value)
        case dict():
            for name, item in value.items():
                for other in _vary(item):
                    yield {**value, name: other}


def _vary_list(value: list[Any]) -> Iterator[list[Any]]:
    if not value:
        yield from ([0], [1], ["?"], [[0, 1]])
        return
    yield value[:-1]
    yield value[1:]
    yield [*value, value[-1]]
    yield value[::-1]
    for place, item in enumerate(value):
        for other in _vary(item):
            yield [*value[:place], other, *value[place + 1 :]]


# -- needs -------------------------------------------------------------------------------------------------


def split_claims(capabilities: Collection[str]) -> frozenset[str]:
    """Return capabilities with `refusals` as the six that it says."""
    known = frozenset(capabilities)
    return known - {"refusals"} | set(REFUSALS) if "refusals" in known else known


def least_needs(header: Header, sound: Sequence[Step], wrong: Sequence[Step]) -> frozenset[str]:
    """Drop each claim without which the judge still lets a sound run pass and refuses a wrong one."""
    needs = split_claims(header.capabilities)
    for claim in sorted(needs):
        fewer = msgspec.structs.replace(header, capabilities=tuple(sorted(needs - {claim})))
        if Asker(fewer, sound).accepts() and Asker(fewer, wrong).refuses():
            needs = needs - {claim}
    return needs
