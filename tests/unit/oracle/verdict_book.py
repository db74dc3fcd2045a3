"""What the judge says of some programs and of all their small changes, as files that people can read.

``verdicts/KIND.jsonl`` has programs with what they did, one history after the other. ``verdicts/KIND.txt``
says of each how often it tests each law and meets each situation, and sums up what is said of its small
changes: with a checksum of all of it, and an example of each kind of verdict that is new.
``python -m tests.unit.oracle.verdict_book`` writes these pages anew; with ``--all KIND-NUMBER`` it prints
every verdict on one program instead, to be compared with what it was.
"""

from __future__ import annotations

import argparse
import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from pymllm.errors import ProgramError
from pymllm.history.files import History, read_history
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.judge import judge_steps
from tests.unit.oracle.small_changes import change_each

__all__ = ["FOLDER", "judge_all", "kinds_before", "list_verdicts", "read_book", "read_corpus", "tell"]

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
