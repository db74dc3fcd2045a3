"""``pymllm shrink``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from pymllm.adapters.registry import make_adapter
from pymllm.cli import main
from pymllm.cli.results.shrink import make_document, make_text
from pymllm.cli.schema import make_schema
from pymllm.documents.programs import ShrinkDocument
from pymllm.errors import InvariantViolation
from pymllm.faults.plant import planted
from pymllm.faults.table import own_cabinet
from pymllm.history.files import Header, History, PlayedActs, Step, load_history, write_history
from pymllm.history.operations import AllocRows, FreeRow, HashBytes, ReadRows, Span, WriteRow
from pymllm.machines.acting import FoundViolation, make_machine, with_scenario
from pymllm.machines.examiner import Examiner
from pymllm.machines.lifecycle import LifecycleMachine
from pymllm.search import shrinker
from pymllm.search.program import play_steps, run_program
from pymllm.search.shrinker import ShrinkRun, shows_again
from pymllm.work import workers
from tests.unit.cli.typed import refused, typed
from tests.unit.finding import found_by

RADIX = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}
(ENGINES_FAULT,) = [fault for fault in own_cabinet() if fault.id == "B10"]
FAULTY_ENGINE = """
from pymllm.faults.plant import planted
from pymllm.faults.table import PLANTED
from pymllm.adapters.own_caches import Radix
from tests.unit.cli.typed import refused, typed

fault = planted(next(fault for fault in PLANTED if fault.id == "B10").edits)
fault.__enter__()  # for as long as the process lives that imports this
"""
PROGRAM = [AllocRows(0), ReadRows(), AllocRows(1), AllocRows(1)]
PROGRAM += [WriteRow(Span(3, 0, 1), 0, 1, (7,)), FreeRow(Span(3, 0, 1)), ReadRows()]


shrink = partial(typed, "shrink")


@pytest.fixture
def file(tmp_path: Path) -> str:
    history = run_program("rows", {"max_reqs": 2, "max_context_len": 2}, PROGRAM)
    write_history(history, tmp_path / "long.jsonl")
    return str(tmp_path / "long.jsonl")


def test_the_small_program_is_printed_and_written(file: str, tiny: str) -> None:
    """P2: beside the file, with the law as its note; a rerun shows it."""
    result = shrink(file, "--adapter", f"{tiny}:KeepsEntries")
    assert (result.exit_code, result.stderr) == (1, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"P2  VIOLATED by {tiny}:KeepsEntries: a freed row is zero")
    assert "    operations 7 -> 4" in lines
    assert "    max_reqs   2 -> 1" in lines
    assert "                AllocRows(1),  # 1: Slots((1,))" in lines
    written = file.replace(".jsonl", ".short.jsonl")
    assert lines[-1] == f"    again      pymllm rerun {written} --adapter {tiny}:KeepsEntries"
    history = load_history(Path(written))
    assert len(history) == 4
    assert history.header.note.startswith("P2")
    assert "pymllm" in history.header.versions
    assert CliRunner().invoke(main, lines[-1].split()[2:]).exit_code == 1


def test_it_can_be_had_as_a_document(file: str, tiny: str, tmp_path: Path) -> None:
    """With another file, and any of some laws."""
    short = tmp_path / "short.jsonl"
    arguments = ["--law", "p2", "--law", "X3", "-o", str(short), "--json"]
    result = shrink(file, "--adapter", f"{tiny}:KeepsEntries", *arguments)
    document = json.loads(result.stdout)
    assert (result.exit_code, document["law"], document["finished"]) == (1, "P2", True)
    assert (document["before"]["operations"], document["after"]["operations"]) == (7, 4)
    assert document["output"] == str(short)
    assert len(load_history(short)) == 4


def test_a_program_that_breaks_nothing_is_left_alone(file: str) -> None:
    """The verdict of a rerun, and no file."""
    result = shrink(file)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("holds  7 steps of rows: ")
    assert not Path(file.replace(".jsonl", ".short.jsonl")).exists()


def test_little_time_gives_what_there_is(file: str, tiny: str) -> None:
    """Not smaller, and it says so."""
    result = shrink(file, "--adapter", f"{tiny}:KeepsEntries", "--seconds", "1e-9")
    assert result.exit_code == 1
    assert "    operations 7 -> 7" in result.stdout
    assert "a larger --seconds may find a smaller one" in result.stdout


@pytest.mark.parametrize("again", [True, False])
def test_an_interrupt_gives_what_there_is(
    file: str, tiny: str, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Printed and written before it ends with 130; a second one leaves only open how to see it again."""

    @contextmanager
    def interrupted(*arguments: str) -> Iterator[Callable[[int], None]]:
        def show(done: int) -> None:
            raise KeyboardInterrupt

        yield show

    def ask_again(*arguments: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("pymllm.cli.results.shrink.progress_bar", interrupted)
    ask = workers.ask

    def ask_untimed(do: Callable[..., object], *rest: Any) -> object:
        """Show what was found, and not that time passes before."""
        return ask_again() if do is shows_again and not again else ask(do, *rest[:3])

    monkeypatch.setattr(workers, "ask", ask_untimed)
    result = shrink(file, "--adapter", f"{tiny}:KeepsEntries")
    assert (result.exit_code, result.stderr) == (130, "pymllm: interrupted\n")
    assert "    operations 7 -> 7" in result.stdout
    assert ("    again      pymllm rerun" in result.stdout) == again
    assert len(load_history(Path(file.replace(".jsonl", ".short.jsonl")))) == 7


def test_an_interrupt_before_anything_was_found_has_nothing_to_keep(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 130 alone."""

    def ask(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "ask", ask)
    result = shrink(file)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "pymllm: interrupted\n")


def test_a_process_that_ends_leaves_the_smallest_until_then(file: str, tiny: str) -> None:
    """A smaller program made the adapter end it."""
    result = shrink(file, "--adapter", f"{tiny}:KeepsEntriesAndLeaves")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith("pymllm: the process that ran it ended with status 0 and gave no answer")
    assert result.stderr.endswith("; below is the smallest program so far\n")
    assert "    again      pymllm rerun" in result.stdout


def test_a_law_that_is_not_broken_is_named(file: str, tiny: str) -> None:
    """And so is the one that is; nothing runs for one that there is not."""
    refused("shrink", file, "--law", "R66", words="no law 'R66'")
    laws = ("--law", "P1", "--law", "X3")
    said = "long.jsonl: breaks P2, and not P1 or X3; name it with --law."
    refused("shrink", file, "--adapter", f"{tiny}:KeepsEntries", *laws, words=said)


def test_what_cannot_be_written_is_printed_all_the_same(file: str, tiny: str) -> None:
    """A minute's work is not lost to a name that is too long."""
    result = shrink(file, "--adapter", f"{tiny}:KeepsEntries", "-o", f"{Path(file).parent}/{'x' * 300}")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "cannot be written: File name too long" in result.stderr
    assert "    operations 7 -> 4" in result.stdout
    assert "written" not in result.stdout


def test_the_program_that_is_shrunk_is_never_written_over(file: str, tiny: str, tmp_path: Path) -> None:
    """Under none of its names; what a minute's search begins with is gone otherwise."""
    before = Path(file).read_bytes()
    (tmp_path / "link.jsonl").symlink_to(file)
    (tmp_path / "twin.jsonl").hardlink_to(file)
    for output in (["-o", str(tmp_path / it)] for it in ("long.jsonl", "link.jsonl", "twin.jsonl")):
        said = f"this is {file}, which the command reads; name another file."
        refused("shrink", file, "--adapter", f"{tiny}:KeepsEntries", *output, words=said)
        assert Path(file).read_bytes() == before
    result = shrink(str(tmp_path / "link.jsonl"), "--adapter", f"{tiny}:KeepsEntries", "-o", file)
    assert (result.exit_code, Path(file).read_bytes()) == (2, before)


def test_nothing_is_written_through_a_link_that_came_with_the_file(
    file: str, tiny: str, tmp_path: Path
) -> None:
    """It may lead to any file of the user; where the user names it, it is meant."""
    (tmp_path / "mine").write_text("mine", encoding="utf-8")
    link = tmp_path / "long.short.jsonl"
    for target in ("mine", "nothing", "long.jsonl"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        said = f"{link}: is a link, which may lead anywhere; name another file with --output."
        refused("shrink", file, "--adapter", f"{tiny}:KeepsEntries", words=said)
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "nothing").exists()
    assert shrink(file, "--adapter", f"{tiny}:KeepsEntries", "-o", str(tmp_path / "short")).exit_code == 1


def test_a_program_is_shrunk_on_a_command_once_the_user_names_it(
    file: str, tmp_path: Path, tiny_program: Callable[..., str]
) -> None:
    """A file never says what code runs."""
    write_history(
        History(Header(f"command:touch {tmp_path}/ran", "hashes"), [Step(1, HashBytes("00"))]), Path(file)
    )
    refused("shrink", file, words=f"add --command 'touch {tmp_path}/ran' ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long.jsonl"]
    named = shrink(file, "--command", tiny_program())
    assert (named.exit_code, named.stderr) == (1, "")
    again = f"pymllm rerun {tmp_path}/long.short.jsonl --adapter 'command:{tiny_program()}'"
    assert named.stdout.splitlines()[-1] == f"    again      {again}"


@pytest.fixture(scope="module")
def engine_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program whose operations break no law: the engine that made them did."""
    machine = make_machine(LifecycleMachine, "radix", RADIX, seed=0, audit=False)
    with planted(ENGINES_FAULT.edits):
        found = found_by(machine)
    path = tmp_path_factory.mktemp("engine") / "engine.jsonl"
    write_history(with_scenario(found.history, found.scenario), path)
    return str(path)


def test_what_an_engine_did_wrong_is_made_small_by_its_acts(
    engine_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2: the file has them, and so has the small one, which can be made smaller again."""
    short = tmp_path / "short.jsonl"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "faulty_engine.py").write_text(FAULTY_ENGINE, encoding="utf-8")
    result = shrink(engine_file, "-o", str(short), "--seconds", "3", "--adapter", "faulty_engine:Radix")
    assert result.exit_code == 1
    history = load_history(short)
    assert len(history) < len(load_history(Path(engine_file)))
    assert history.header.scenario is not None
    again = result.stdout.splitlines()[-1]
    assert again == f"    again      pymllm shrink {short} --adapter faulty_engine:Radix"
    assert shrink(*again.split()[3:], "--seconds", "0.5").exit_code == 1
    sound = shrink(engine_file)
    assert (sound.exit_code, sound.stderr) == (0, "")
    assert sound.stdout.startswith(f"{engine_file}: its acts, repeated on radix, break no law")


def test_acts_of_a_machine_that_is_not_there_are_refused(engine_file: str, tmp_path: Path) -> None:
    """In one line, with the file's name."""
    history = load_history(Path(engine_file))
    header = replace(history.header, scenario=PlayedActs("OtherMachine", False, ()))
    path = tmp_path / "other.jsonl"
    write_history(History(header, history.steps), path)
    result = shrink(str(path))
    assert result.exit_code == 2
    assert "other.jsonl: its acts are of OtherMachine; the state machines of prefix are" in result.stderr


# -- how it is told ----------------------------------------------------------------------------------------

STEPS = [AllocRows(2), WriteRow(Span(1, 0, 1), 0, 1, (7,)), FreeRow(Span(1, 0, 1)), ReadRows()]


@pytest.fixture
def run(tiny: str) -> ShrinkRun:
    examiner = Examiner(make_adapter(f"{tiny}:KeepsEntries", {"max_reqs": 2, "max_context_len": 2}))
    with pytest.raises(InvariantViolation) as caught:
        play_steps(examiner, enumerate(STEPS, 1))
    before = FoundViolation(examiner.history, caught.value)
    return ShrinkRun(None, before, shrinker.shrink(before, plays=500), 1_234, 5.67, {}, True)


def told(run: ShrinkRun, **other: object) -> tuple[ShrinkDocument, list[str]]:
    """The document and the lines of a run whose smallest program is changed."""
    assert run.best is not None
    best = dataclasses.replace(run.best, **other)  # type: ignore[arg-type]
    document = make_document("a b.jsonl", "a b.short.jsonl", dataclasses.replace(run, best=best))
    return document, make_text(document, best.history).splitlines()


def test_the_text_sets_what_is_beside_what_was(run: ShrinkRun) -> None:
    """And only what is smaller; numbers with commas, names of files quoted."""
    _, lines = told(run)
    assert "    operations 4 -> 4" in lines
    assert "    max_reqs   2 -> 1" in lines
    assert "    programs   1,234 tried in 5.7 s; no part of it can be left out" in lines
    assert lines[-1].startswith("    again      pymllm rerun 'a b.short.jsonl' --adapter ")


def test_what_could_not_be_run_is_counted(run: ShrinkRun) -> None:
    """By error; what this package did wrong itself stands for itself."""
    mistake = "2 candidates could not be run: KeyError: 3 (line 7 of judge.py)"
    counted = dataclasses.replace(run, misfits={"AdapterError": 3, "UsageError": 1})
    document, lines = told(counted, mistakes=(mistake,))
    assert (
        "    programs   1,234 tried in 5.7 s; 4 of them could not run (AdapterError 3, UsageError 1); "
        "no part of it can be left out"
    ) in lines
    assert f"    mistake    an error of pymllm itself: {mistake}" in lines
    assert (document.misfits, document.mistakes) == ({"AdapterError": 3, "UsageError": 1}, (mistake,))


def test_a_program_that_stayed_long_is_not_printed(run: ShrinkRun) -> None:
    """The file has it."""
    assert run.best is not None
    steps = [Step(number, ReadRows()) for number in range(1, 102)]
    _, lines = told(run, history=History(run.best.history.header, steps))
    assert "    operations 4 -> 101" in lines
    assert not any("run_program" in line for line in lines)


def test_what_a_rerun_does_not_show_is_not_promised(run: ShrinkRun) -> None:
    """X3: an engine's findings, for instance."""
    document, lines = told(dataclasses.replace(run, is_rerun=False))
    assert document.again is None
    assert lines[-1] == "    written    a b.short.jsonl"


def test_the_document_has_both_sizes(run: ShrinkRun) -> None:
    """And keeps to its schema."""
    document = json.loads(json.dumps(told(run)[0].plain()))
    Draft202012Validator(make_schema("shrink")).validate(document)
    config = {"max_reqs": 2, "max_context_len": 2}
    assert document["before"] == {"operations": 4, "tokens": 0, "config": config}
    assert document["after"]["config"] == {"max_reqs": 1, "max_context_len": 1}
    assert (document["programs"], document["seconds"]) == (1_234, 5.67)
    assert document["program"].startswith("from pymllm.search.program import run_program")
