"""What the judge says of some programs and of all their small changes, as files that people can read.

``verdicts/KIND.jsonl`` has programs with what they did, one history after the other. ``verdicts/KIND.txt``
says of each how often it tests each law and meets each situation, and sums up what is said of its small
changes: with a checksum of all of it, and an example of each kind of verdict that is new.
``python -m tests.unit.oracle.verdict_book`` writes these pages anew; with ``--all KIND-NUMBER`` it prints
every verdict on one program instead, to be compared with what it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pymllm.errors import ProgramError
from pymllm.history.codec import decode, encode
from pymllm.history.files import Header, History, Step, read_history
from pymllm.history.operations import Operation
from pymllm.history.outcomes import INJECTED, Outcome
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.judge import judge_steps

FOLDER = Path(__file__).with_name("verdicts")
_ACCEPTED = "accepted"
_LONG = 18
"""Operations from which on a program is there for what it counts: its changes would take too long."""


def read_corpus(folder: Path = FOLDER) -> dict[str, History]:
    """Return the programs by name: kind, and place in its file."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        texts = re.split(r'(?m)^(?=\{"format")', path.read_text(encoding="utf-8"))[1:]
        for number, text in enumerate(texts, 1):
            name = f"{path.stem}-{number}"
            found[name] = read_history(text.splitlines(), name)
    return found


def read_book(folder: Path = FOLDER) -> dict[str, str]:
    """Return what was written of each program, by its name."""
    sections = [
        section
        for path in sorted(folder.glob("*.txt"))
        for section in path.read_text(encoding="utf-8").split("\n\n")
    ]
    return {section.partition(":")[0]: section.rstrip("\n") for section in sections}


def kinds_before(name: str, book: Mapping[str, str]) -> set[str]:
    """Return the kinds of verdicts that the pages of a kind show before a program's."""
    kind, _, number = name.rpartition("-")
    earlier = [book[f"{kind}-{at}"] for at in range(1, int(number))]
    return {_kind_of(said) for text in earlier for said in re.findall(r"(?m)^ *[0-9]+ x (.*)", text)}


def tell(name: str, history: History, known: Collection[str]) -> str:
    """Tell what the judge says of a program and of its small changes; what is known needs no example."""
    evidence, found = judge_steps(history.header, history.steps)
    verdicts = list_verdicts(history) if len(history) < _LONG else []
    summed = Counter(_kind_of(said) for _, said in verdicts)
    first: dict[str, tuple[str, str]] = {}
    for words, said in verdicts:
        first.setdefault(_kind_of(said), (words, said))
    lines = [
        f"{name}: {history.header.adapter} {json.dumps(history.header.config)}, {len(history)} operations",
        f"tested: {_counts(evidence.exercised)}",
        f"met: {_counts(evidence.reached)}",
        f"refused: {'no' if found is None else found[1]}",
        f"changes: {len(verdicts)}, verdicts of {len(summed)} kinds, {_checksum(verdicts)}",
    ]
    for kind in sorted(summed.keys() - known):
        words, said = first[kind]
        lines.append(f"{summed[kind]:5} x {_ACCEPTED if kind == _ACCEPTED else said}")
        lines.append(f"        when {words}")
    return "\n".join(lines)


def list_verdicts(history: History) -> list[tuple[str, str]]:
    """Return each small change of a program with what the judge says of it."""
    return [(words, judge_all(changed)) for words, changed in change_each(history)]


def judge_all(history: History) -> str:
    """Say what the judge says of a program: what is wrong with it, or what was tested and met."""
    try:
        evidence, found = judge_steps(history.header, history.steps)
    except ProgramError as error:
        return f"no program: {error}"
    if found is not None:
        return f"{found[1]} (step {found[0].number})"
    return f"{_ACCEPTED}; {_summary(evidence)}"


def _summary(evidence: Evidence) -> str:
    return f"{_counts(evidence.exercised)}; {_counts(evidence.reached)}"


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counted.items())) or "nothing"


def _kind_of(said: str) -> str:
    """Return a verdict without its numbers: one of each kind is shown."""
    if said.startswith(_ACCEPTED):
        return _ACCEPTED
    law, colon, words = said.partition(": expected")[0].partition(": ")
    return f"{law}{colon}{re.sub(r'-?[0-9]+(, -?[0-9]+)*', '#', words)}"


def _checksum(verdicts: list[tuple[str, str]]) -> str:
    """Sum up what is too much to be shown."""
    text = "\n".join(sorted(f"{words}: {said}" for words, said in verdicts))
    return f"{zlib.crc32(text.encode()):08x}"


# -- small changes, one at a time: what a program says it did, what was asked, what was claimed --------------

_ANSWERS: tuple[dict[str, Any], ...] = (
    {"is": "done"},
    {"is": "no_room"},
    {"is": "failed", "error": "RuntimeError"},
    {"is": "failed", "error": "ValueError"},
    {"is": "failed", "error": INJECTED},
)
_EFFECTS: tuple[dict[str, Any], ...] = (
    {"call": "free", "slots": [1]},
    {"call": "free_swa", "slots": [1]},
    {"call": "move_swa", "slots": [1], "target": [2]},
    {"call": "free_state", "slots": [1]},
    {"call": "callback", "slots": [1], "node": 1},
)

Change = tuple[str, History]
"""What was changed, in words, and the program with the change."""


def change_each(history: History) -> Iterator[Change]:
    """Yield a history with each of its small changes; one that no file could hold is left out."""
    for place, step in enumerate(history.steps):
        before, after = history.steps[:place], history.steps[place + 1 :]
        for words, changed in _change_step(step):
            yield words, History(history.header, [*before, changed, *after])
    for words, header in _change_header(history.header):
        yield words, History(header, history.steps)


def _change_step(step: Step) -> Iterator[tuple[str, Step]]:
    outcome = step.outcome
    assert outcome is not None
    plain = {
        "result": {**encode(outcome)["result"], **_whole(outcome.result)},
        "effects": _whole(outcome.effects),
        "sizes": outcome.sizes,
    }
    where = f"step {step.number}: "
    for words, changed in _change_outcome(plain):
        try:
            other = decode(Outcome, changed, "outcome")
        except ValueError:  # no outcome says this
            continue
        yield where + words, dataclasses.replace(step, outcome=other)
    asked = {**encode(step.operation), **_whole(step.operation)}
    for words, changed in _change(asked, "op"):
        try:
            operation = decode(Operation, changed, "op")
        except ValueError:
            continue
        yield where + words, dataclasses.replace(step, operation=operation)


def _change_outcome(plain: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield outcomes that differ in one value, in the answer's kind, or in one call of a pool."""
    yield from _change(plain, "outcome")
    for answer in _ANSWERS:
        if any(plain["result"].get(name) != value for name, value in answer.items()):
            yield f"the answer is {' '.join(answer.values())}", {**plain, "result": answer}
    for effect in _EFFECTS:
        yield f"{effect['call']} is called, too", {**plain, "effects": [*plain["effects"], effect]}
    for place, effect in enumerate(plain["effects"]):
        if len(slots := effect.get("slots", ())) > 1:
            halves = [{**effect, "slots": part} for part in (slots[:1], slots[1:])]
            parted = [*plain["effects"][:place], *halves, *plain["effects"][place + 1 :]]
            yield f"{effect['call']} is called in parts", {**plain, "effects": parted}


def _whole(value: Any) -> Any:
    """Return a record as plain data, with the fields that have their default."""
    if dataclasses.is_dataclass(value):
        return {field.name: _whole(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [*map(_whole, value)] if isinstance(value, tuple) else value


def _change_header(header: Header) -> Iterator[tuple[str, Header]]:
    for claim in header.capabilities:
        claims = tuple(it for it in header.capabilities if it != claim)
        yield f"{claim} is not claimed", dataclasses.replace(header, capabilities=claims)
    for words, config in _change(header.config, "config"):
        yield words, dataclasses.replace(header, config=config)


def _change(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield a value of plain data with one small change, and its place with what became of it."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in ("is", "op", "message"):
                for words, changed in _change(part, f"{where}.{key}"):
                    yield words, {**value, key: changed}
    elif isinstance(value, list):
        yield from _change_list(value, where)
    else:
        yield from ((f"{where} is {leaf!r}", leaf) for leaf in _other_leaves(value))


def _change_list(value: list[Any], where: str) -> Iterator[tuple[str, Any]]:
    yield f"{where} is None", None
    if value:
        yield f"{where} lacks its first", value[1:]
        yield f"{where} has its last twice", [*value, value[-1]]
    if len(value) > 1:
        yield f"{where} lacks its last", value[:-1]
        yield f"{where} is reversed", value[::-1]
    for place in sorted({0, len(value) - 1} if value else ()):
        for words, changed in _change(value[place], f"{where}[{place}]"):
            yield words, [*value[:place], changed, *value[place + 1 :]]


def _other_leaves(value: bool | int | float | str | None) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int | float):
        return (value + 1, value - 1, None)
    return (f"{value}x", None) if isinstance(value, str) else (1,)


def main() -> None:
    """Write the book, or print all of a program's verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", metavar="NAME", help="print every verdict on one program")
    chosen = parser.parse_args().all
    corpus = read_corpus()
    if chosen is not None:
        print("\n".join(f"{words}\n    {said}" for words, said in list_verdicts(corpus[chosen])))
        return
    book: dict[str, list[str]] = {}
    written: dict[str, str] = {}
    for name, history in corpus.items():
        written[name] = tell(name, history, kinds_before(name, written))
        book.setdefault(name.rpartition("-")[0], []).append(written[name])
    for kind, sections in book.items():
        text = "\n\n".join(sections)
        (FOLDER / f"{kind}.txt").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
