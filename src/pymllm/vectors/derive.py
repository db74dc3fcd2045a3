"""The derivation of a vector: a part of an outcome is left open if the judge accepts variations of it.

A program is played on a sound implementation. At each step the judge, which knows the steps before it as
they were, is shown that step otherwise: with another number, in another order, with an effect less. What it
refuses in every variation is expected as it was; where it lets one pass, the expectation is a form that says
less, or `$may`. So a vector demands nothing that a law does not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from pymllm.errors import ProgramError
from pymllm.history.files import Config, Header, Step
from pymllm.history.operations import (
    FindSlots,
    Inspect,
    ReadKV,
    ReadLive,
    ReadRows,
    ReadStates,
)
from pymllm.history.outcomes import (
    Outcome,
)
from pymllm.oracle.laws import find_law
from pymllm.vectors.determined import FREE, OTHER_RESULTS, Expecter
from pymllm.vectors.format import TWICE, Vector, VectorStep, make_id
from pymllm.vectors.names import Names
from pymllm.vectors.variations import (
    Asker,
)

_BY_PLACE = (ReadRows, ReadKV, ReadLive, FindSlots)
"""Operations whose result has contents by slot, or numbers that no span can name."""


def _spaces_by_place(kind: str, steps: Sequence[Step]) -> frozenset[str]:
    """Return the kinds of numbers that must be chosen alike, since contents are read by position."""
    spaces = set()
    for step in steps:
        if isinstance(step.operation, ReadStates):
            spaces |= {"states"}
        if isinstance(step.operation, _BY_PLACE):
            spaces |= {"slots", "halves"}
        if kind != "prefix" and isinstance(step.operation, Inspect):
            spaces |= {"slots", "halves", "states"}
    return frozenset(spaces)


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
    """Return a vector for a program, given the outcomes of a correct implementation.

    `ProgramError`: the judge does not let the program pass, so that nothing can be asked of it.
    """
    claims = tuple(sorted(set(needs) - {TWICE}))
    header = Header("", kind, dict(config), claims, specification=specification)
    asker = Asker(header, steps)
    if not asker.accepts():
        raise ProgramError(f"the judge does not let the program pass with the claims {', '.join(needs)}")
    made = _expect_all(asker, law, needs, config, steps, _spaces_by_place(kind, steps))
    _free_what_matters_not(header, law, needs, config, steps, made)
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


def _expect_all(
    asker: Asker,
    law: str,
    needs: Collection[str],
    config: Config,
    steps: Sequence[Step],
    by_place: frozenset[str],
    first: int = 0,
) -> list[VectorStep]:
    """Return the expectation of each step, from step ``first`` on."""
    names = Names()
    made: list[VectorStep] = []
    has_order = law == "X2" and "call_order" in needs
    for place, step in enumerate(steps):
        assert step.outcome is not None
        if place >= first:
            is_shaped = any(it.operation == step.operation for it in steps[:place])
            expecter = Expecter(
                asker, place, step.operation, step.outcome, names, config, by_place, is_shaped, has_order
            )
            made.append(VectorStep(step.operation, expecter.expect()))
        names.record(step.number, step.operation, step.outcome)
    return made


def _free_what_matters_not(
    header: Header,
    law: str,
    needs: Collection[str],
    config: Config,
    steps: Sequence[Step],
    made: list[VectorStep],
) -> None:
    """Leave a step's result open if all later expectations stay the same with any other right result.

    Otherwise a vector would end where somebody answers what is right, too, and see nothing of what follows.
    """
    asker, by_place = Asker(header, steps), _spaces_by_place(header.kind, steps)
    for place, step in enumerate(steps):
        assert step.outcome is not None
        expect = made[place].expect
        if place == len(steps) - 1 or list(expect.get("result", ())) != ["$may"]:
            continue
        others = [
            msgspec.structs.replace(step.outcome, result=it)
            for it in OTHER_RESULTS
            if type(it) is not type(step.outcome.result)
        ]
        right = [it for it in others if asker.lets_pass(place, it)]
        if all(
            _comes_to_the_same(header, law, needs, config, steps, made, by_place, place, it) for it in right
        ):
            made[place] = VectorStep(step.operation, {**expect, "result": FREE})


def _comes_to_the_same(
    header: Header,
    law: str,
    needs: Collection[str],
    config: Config,
    steps: Sequence[Step],
    made: Sequence[VectorStep],
    by_place: frozenset[str],
    place: int,
    outcome: Outcome,
) -> bool:
    """Tell whether all other expectations stay the same with another outcome of one step."""
    others = [*steps[:place], msgspec.structs.replace(steps[place], outcome=outcome), *steps[place + 1 :]]
    asker = Asker(header, others)
    if not asker.accepts():
        return False
    here, *later = _expect_all(asker, law, needs, config, others, by_place, place)
    own = made[place].expect
    return later == list(made[place + 1 :]) and all(
        here.expect.get(name) == own.get(name) for name in ("effects", "sizes")
    )
