"""``pymllm soak`` from the outside: a campaign in, a table, a ledger and a status out."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from pymllm.cli import main
from pymllm.cli.schema import make_schema
from pymllm.conformance.soak import campaign
from pymllm.conformance.soak.ledger import FILE
from pymllm.report.records import Curve, Document, Program
from pymllm.report.store import read_run

SHORT = ("--adapter", "rows", "--operations", "400", "--longest", "200", "--seed", "3", "--jobs", "1")


def soak(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["soak", *map(str, arguments)], catch_exceptions=False)


def test_a_sound_adapter_ends_with_0_a_table_and_a_ledger(tmp_path: Path) -> None:
    """With the seed to play it again, the shares of the time, and the drift."""
    result = soak(*SHORT, "--output", tmp_path / "c")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "seed 3, 400 operations, audit 1/64" in result.stdout
    assert "rows" in result.stdout
    assert "too short to tell" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("holds: 40")
    assert (tmp_path / "c" / FILE).read_text("utf-8").startswith('{"format": "pymllm-soak"')


def test_lines_of_the_ledger_keep_to_their_schema(tmp_path: Path) -> None:
    """Those of runs that failed, too."""
    result = soak(*SHORT, "--adapter", "faulty-dirty-rows", "--output", tmp_path)
    assert result.exit_code == 1
    validator = Draft202012Validator(make_schema("ledger"))
    for line in (tmp_path / FILE).read_text("utf-8").splitlines():
        validator.validate(json.loads(line))


def test_a_violation_ends_with_1_and_shows_how_to_see_it_again(tmp_path: Path) -> None:
    """P2: the commands that are printed do what they promise."""
    result = soak(*SHORT, "--adapter", "faulty-dirty-rows", "--operations", 1500, "--output", tmp_path / "c")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert any(line.startswith("P2  VIOLATED by faulty-dirty-rows in ") for line in lines)
    again = next(line for line in lines if line.startswith("    again"))
    rerun = CliRunner().invoke(main, again.split()[2:], catch_exceptions=False)
    assert rerun.exit_code == 1
    assert "P2" in rerun.stdout
    assert "        run_program(" in lines


def test_strict_fails_where_something_was_never_reached(tmp_path: Path) -> None:
    """And names it."""
    result = soak(*SHORT, "--operations", 20, "--strict", "--output", tmp_path)
    assert result.exit_code == 1
    assert "situations NEVER REACHED: " in result.stdout
    assert "violated: " in result.stdout.splitlines()[-1]
    assert result.stdout.splitlines()[-1].endswith("situations left at zero")


def test_the_document_keeps_to_its_schema_and_says_the_same(tmp_path: Path) -> None:
    """With everything that the table has."""
    result = soak(
        *SHORT, "--adapter", "faulty-dirty-rows", "--operations", 1500, "--json", "--output", tmp_path
    )
    document = json.loads(result.stdout)
    Draft202012Validator(make_schema("soak")).validate(document)
    assert (document["verdict"], document["exit_status"], result.exit_code) == ("violated", 1, 1)
    rows, faulty = document["adapters"]
    assert (rows["name"], rows["failures"]) == ("rows", [])
    assert faulty["failures"][0]["failure"]["law"] == "P2"
    assert document["operations"] == rows["operations"] + faulty["operations"]


def test_a_campaign_goes_on_and_campaigns_are_merged(tmp_path: Path) -> None:
    """A second campaign beside the first adds up with it; the page is the table."""
    one, two, both = (tmp_path / name for name in ("one", "two", "both"))
    assert soak(*SHORT, "--output", one).exit_code == 0
    lines = (one / FILE).read_text("utf-8").splitlines(keepends=True)
    (one / FILE).write_text("".join(lines[:-1]), encoding="utf-8")
    resumed = soak("--resume", one, "--jobs", "1")
    assert resumed.exit_code == 0
    assert len((one / FILE).read_text("utf-8").splitlines()) == len(lines)
    assert soak(*SHORT, "--seed", 4, "--output", two).exit_code == 0
    merged = soak("merge", one, two, "--output", both, "--page", tmp_path / "page.md")
    assert (merged.exit_code, merged.stderr) == (0, "")
    page = (tmp_path / "page.md").read_text("utf-8")
    assert page.startswith("# Soak\n\n```text\n")
    assert merged.stdout.strip() in page
    assert len((both / FILE).read_text("utf-8").splitlines()) == 2 * len(lines)


def test_merged_campaigns_are_kept_in_a_store(tmp_path: Path) -> None:
    """With the runs and the memory of all of them, and the program that one of them has."""
    sound, faulty, store = tmp_path / "sound", tmp_path / "faulty", tmp_path / "store"
    assert soak(*SHORT, "--output", sound).exit_code == 0
    failing = (*SHORT, "--adapter", "faulty-dirty-rows", "--operations", 1500, "--seed", 4)
    assert soak(*failing, "--output", faulty).exit_code == 1
    merged = soak("merge", sound, faulty / FILE, "--store", store)
    assert (merged.exit_code, "kept as " in merged.stderr) == (1, True)
    (file,) = store.iterdir()
    records = read_run(file).records
    (document,) = (it.document for it in records if isinstance(it, Document))
    lines = [(folder / FILE).read_text("utf-8").splitlines() for folder in (sound, faulty)]
    assert document["runs"] == sum(map(len, lines)) - 2
    assert sum(isinstance(it, Curve) for it in records) == 2  # of the process of each campaign
    assert any(isinstance(it, Program) for it in records)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--adapter", "nothing"], "no adapter 'nothing'"),
        (["--audit", "often"], "is no rate"),
        (["--adapter", "nowhere:Rows"], "cannot import nowhere"),
        (["--adapter", "rows", "--machine", "SlotMachine"], "driven by SlotMachine"),
        (["--page", "no/folder/x.md"], "there is no folder"),
        (["--resume", "nothing-here"], "there is no ledger.jsonl"),
        (["merge"], "Missing argument"),
        (["merge", "nothing-here"], "does not exist"),
    ],
)
def test_bad_input_is_one_line_and_ends_with_2(
    arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is played, and no folder made."""
    monkeypatch.chdir(tmp_path)
    result = soak(*arguments) if "merge" in arguments else soak(*arguments, "--jobs", "1")
    assert result.exit_code == 2
    assert why in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_read_or_written_are_bad_input(tmp_path: Path) -> None:
    """One line says which."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / FILE).write_text("no ledger\n", encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments in (
        [*SHORT, "--output", tmp_path / "file" / "c"],
        ["--resume", tmp_path / "bad", "--jobs", "1"],
        ["merge", tmp_path / "bad"],
        ["merge", empty],
    ):
        result = soak(*arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert soak(*SHORT, "--output", empty).exit_code == 0
    assert "there is a ledger already" in soak("merge", empty, "--output", empty).stderr


def test_a_page_is_not_written_over_a_campaign(tmp_path: Path) -> None:
    """Neither over a ledger that is there or will be, nor over a program."""
    assert soak(*SHORT, "--output", tmp_path / "c").exit_code == 0
    ledger = tmp_path / "c" / FILE
    (tmp_path / "link").symlink_to(ledger)
    (tmp_path / "twin").hardlink_to(ledger)
    (tmp_path / "new").mkdir()
    before = ledger.read_bytes()
    for page in (ledger, tmp_path / "link", tmp_path / "twin", tmp_path / "new" / FILE):
        for arguments in (["merge", tmp_path / "c"], ["--resume", tmp_path / "c"], SHORT):
            result = soak(*arguments, "--page", page)
            assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
            assert "name another one" in result.stderr
    assert ledger.read_bytes() == before


def test_a_campaign_that_goes_on_writes_nothing_through_links(tmp_path: Path) -> None:
    """Its folder may be anybody's, and the names of its programs can be foreseen."""
    folder, mine = tmp_path / "c", tmp_path / "mine"
    failing = (*SHORT, "--adapter", "faulty-dirty-rows", "--operations", 1500)
    assert soak(*failing, "--output", folder).exit_code == 1
    header, *_ = (folder / FILE).read_text("utf-8").splitlines()
    (folder / FILE).write_text(f"{header}\n", encoding="utf-8")
    mine.write_text("mine", encoding="utf-8")
    programs = sorted((folder / "programs").iterdir())
    for path in programs:
        path.unlink()
        path.symlink_to(mine)
    assert soak("--resume", folder, "--jobs", 1).exit_code == 1
    assert mine.read_text(encoding="utf-8") == "mine"
    assert all(path.is_symlink() for path in programs)
    (folder / FILE).rename(tmp_path / FILE)
    (folder / FILE).symlink_to(tmp_path / FILE)
    before = (tmp_path / FILE).read_bytes()
    result = soak("--resume", folder, "--jobs", 1)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "ledger.jsonl is a link that leads out of it" in result.stderr
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "nokind"}, "a kind is 'nokind'; it must be one of slots, rows"),
        ({"kind": "slots"}, "a machine is 'RowMachine'; it must be one of SlotMachine"),
        ({"machine": "os"}, "a machine is 'os'; it must be one of RowMachine"),
        ({"size": "huge"}, "a size is 'huge'; it must be one of tiny"),
    ],
)
def test_a_ledger_with_a_place_that_there_is_not_does_not_go_on(
    tmp_path: Path, changes: dict[str, str], why: str
) -> None:
    """In one line."""
    assert soak(*SHORT, "--output", tmp_path).exit_code == 0
    header, *runs = (tmp_path / FILE).read_text("utf-8").splitlines()
    plain = json.loads(header)
    plain["places"] = [place | changes for place in plain["places"]]
    (tmp_path / FILE).write_text("\n".join([json.dumps(plain), *runs]) + "\n", encoding="utf-8")
    result = soak("--resume", tmp_path, "--jobs", 1)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert why in result.stderr
    plain["longest"] = 0
    plain["places"] = []
    (tmp_path / FILE).write_text(json.dumps(plain) + "\n", encoding="utf-8")
    assert "longest is 0; a run has 1 operation or more" in soak("--resume", tmp_path).stderr


def test_another_version_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X3: its other runs were other programs."""
    assert soak(*SHORT, "--output", tmp_path).exit_code == 0
    monkeypatch.setattr(campaign, "build_version", lambda: "9+other")
    result = soak("--resume", tmp_path, "--jobs", "1")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "9+other" in result.stderr


def test_a_class_of_this_folder_is_found_again_when_its_campaign_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every run that is left would be written down as a problem of its adapter."""
    text = "from pymllm.adapters.own_pools import Rows\n\n\nclass MyRows(Rows):\n    pass\n"
    (tmp_path / "rows_here.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    result = soak(*SHORT[2:], "--adapter", "rows_here:MyRows", "--output", tmp_path / "c")
    ledger = tmp_path / "c" / FILE
    lines = ledger.read_text("utf-8").splitlines(keepends=True)
    ledger.write_text("".join(lines[:-1]), encoding="utf-8")
    sys.path.remove(str(tmp_path))
    assert "rows_here" not in sys.modules  # it was loaded in another process
    refused = soak("--resume", "c", "--jobs", "1")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert (
        "c/ledger.jsonl: names the adapter 'rows_here:MyRows'; from a file only the names" in refused.stderr
    )
    assert "rows_here" not in sys.modules
    resumed = soak("--resume", "c", "--jobs", "1", "--adapter", "rows_here:MyRows")
    assert (result.exit_code, resumed.exit_code) == (0, 0), resumed.output
    assert len(ledger.read_text("utf-8").splitlines()) == len(lines)


def test_a_ledger_that_names_a_command_starts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_program: Callable[..., str]
) -> None:
    """Its digest is of files that its author chose, too; the user names the command, or none runs."""
    monkeypatch.chdir(tmp_path)
    assert soak(*SHORT, "--output", "c").exit_code == 0
    ledger = Path("c") / FILE
    header = json.loads(ledger.read_text("utf-8").splitlines()[0])
    header["places"] = [{**place, "adapter": "command:touch ran"} for place in header["places"]]
    ledger.write_text(json.dumps(header) + "\n", encoding="utf-8")
    refused = soak("--resume", "c", "--jobs", 1)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "add --command 'touch ran'." in refused.stderr
    assert not Path("ran").exists()
    named = soak("--command", tiny_program("hello", "kill"), "--operations", 60, "--seed", 3, "--jobs", 1)
    assert (named.exit_code, f"command:{tiny_program('hello', 'kill')}  could not be" in named.stdout) == (
        3,
        True,
    )


@pytest.mark.usefixtures("work_here")
def test_an_interrupted_campaign_of_a_stranger_names_its_adapter_again(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that is printed can be typed."""
    plays = iter([True, False])
    play = campaign.play_run

    def interrupted(task: object) -> object:
        if not next(plays):
            raise KeyboardInterrupt
        return play(task)  # type: ignore[arg-type]  # a task

    monkeypatch.setattr(campaign, "play_run", interrupted)
    folder = tmp_path / "my runs"
    result = soak(*SHORT, "--adapter", f"{tiny}:KeepsEntries", "--output", folder)
    assert result.exit_code == 130
    said = next(line for line in result.stderr.splitlines() if "go on with" in line)
    assert said == f"pymllm: go on with: pymllm soak --resume '{folder}' --adapter {tiny}:KeepsEntries"
    monkeypatch.setattr(campaign, "play_run", play)
    resumed = soak(*shlex.split(said.partition("pymllm soak ")[2]), "--jobs", 1)
    assert resumed.exit_code == 1, resumed.stderr


@pytest.mark.usefixtures("work_here")
def test_an_interrupt_tells_what_there_is_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """130, as every command."""
    plays = iter([True, False])
    play = campaign.play_run

    def interrupted(task: object) -> object:
        if not next(plays):
            raise KeyboardInterrupt
        return play(task)  # type: ignore[arg-type]  # a task

    monkeypatch.setattr(campaign, "play_run", interrupted)
    result = soak(*SHORT, "--output", tmp_path)
    assert result.exit_code == 130
    assert f"go on with: pymllm soak --resume {tmp_path}" in result.stderr
    assert "in 1 runs" in result.stdout


def test_planted_faults_are_looked_for_by_campaigns(tiny: str, tmp_path: Path) -> None:
    """P2: each gets its own operations; no ledger is left."""
    amount = ("--operations", "3000", "--longest", "300", "--seed", "3", "--jobs", "1")
    result = soak("--cabinet", "tiny_cabinet:TABLE", "--fault", "dirty", *amount, "--json")
    document = json.loads(result.stdout)
    Draft202012Validator(make_schema("faults")).validate(document)
    (row,) = document["faults"]
    assert (result.exit_code, row["caught"]) == (0, True)
    assert (row["detections"][0]["law"], row["detections"][0]["searcher"]) == ("P2", "campaign")
    result = soak("--cabinet", "tiny_cabinet:TABLE", "--output", tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--output: with --cabinet or --fault only faults are told of" in result.stderr
