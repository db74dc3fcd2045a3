"""An adapter may do anything to the process that it runs in; a run that saw nothing does not end with 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pymllm.cli import main
from pymllm.history.files import Header, History, Step, write_history
from pymllm.history.operations import AllocRows, FreeRow, Span

UNIT = Path(__file__).parents[1] / "unit"
CONFIG = {"max_reqs": 3, "max_context_len": 4}
PROGRAM = [AllocRows(1), FreeRow(Span(1, 0, 1)), AllocRows(1), FreeRow(Span(3, 0, 1))]
ENDS = {
    "Leaves": "ended with status 0 and gave no answer",
    "LeavesPolitely": "tried to end the process, SystemExit(0)",
    "IsKilled": "was killed by SIGKILL and gave no answer",
    "Aborts": "was killed by SIGABRT and gave no answer",
    "Interrupts": "FreeRow(row=Span(step=1, start=0, stop=1)) raised KeyboardInterrupt",
    "Generates": "raised GeneratorExit",
    "Closes": "gave no answer",
    "Deaf": "no answer within 1 s",
    "Thread": "ended with status 0 and gave no answer",
    "Stays": "gave no answer",
}
NOISES = ("Prints", "Writes", "Silent", "Registers", "Signals")


class Typed(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Typed]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Type a command in this process, which lives on, in a folder where modules may be."""
    for folder in (UNIT, tmp_path):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Typed:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert not {"evil", "rude_adapters"} & sys.modules.keys()
        return Typed(int(ended.value.code or 0), *capfd.readouterr())

    return run


@pytest.mark.parametrize("way", ENDS)
def test_what_ends_a_process_has_no_verdict(way: str, run: Run) -> None:
    """Status 3, the document whole, and why nothing is known."""
    name = f"rude_adapters:{way}"
    done = run("verify", "--adapter", name, "--examples", "1", "--jobs", "1", "--timeout", "1", "--json")
    document = json.loads(done.stdout)
    (adapter,) = document["adapters"]
    assert (done.returncode, document["verdict"]) == (3, "unknown")
    assert ENDS[way] in adapter["problems"][0]["message"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("way", NOISES)
def test_what_an_adapter_says_is_no_result(way: str, run: Run) -> None:
    """It is examined all the same, and the document has none of its words."""
    name = f"rude_adapters:{way}"
    done = run("verify", "--adapter", name, "--examples", "5", "--jobs", "1", "--json")
    document = json.loads(done.stdout)
    assert "a word" not in done.stdout
    assert [adapter["problems"] for adapter in document["adapters"]] == [[]]
    assert done.returncode in (0, 3)  # as far as five programs test its laws


def test_a_copy_of_the_process_does_not_answer_for_it(tmp_path: Path) -> None:
    """It would, where an adapter forks and the copy comes back with an error; with nothing prepared."""
    options = ["--adapter", "rude_adapters:CopiesLate", "--examples", "20", "--jobs", "1", "--json"]
    path = os.pathsep.join((str(UNIT), *filter(None, [os.environ.get("PYTHONPATH")])))
    done = subprocess.run(
        [sys.executable, "-m", "pymllm", "verify", *options],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert json.loads(done.stdout)["adapters"][0]["problems"] == []
    assert "a copy of the process came back" not in done.stdout + done.stderr


@pytest.mark.parametrize("way", ["LeavesLate", "InterruptsLate"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("soak", "--operations", "30000", "--longest", "5000", "--seed", "1", "--jobs", "1", "--json"),
        ("compare", "rows", "--examples", "30", "--jobs", "1", "--json"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_search_that_ends_early_has_no_verdict(arguments: tuple[str, ...], way: str, run: Run) -> None:
    """An adapter that ends the search in a program has no verdict; other searched adapters have theirs."""
    name = f"rude_adapters:{way}"
    naming = ("--adapter", name) if arguments[0] == "soak" else (name,)
    done = run(arguments[0], *naming, *arguments[1:])
    assert done.returncode == 3
    assert json.loads(done.stdout)["verdict"] == "unknown"
    assert ("KeyboardInterrupt" if way == "InterruptsLate" else "ended with status 0") in done.stdout


@pytest.mark.parametrize("way", ["Leaves", "Interrupts", "Closes", "RudeClaim"])
@pytest.mark.parametrize("command", ["rerun", "shrink"])
def test_a_program_that_ends_its_process_is_one_line(
    command: str, way: str, run: Run, tmp_path: Path
) -> None:
    """Status 3: an adapter whose process is gone has broken no law, and held none."""
    steps = [Step(number, operation) for number, operation in enumerate(PROGRAM, 1)]
    write_history(History(Header("rows", "rows", CONFIG), steps), tmp_path / "a.jsonl")
    done = run(command, "a.jsonl", "--adapter", f"rude_adapters:{way}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith(f"pymllm: adapter rude_adapters:{way}: ")


@pytest.mark.parametrize(
    "line", ["os._exit(0)", "raise KeyboardInterrupt", "os.write(1, b'slipped'); sys.exit(0)"]
)
@pytest.mark.parametrize(
    "arguments",
    [
        ("adapters", "evil:Rows"),
        ("verify", "--adapter", "evil:Rows", "--jobs", "1"),
        ("soak", "--adapter", "evil:Rows", "--jobs", "1", "--operations", "10"),
        ("rerun", "a.jsonl", "--adapter", "evil:Rows"),
        ("shrink", "a.jsonl", "--adapter", "evil:Rows"),
        ("faults", "hunt", "--cabinet", "evil:TABLE"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_a_module_does_when_it_is_imported_decides_nothing(
    arguments: tuple[str, ...], line: str, run: Run, tmp_path: Path
) -> None:
    """No status of its own, and no word in the result."""
    write_history(History(Header("rows", "rows", CONFIG), [Step(1, AllocRows(1))]), tmp_path / "a.jsonl")
    (tmp_path / "evil.py").write_text(f"import os, sys\n{line}\n", encoding="utf-8")
    done = run(*arguments)
    assert done.returncode in (2, 3)
    assert (done.stdout.count("slipped"), "Traceback" in done.stderr) == (0, False)
    assert "evil" in done.stdout + done.stderr
