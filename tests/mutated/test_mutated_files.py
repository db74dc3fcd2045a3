"""Spoiled files, through every command that reads a file: an error of one line, or a verdict."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutated.corpus import Case, make_cases
from tests.mutated.mutators import CANARY, spoil
from tests.mutated.verbs import Ended, find_fault, run, warm_up

ALL = 10_000
SHARE = 100
"""Files of the gate."""
_SHOWN = 5
_WORD = {0: "0", 1: "1", 2: "refused", 3: "unknown"}


@dataclass(frozen=True, slots=True)
class Workshop:
    """A folder for one file at a time, and what is tried on it."""

    folder: Path
    cases: list[Case]

    def refresh(self) -> None:
        """Make the folder new: a module that tells when it is imported, and a pipe without a writer."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        text = f"open({str(self.folder / CANARY)!r}, 'w').close()\nclass X: pass\n"
        (self.folder / "canary_module.py").write_text(text, encoding="utf-8")
        os.mkfifo(self.folder / "fifo")

    def try_one(self, case: Case, data: bytes) -> tuple[Ended, str | None]:
        """Run a command on a file, and say what was wrong with that."""
        self.refresh()
        for name, content in {**case.beside, case.name: data}.items():
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        text = data.decode("utf-8", "replace").replace("\0", "")
        ended = run([word.replace("@", text) if word == "@" else word for word in case.words], self.folder)
        fault = find_fault(ended, case.allowed)
        if (self.folder / CANARY).exists():
            fault = "code was run"
        return ended, fault


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    warm_up()
    base = tmp_path_factory.mktemp("mutated")
    return Workshop(base / "one", make_cases(base))


def _spoil_and_try(workshop: Workshop, count: int, seed: int) -> Counter[str]:
    """Spoil so many files; fail with the worst of what came of them, and count the rest."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    weights = [case.weight for case in workshop.cases]
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        (case,) = draw.choices(workshop.cases, weights)
        data = spoil(draw, draw.choice(case.files))
        ended, fault = workshop.try_one(case, data)
        counts[f"{case.verb}: {_WORD.get(ended.status, ended.status)}"] += 1
        if fault is not None:
            kept = workshop.folder.parent / f"{number}-{Path(case.name).name}"
            kept.write_bytes(data)
            wrong.append(f"{number}, {case.verb}: {fault}\n{ended.errors[-1500:]}\n{kept}")
    assert not wrong, "\n".join([f"{len(wrong)} of {count}", *wrong[:_SHOWN]])
    return counts


def test_good_files_are_read(workshop: Workshop) -> None:
    """Else the others would be refused for another reason."""
    for case in workshop.cases:
        for data in case.files[:: max(1, len(case.files) // 4)]:
            ended, fault = workshop.try_one(case, data)
            is_history = "history" in case.verb
            assert (fault, ended.status == 2) == (None, is_history), (case.verb, ended)


def test_a_spoiled_file_is_refused_in_one_line_or_judged(workshop: Workshop) -> None:
    """A share of what tox -e mutated tries: bounded memory and time, no traceback, and no code run."""
    assert sum(_spoil_and_try(workshop, SHARE, seed=0).values()) == SHARE


@pytest.mark.slow
def test_ten_thousand_spoiled_files_are_refused_in_one_line_or_judged(
    workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them, with the counts by command and outcome."""
    counts = _spoil_and_try(workshop, ALL, seed=1)
    with capsys.disabled():
        print("\n" + "\n".join(f"{count:6,}  {what}" for what, count in sorted(counts.items())))
    assert sum(counts.values()) == ALL
