"""``pymllm verify``: options, search, table, files, document and JUnit."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator, ValidationError
from msgspec.structs import replace

from pymllm.adapters.registry import OWN
from pymllm.cli import main, tables
from pymllm.cli.schema import make_schema
from pymllm.cli.search.search_files import earlier_notes, save_programs
from pymllm.cli.search.verify import PROFILE_NAMES, plan_search
from pymllm.cli.tables import draw_document, fact_lines
from pymllm.history.files import load_history
from pymllm.machines.registry import CI, DEEP, DEV, PROFILES
from pymllm.oracle.judge import judge_steps
from pymllm.oracle.laws import find_law
from pymllm.report.feeds import write_junit
from pymllm.report.findings import violation_facts
from pymllm.report.sections.verification import name_laws, suites_of
from pymllm.search.results import SavedFiles, VerifyReport
from pymllm.signals import Terminated
from pymllm.work.workers import Task
from tests.unit.cli.typed import typed

FEW = ("--examples", "12", "--jobs", "1", "--profile", "dev")


verify = partial(typed, "verify")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are written below the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_holds_ends_with_0(jobs: str) -> None:
    """The table is on standard output, nothing is on standard error, and no file is written."""
    result = verify("--adapter", "rows", "--profile", "dev", "--examples", "30", "--jobs", jobs)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "profile dev: programs of up to 30 acts, 30 per machine and configuration, seed 0" in result.stdout
    assert "P2   a freed row is zero, and is freed once" in result.stdout
    assert "\nlaws: 0 violated, 0 unknown, 10 hold, 0 not claimed; " in result.stdout
    assert list(Path().iterdir()) == []


def test_what_is_violated_ends_with_1(tiny: str) -> None:
    """P2: the law, expected, observed, the smallest program, its file, and how to see it again."""
    adapter = f"{tiny}:KeepsEntries"
    result = verify("--adapter", adapter, "--seed", "4", *FEW)
    assert (result.exit_code, result.stderr) == (1, "")
    file = Path("runs/tiny_adapters-KeepsEntries-P2-4.jsonl")
    for line in (
        f"P2  VIOLATED by {adapter}: a freed row is zero, and is freed once",
        "    expected   0",
        f"    file       {file}",
        f"    again      pymllm rerun {file} --adapter {adapter}",
        f"               pymllm judge {file}",
        "        run_program(",
    ):
        assert f"\n{line}\n" in result.stdout
    history = load_history(file)
    assert history.header.note.startswith("P2: ")
    assert history.header.seed == 4
    assert history.header.versions.keys() >= {"pymllm", "python"}
    _, found = judge_steps(history.header, history.steps)
    assert found is not None


def test_what_is_unknown_ends_with_3(tiny: str) -> None:
    """An adapter that cannot be examined is said to be so, first of all."""
    result = verify("--adapter", f"{tiny}:Refuses", *FEW)
    assert (result.exit_code, result.stderr) == (3, "")
    assert f"{tiny}:Refuses  could not be examined to the end" in result.stdout
    assert "failed with TypeError: takes a list" in result.stdout
    assert (
        f"UNKNOWN   {tiny}:Refuses could not be examined, so none of its laws was judged\n" in result.stdout
    )
    assert "tiny_adapters.py)\n" in result.stdout  # the line that raised
    assert result.stdout.splitlines()[-1].startswith("no law was judged; 0 programs")


def test_what_hangs_ends_with_3_and_its_program(tiny: str) -> None:
    """The step, the limit, and a file that runs again and hangs again."""
    name = f"{tiny}:Hangs"
    result = verify("--adapter", name, "--timeout", "0.3", *FEW)
    assert result.exit_code == 3
    file = Path("runs/tiny_adapters-Hangs-crash1-0.jsonl")
    assert "    because    hung in step " in result.stdout
    assert f"no answer within 0.3 s (--timeout waits longer)\n    program    {file}\n" in result.stdout
    again = CliRunner().invoke(main, ["rerun", str(file), "--adapter", name, "--timeout", "0.3"])
    assert (again.exit_code, again.stdout) == (3, "")
    assert again.stderr.startswith(f"pymllm: adapter {name}: hung in step ")


@pytest.mark.usefixtures("work_here")
def test_what_is_left_unfinished_is_not_called_the_smallest(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two programs are not enough to make one small."""
    monkeypatch.setitem(PROFILES, "dev", dataclasses.replace(DEV, shrinks=2))
    monkeypatch.setattr("pymllm.search.shrinker._PLAYS", 2)
    arguments = ("--adapter", f"{tiny}:KeepsEntries", *FEW)
    text = verify(*arguments).stdout
    assert "    program    perhaps not the smallest: the search for smaller ones" in text
    file = "runs/tiny_adapters-KeepsEntries-P2-0.jsonl"
    assert f"\n    smaller    pymllm shrink {file} --adapter {tiny}:KeepsEntries\n" in text
    document = json.loads(verify(*arguments, "--json").stdout)
    assert [it["smallest"] for it in document["adapters"][0]["violations"]] == [False]


def test_a_program_that_was_shrunk_to_its_end_carries_no_hedge(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However soon Hypothesis had to stop: nothing that the passes try can be left out any more."""
    monkeypatch.setitem(PROFILES, "dev", dataclasses.replace(DEV, shrinks=2))
    text = verify("--adapter", f"{tiny}:KeepsEntries", *FEW).stdout
    assert "    at         step 4, in a program of 4 steps " in text
    assert "\n    program\n" in text
    assert "smallest" not in text
    assert "pymllm shrink" not in text


@pytest.mark.usefixtures("work_here")
@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_an_interrupt_prints_what_is_known(
    tiny: str, monkeypatch: pytest.MonkeyPatch, error: KeyboardInterrupt, status: int
) -> None:
    """One search of two is done: its violation is told and written, and then how it ended."""
    before = Task.carry_out
    done: list[object] = []

    def carry_out(task: Task) -> object:
        if len(done) == 2:
            raise error
        done.append(task)
        return before(task)

    monkeypatch.setattr(Task, "carry_out", carry_out)
    result = CliRunner().invoke(main, ["verify", "--adapter", f"{tiny}:KeepsEntries", *FEW])
    assert result.exit_code == status
    assert result.stderr == f"pymllm: {'interrupted' if status == 130 else 'terminated'}\n"
    assert f"P2  VIOLATED by {tiny}:KeepsEntries" in result.stdout
    assert "interrupted before its end" in result.stdout
    assert Path("runs/tiny_adapters-KeepsEntries-P2-0.jsonl").exists()


def test_walks_of_a_law_that_is_not_claimed_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at what was returned can break X5, and nothing else can be known of it."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    arguments = ("verify", "--adapter", "first_adapters:Slots", "--examples", 2, "--jobs", 1)
    text = " ".join(typed(*arguments, "-v").stdout.split())
    assert "A walk can break a law that is not claimed, but is no proof that it holds." in text
    assert " X5 " in text


def test_a_goal_at_zero_fails_with_strict() -> None:
    """No law is broken, and yet it ends with 1 and names what was never reached, as a document, too."""
    few = ("--adapter", "rows", "--law", "P1", "--profile", "dev", "--examples", "4", "--jobs", "1")
    assert verify(*few).exit_code == 0
    result = verify(*few, "--strict")
    assert result.exit_code == 1
    assert "never reached by the RowMachine: " in result.stdout
    result = verify(*few, "--strict", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["exit_status"], document["strict"]) == (1, 1, True)
    named = [row["name"] for row in document["situations"] if row["unmet"]]
    assert named
    assert all(f"pymllm: RowMachine never reached: {name} (rows)\n" in result.stderr for name in named)
    (machine,) = document["adapters"][0]["machines"]
    assert machine["unmet"] == sorted(named)


def test_strict_is_no_burden_where_everything_is_reached() -> None:
    """A strict run goes on until every goal was met."""
    result = verify("--adapter", "kv-buffers", "--profile", "dev", "--jobs", "1", "--strict")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "never reached" not in result.stdout
    assert ["BufferMachine", "17", "of", "17"] in [line.split()[-4:] for line in result.stdout.splitlines()]


def test_a_law_can_be_asked_for(tiny: str) -> None:
    """Only its row, and a line on others that are broken; the same adapter twice is examined once."""
    name = f"{tiny}:KeepsEntries"
    result = verify("--adapter", name, "--adapter", name, "--law", "p1", "--law", "P1", *FEW)
    rows = [line[:2] for line in result.stdout.splitlines() if line[:1] in tuple("XP") and line[2:3] == " "]
    assert rows == ["P1"]
    assert "beside    not asked for, and broken: P2 in " in result.stdout
    assert result.exit_code == 0


def test_what_is_known_is_no_violation(tiny: str, tmp_path: Path) -> None:
    """A first file is written from what was found, and the next search goes on behind it."""
    listed, name = tmp_path / "known.toml", f"{tiny}:KeepsEntries"
    found = verify("--adapter", name, "--write-deviations", str(listed), *FEW)
    assert found.exit_code == 1
    first = listed.read_text(encoding="utf-8")
    assert first.count("law = ") == 1
    again = verify("--adapter", name, "--deviations", str(listed), *FEW)
    assert again.exit_code == 0
    assert re.search(
        r"^known +tiny-adapters-KeepsEntries-P2 \(P2, \d+ programs?\)$", again.stdout, re.MULTILINE
    )
    assert re.search(r"^P2 .* holds \*", again.stdout, re.MULTILINE)
    gone = verify("--adapter", f"{tiny}:TinyRows", "--deviations", str(listed), "--strict", *FEW)
    assert "deviation" in gone.stdout, "of another adapter: not searched"
    listed.write_text(first.replace(f'adapter = "{name}"', 'adapter = "*"'), encoding="utf-8")
    gone = verify("--adapter", f"{tiny}:TinyRows", "--deviations", str(listed), "--json", *FEW)
    assert [row["status"] for row in json.loads(gone.stdout)["deviations"]] == ["gone"]
    assert "pymllm: no program met tiny-adapters-" in gone.stderr
    verify("--adapter", name, "--write-deviations", str(listed), *FEW)
    assert listed.read_text(encoding="utf-8").count("law = ") == 2, "what was there stays"


def test_a_file_of_deviations_that_is_wrong_is_refused(tmp_path: Path) -> None:
    """X1: in a line, with the table."""
    listed = tmp_path / "known.toml"
    refused = verify("--adapter", "rows", "--deviations", str(listed), *FEW)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    listed.write_text("[it]\nlaw = 'P2'\n", encoding="utf-8")
    refused = verify("--adapter", "rows", "--deviations", str(listed), *FEW)
    assert refused.exit_code == 2
    assert f"{listed}: [it]: field 'reason' is missing." in refused.stderr


@pytest.mark.parametrize("name", ["TinyRows", "KeepsEntries", "GivesUp", "Refuses"])
def test_the_document_keeps_to_its_schema(tiny: str, name: str) -> None:
    """The document keeps to its schema for every verdict; each trouble has a line on standard error."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator(make_schema("verify"))
    result = verify("--adapter", f"{tiny}:{name}", "--json", *FEW)
    document = json.loads(result.stdout)
    validator.validate(document)
    assert document["exit_status"] == result.exit_code
    assert document["adapters"][0]["name"] == f"{tiny}:{name}"
    assert result.stderr.count("\n") == (0 if name == "TinyRows" else len(result.stderr.splitlines()))
    assert all(line.startswith("pymllm: ") for line in result.stderr.splitlines())
    assert bool(result.stderr) == (name != "TinyRows")


def test_deep_draws_a_seed_and_prints_it(tiny: str) -> None:
    """A night looks elsewhere than the night before, and can be repeated."""
    deep = ("--profile", "deep", "--examples", "1", "--jobs", "1")
    arguments = ("--adapter", f"{tiny}:TinyRows", *deep, "--json")
    seeds = {json.loads(verify(*arguments).stdout)["seed"] for _ in "abc"}
    assert len(seeds) > 1


def test_a_local_version_is_a_build_of_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip has it: 2.13.0+cpu is 2.13.0, but no other build of it."""
    monkeypatch.setattr("pymllm.cli.search.verify.version", {"tree": "2.13.0+cpu"}.__getitem__)

    def release(named: str) -> Any:
        return json.loads(verify("--adapter", "rows", "--release", named, "--json", *FEW).stdout)["release"]

    assert release("tree==2.13.0") == {"package": "tree", "version": "2.13.0"}
    assert release("tree==2.13+cpu") == {"package": "tree", "version": "2.13+cpu"}
    assert release("tree") == {"package": "tree", "version": "2.13.0+cpu"}
    for named in ("tree==2.13.0+cu130", "tree==2.13.1"):
        result = verify("--adapter", "rows", "--release", named)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{named!r} is not what is installed, which is tree 2.13.0+cpu" in result.stderr


@pytest.mark.parametrize(
    ("named", "package", "version"),
    [("click", "click", metadata.version("click")), ("tree==1.2.post03", "tree", "1.2.post3")],
)
def test_a_document_names_the_release_that_was_examined(named: str, package: str, version: str) -> None:
    """The one that is installed, or the one that the caller knows; the table says it, too."""
    result = verify("--adapter", "rows", "--release", named, *FEW)
    assert f"{package} {version}\n" in result.stdout
    document = json.loads(verify("--adapter", "rows", "--release", named, "--json", *FEW).stdout)
    assert document["release"] == {"package": package, "version": version}
    assert json.loads(verify("--adapter", "rows", "--json", *FEW).stdout)["release"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--release", "nobody-has-this"],
            "no package 'nobody-has-this' is installed; install it, or write nobody-has-this==VERSION.",
        ),
        (["--release", ""], "no package '' is installed; install it, or write PACKAGE==VERSION."),
        (["--release", "tree==new"], "--release: 'new' is no version; write one such as 1.2.1"),
        (
            ["--release", "click==0.0.1"],
            f"'click==0.0.1' is not what is installed, which is click {metadata.version('click')}; write "
            "click, or install click==0.0.1.",
        ),
        *(
            (
                ["--release", named],
                f"{named!r} is neither a package nor a release of one; write PACKAGE or PACKAGE==VERSION.",
            )
            for named in ("foo>=1", "click >= 1", "click>=1==2")
        ),
        (["--release", "==1"], "'==1' names no package; write PACKAGE==1."),
    ],
)
def test_a_release_that_nobody_can_know_is_refused(words: list[str], said: str) -> None:
    """Before anything is searched."""
    result = verify("--adapter", "rows", *words)
    assert result.exit_code == 2
    assert said in result.stderr.replace("\n", " ")


def test_verdicts_are_written_as_junit(tiny: str) -> None:
    """The JUnit file has the same verdicts."""
    result = verify("--adapter", f"{tiny}:KeepsEntries", "--junit", "out.xml", *FEW)
    assert result.exit_code == 1
    suite = ElementTree.parse("out.xml").getroot().find("testsuite")
    assert suite is not None
    assert suite.get("failures") == "1"


def test_a_folder_that_nobody_asked_for_may_be_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a folder that was named is refused: a program is complained of where it cannot be written."""

    def refuse(dir: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    small = ["--adapter", "hashes", "--examples", "2", "--jobs", "1"]
    assert verify(*small).exit_code in (0, 3)
    assert "cannot write in" in verify(*small, "--output", "runs").stderr


def test_an_adapter_in_the_current_folder_is_found() -> None:
    """Whoever writes a cache beside its adapter types no path."""
    Path("my_adapter.py").write_text(
        "from pymllm.adapters.own_pools import KeysAndHashes\nclass Mine(KeysAndHashes):\n    pass\n",
        encoding="utf-8",
    )
    command = [Path(sys.executable).parent / "pymllm", "verify", "--adapter", "my_adapter:Mine"]
    done = subprocess.run(
        [*command, "--examples", "10", "--jobs", "2"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "my_adapter" not in sys.modules


@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full"])
def test_two_processes_need_no_standard_error(errors: str) -> None:
    """The result is the same; only words are lost."""
    line = f'"$0" -m pymllm verify --adapter hashes --profile dev --jobs 2 {errors}'
    done = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "0 violated, 0 unknown" in done.stdout


FAILING = """
import os, signal, sys, time
sys.path.insert(0, {folder!r})
from page_cache import HELLO, PageCache, serve
class Cache(PageCache):
    def do_evict(self, step, op):
        if op["tokens"] > 1:
            {line}
        return super().do_evict(step, op)
claims = ["pool", "exact_lru"]
serve(Cache, {{**HELLO, "capabilities": claims, "configurations": HELLO["configurations"][:1]}})
"""
PROTOCOL = Path(__file__).parents[3] / "examples" / "protocol"


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    ("line", "verdict", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "was ended by SIGSEGV"),
        ("time.sleep(60)", "hung", "gave no answer within 2.7 s"),
        ("print('what?')", "garbled", "'what?' is not JSON"),
    ],
)
def test_a_program_that_does_not_go_on_has_a_verdict_and_files(
    jobs: str, line: str, verdict: str, words: str
) -> None:
    """Status 3, no traceback: its laws are unknown, none is violated, and its last lines are kept."""
    Path("failing.py").write_text(FAILING.format(folder=str(PROTOCOL), line=line), encoding="utf-8")
    command = f"{sys.executable} -S failing.py"
    few = ("--examples", "12", "--profile", "dev", "--jobs", jobs)  # what is drawn depends on its path
    limit = "3" if verdict == "hung" else "30"
    result = verify("--command", command, *few, "--timeout", limit, "--json")
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    (adapter,) = json.loads(result.stdout)["adapters"]
    assert (adapter["verdict"], adapter["violations"]) == ("unknown", [])
    (problem,) = adapter["problems"]
    assert problem["ended"] == verdict
    assert words in problem["message"]
    assert "it was asked for step" in problem["message"]
    last = load_history(Path(problem["file"])).steps[-1]
    assert (type(last.operation).__name__, last.outcome) == ("Evict", None)
    said = Path(problem["conversation"]).read_text(encoding="utf-8").splitlines()
    assert said[1].startswith(f"# {verdict}: ")
    assert any(f'"step":{last.number},"op":{{"op":"evict"' in line for line in said)


def test_planted_faults_are_looked_for_as_always(tiny: str) -> None:
    """P1, P2: each with the law, or what caught it instead; the document is that of faults."""
    result = typed("faults", "verify", "--cabinet", "tiny_cabinet:TABLE", *FEW)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["keeping", "dirty"]
    assert "✗ by another law" in lines[1]
    assert lines[-1].startswith("1 of 2 faults caught by a listed law (2 by the verification)")
    adapter = ("--adapter", f"{tiny}:TinyRows")
    result = typed("faults", "verify", "--cabinet", "tiny_cabinet:TABLE", *adapter, *FEW, "--json")
    document = json.loads(result.stdout)
    Draft202012Validator(make_schema("faults")).validate(document)
    assert (result.exit_code, [row["id"] for row in document["faults"]]) == (0, ["dirty"])
    assert document["faults"][0]["detections"][0]["searcher"] == "verification"


def test_a_fault_is_chosen_by_its_id(tiny: str) -> None:
    """One of this package without a cabinet."""
    result = typed("faults", "verify", "B116", *FEW)
    assert (result.exit_code, result.stdout.splitlines()[1].split()[0]) == (0, "B116")


# -- what to do --------------------------------------------------------------------------------------------


def test_defaults_are_settled() -> None:
    """Our classes, all laws and the profile's seed; what was given stays."""
    plan = plan_search((), (), "ci", None, None, 2, 30.0)
    assert (plan.adapters, plan.laws, plan.profile, plan.seed, plan.examples) == (OWN, (), CI, 0, None)
    plan = plan_search(("radix", "rows", "radix"), ("r6", "R6", "A1"), "deep", 7, None, 3, 30.0)
    assert [entry.name for entry in plan.adapters] == ["radix", "rows"]
    assert (plan.laws, plan.profile, plan.seed, plan.jobs) == ((find_law("R6"), find_law("A1")), DEEP, 7, 3)


def test_the_profiles_are_those_that_there_are() -> None:
    """The names stand twice, since the profiles' room is not loaded for --help."""
    assert set(PROFILE_NAMES) == set(PROFILES)


# -- files, table, document and JUnit of a report with everything in it ------------------------------------


def test_each_program_has_a_file(report: VerifyReport, tmp_path: Path) -> None:
    """Named by adapter, law and seed, also where the adapter's name is none of a file."""
    files = save_programs(report, tmp_path / "new" / "runs")
    folder = tmp_path / "new" / "runs"
    assert files == SavedFiles(
        {
            ("my.rows:Rows", "P2"): str(folder / "my.rows-Rows-P2-41.jsonl"),
            ("my.rows:Rows", "P3"): str(folder / "my.rows-Rows-P3-41.jsonl"),
        },
        {("my.rows:Rows", 0): str(folder / "my.rows-Rows-crash1-41.jsonl")},
        {("gone:Cache", 0): str(folder / "gone-Cache-crash1-41-conversation.txt")},
    )
    assert Path(files.conversations["gone:Cache", 0]).read_text(encoding="utf-8") == "> hello\n"
    assert sorted(path.name for path in folder.iterdir()) == [
        "gone-Cache-crash1-41-conversation.txt",
        "my.rows-Rows-P2-41.jsonl",
        "my.rows-Rows-P3-41.jsonl",
        "my.rows-Rows-crash1-41.jsonl",
    ]


def test_files_of_earlier_searches_are_told_apart(report: VerifyReport, tmp_path: Path) -> None:
    """They stay as they are, and are named only where the adapter is this one, and the name one of ours."""
    earlier = ["my.rows-Rows-P1-7.jsonl", "my.rows-Rows-P2-40.jsonl", "gone-Cache-crash2-3-conversation.txt"]
    others = [
        "my.rows-Rows-P2-40.short.jsonl",
        "my.rows-Rows-window-P1-7.jsonl",
        "rows-window-P2-1.jsonl",
        "P2.jsonl",
    ]
    for name in [*earlier, *others]:
        (tmp_path / name).write_text("kept", encoding="utf-8")
    files = save_programs(report, tmp_path)
    assert files.earlier == sorted(str(tmp_path / name) for name in earlier)
    assert all((tmp_path / name).read_text(encoding="utf-8") == "kept" for name in [*earlier, *others])
    assert list(earlier_notes(files.earlier)) == [
        f"earlier   3 files of other searches in that folder: {', '.join(files.earlier)}"
    ]
    (told,) = earlier_notes([f"runs/{number}" for number in (1, 2, 3, 4, 5)])
    assert told.endswith("runs/3 and 2 more")
    assert list(earlier_notes([])) == []


def test_a_file_says_where_it_comes_from(report: VerifyReport, tmp_path: Path) -> None:
    """Versions, seed, and why it was kept; its steps are the finding's."""
    files = save_programs(report, tmp_path)
    history = load_history(Path(files.programs["my.rows:Rows", "P2"]))
    assert history.header.versions == report.versions
    assert history.header.note == "P2: row 1\nposition 3: expected 0, observed 7\x1b"
    assert history.header.seed == 41
    assert history.steps == report.adapters[0].findings[0].history.steps
    crash = load_history(Path(files.crashes["my.rows:Rows", 0]))
    assert crash.header.note == "it stumbled\nover its feet"


FILES = SavedFiles(
    {("my.rows:Rows", "P2"): "runs/P2.jsonl", ("my.rows:Rows", "P3"): "runs/P3.jsonl"},
    {("my.rows:Rows", 0): "runs/crash.jsonl"},
    {("gone:Cache", 0): "runs/said.txt"},
)


def text_of(report: VerifyReport, files: SavedFiles = FILES, *, verbose: bool = False) -> str:
    return draw_document(report.document(files), verbose=verbose)


def test_what_somebody_has_to_look_at_comes_first(report: VerifyReport) -> None:
    """Violated, unknown, holds; every law once, over all adapters. What nobody claims is one line."""
    lines = text_of(report).splitlines()
    assert lines[:3] == [
        "pymllm 0.1  python 3.11",
        "profile ci: programs of up to 40 acts, seed 41, 2 processes",
        "",
    ]
    head = next(place for place, line in enumerate(lines) if line.startswith("law  demands that"))
    table = [(line.split()[0], line.split("  ")[-1].strip()) for line in lines[head + 1 : head + 5]]
    assert table == [("P2", "1"), ("P3", "1"), ("E5", "1"), ("P1", "2")]
    assert lines[head + 5 : head + 7] == ["", "not claimed: 1 law, X1 (--verbose lists them)"]
    row = "P1   rows 1 to max_reqs are handed out, row 0 is padding  holds     1,234     42         2"
    assert row in lines


def test_laws_that_were_not_searched_to_their_end_have_a_mark(report: VerifyReport) -> None:
    """Laws that were not searched to their end have a mark, and the legend explains the mark only then."""
    assert "~" not in text_of(report)
    broken, fine, gone = report.adapters
    laws = tuple(replace(row, unfinished=row.id == "P1") for row in broken.laws)
    ended = dataclasses.replace(report, adapters=(dataclasses.replace(broken, laws=laws), fine, gone))
    lines = [line.split("  ") for line in text_of(ended).splitlines()]
    (row,) = (line for line in lines if line[0].strip() == "P1")
    assert "holds ~" in row
    (legend,) = (line for line in lines if line[0].strip() == "~")
    assert legend[-1].strip().startswith("Not searched to its end")


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        (["X1"], "X1"),
        (["A7", *(f"S{number}" for number in range(1, 8)), "M1"], "A7, S1-S7, M1"),
        (["R9", "R10", "R12", "S12"], "R9-R10, R12, S12"),
    ],
)
def test_laws_that_follow_each_other_are_named_as_one(ids: list[str], named: str) -> None:
    """By their group and number; a gap or another group ends it."""
    assert name_laws(ids) == named


def test_laws_that_nobody_claims_are_in_the_tables_of_verbose(report: VerifyReport) -> None:
    """There, each adapter has all of its laws."""
    lines = text_of(report, verbose=True).splitlines()
    assert [line for line in lines if line.startswith("not claimed:")] == ["not claimed: 1 law, X1"]
    assert [line for line in lines if line.startswith("X1 ") and "not claimed" in line]


def test_invariants_are_listed_by_name(report: VerifyReport) -> None:
    """Invariants are listed by name, if they are made of laws in the table."""
    assert "slot 0 is never handed out  holds    P1" in text_of(report)
    assert "windows are valid" not in text_of(report)
    without = dataclasses.replace(report, adapters=report.adapters[2:])
    assert "invariant" not in text_of(without)


def test_a_violation_is_facts_and_commands(report: VerifyReport) -> None:
    """Law, expected, observed, where, the file; what was found elsewhere is escaped into its line."""
    text = text_of(report)
    assert (
        """
P2  VIOLATED by my.rows:Rows: a freed row is zero, and is freed once
    looked at  row 1\\nposition 3
    expected   0
    observed   7\\x1b
    at         step 2, in a program of 2 steps (max_reqs 3)
    file       runs/P2.jsonl
    again      pymllm rerun runs/P2.jsonl --adapter my.rows:Rows
               pymllm judge runs/P2.jsonl
    program
        from pymllm.search.program import run_program
        from pymllm.history.operations import AllocRows, Clear

        run_program(
            'my.rows:Rows',
            {'max_reqs': 3},
            [
                AllocRows(1),  # 1: Slots((1,))
                Clear(),  # 2: Done()
            ],
        )
"""
        in text
    )


def test_the_program_of_each_violation_is_printed(report: VerifyReport) -> None:
    """One that only its engine shows says so."""
    text = text_of(report)
    assert text.count("    program\n") == text.count("VIOLATED by ") == 2
    assert (
        "    file       runs/P3.jsonl\n"
        "    again      pymllm verify --adapter my.rows:Rows --law P3 --seed 41  "
        "(the operations of the program alone do not break the law)\n"
    ) in text


def test_a_file_that_could_not_be_written_has_no_commands(report: VerifyReport) -> None:
    """The program is printed all the same."""
    text = text_of(report, SavedFiles())
    assert text.count("    file       could not be written\n") == 2
    assert "pymllm rerun" not in text
    assert "pymllm judge" not in text
    assert "could not be examined to the end\n    because    it stumbled\\nover its feet\n\n" in text


def test_problems_say_why(report: VerifyReport) -> None:
    """And where the program is that met them."""
    text = text_of(report)
    assert "    because    it stumbled\\nover its feet\n    program    runs/crash.jsonl\n" in text
    assert (
        "\ngone:Cache  could not be examined to the end\n    verdict    hung\n"
        "    because    cannot import gone\n    last said  runs/said.txt\n"
    ) in text
    assert "last said" not in text_of(report, SavedFiles())


def test_verbose_has_a_table_for_each_adapter_and_the_machines(report: VerifyReport) -> None:
    """How much was played, and how fast."""
    plain, verbose = (text_of(report, verbose=verbose) for verbose in (False, True))
    assert "configurations" not in plain
    assert "RowMachine               2        37        37  1,000  0.5 s    2,000\n" in verbose
    count = ["RowMachine", "a", "row", "is", "freed", "twice", "4", "rows"]
    assert count not in [line.split() for line in plain.splitlines()]
    assert count in [line.split() for line in verbose.splitlines()]
    assert verbose.count("P1   rows 1 to max_reqs are handed out") == 3


def test_goals_are_counted_and_those_at_zero_named(report: VerifyReport) -> None:
    """Each machine is counted once, with the goals that no adapter missed; goals are named on request."""
    text, verbose = text_of(report), text_of(report, verbose=True)
    assert "machine     coverage goals reached\nRowMachine                  0 of 2\n" in text
    names = "a row outside is freed (my.rows:Rows); a row is freed twice (rows)"
    assert f"\nnever reached by the RowMachine: {names}\n" in verbose
    assert "never reached" not in text
    assert "\n--verbose names the 2 that no program reached\n" in text
    assert "coverage goals reached" not in text_of(dataclasses.replace(report, adapters=()))


def test_the_last_line_sums_up(report: VerifyReport) -> None:
    """Laws over all adapters, and how much was done; what the result depends on is in the second line."""
    line = "laws: 2 violated, 1 unknown, 1 hold, 1 not claimed; 40 programs, 1,010 steps, 12.3 s"
    assert text_of(report).splitlines()[-1] == line
    report = dataclasses.replace(report, examples=1000, jobs=1)
    assert "40 acts, 1,000 per machine and configuration, seed 41, 1 process\n" in text_of(report)


@pytest.mark.parametrize(("is_strict", "words"), [(False, "s; CUT"), (True, "s; failed by --strict: CUT")])
def test_the_last_line_says_when_less_was_played_than_promised(
    report: VerifyReport, is_strict: bool, words: str
) -> None:
    """Each machine says it, too, where all are listed."""
    adapter = report.adapters[0]
    (machine,) = adapter.machines
    cut = dataclasses.replace(adapter, machines=(dataclasses.replace(machine, missing=63),))
    report = dataclasses.replace(report, adapters=(cut, *report.adapters[1:]), is_strict=is_strict)
    text = text_of(report, verbose=True)
    assert text.endswith(f"{words} SHORT: time was up, played 40 of 103 promised programs\n")
    assert "        37       100  1,000  0.5 s" in text


def test_the_worst_verdict_comes_first_then_what_shows_it(
    report: VerifyReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its colour on a terminal, unless its reader wants none; then violations, then the table."""
    text = text_of(report)
    line = "VIOLATED  2 of 4 laws that apply: P2 (my.rows:Rows), P3 (my.rows:Rows)\n"
    assert text.index(line) < text.index("P2  VIOLATED by") < text.index("law  demands that")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(tables, "terminal_width", lambda: 100)
    assert "\x1b[1;31mVIOLATED  2 of 4" in text_of(report)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1mVIOLATED  2 of 4" in text_of(report)


def test_the_document_has_what_the_table_has(report: VerifyReport) -> None:
    """Verdicts, counts, programs and files."""
    document = json.loads(json.dumps(report.document(FILES).plain()))
    assert (document["schema"], document["version"]) == ("pymllm.verify", 1)
    assert (document["verdict"], document["exit_status"]) == ("violated", 1)
    verdicts = {"X1": "not claimed", "P1": "holds", "P2": "violated", "P3": "violated", "E5": "unknown"}
    assert {row["id"]: row["verdict"] for row in document["laws"]} == verdicts
    assert document["invariants"] == [
        {"name": "slot 0 is never handed out", "laws": ["P1"], "verdict": "holds"}
    ]
    broken, fine, gone = document["adapters"]
    assert [row["file"] for row in broken["violations"]] == ["runs/P2.jsonl", "runs/P3.jsonl"]
    assert broken["violations"][0]["program"].startswith("from pymllm.search.program import run_program")
    assert (broken["violations"][0]["step"], broken["violations"][0]["config"]) == (2, {"max_reqs": 3})
    assert [row["rerun_shows_it"] for row in broken["violations"]] == [True, False]
    crash = {"file": "runs/crash.jsonl", "ended": None, "conversation": None}
    assert broken["problems"] == [{"message": "it stumbled\nover its feet", **crash}]
    hung = {"file": None, "ended": "hung", "conversation": "runs/said.txt"}
    assert gone["problems"] == [{"message": gone["problems"][0]["message"], **hung}]
    assert broken["machines"][0]["steps_per_second"] == 2000.0
    assert (fine["verdict"], fine["problems"]) == ("unknown", [])
    assert (gone["kind"], gone["laws"]) == (None, [])


def test_the_schema_refuses_another_document(report: VerifyReport) -> None:
    """It keeps to it, and nothing else does."""
    document = json.loads(json.dumps(report.document(FILES).plain()))
    validator = Draft202012Validator(make_schema("verify"))
    validator.validate(document)
    adapter = {**document["adapters"][0], "kind": "cache"}
    for change in ({"verdict": "fine"}, {"version": 2}, {"surprise": 1}, {"adapters": [adapter]}):
        with pytest.raises(ValidationError):
            validator.validate({**document, **change})


def test_goals_have_a_suite_where_the_report_is_strict(report: VerifyReport) -> None:
    """One that was never reached is a failure, and says with whom."""
    strict = dataclasses.replace(report, is_strict=True)
    suite = ElementTree.fromstring(write_junit("", suites_of(strict.document()))).findall("testsuite")[-1]
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("coverage goals", "2", "2")
    _, case = suite.findall("testcase")
    assert (case.get("classname"), case.get("name")) == ("RowMachine", "a row is freed twice")
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "never reached with rows"
    reached = dataclasses.replace(strict, adapters=report.adapters[:1])
    suite = ElementTree.fromstring(write_junit("", suites_of(reached.document()))).findall("testsuite")[-1]
    assert [len(case) for case in suite.findall("testcase")] == [1, 0]


def test_what_is_not_known_is_left_out() -> None:
    """A walk from inside may have nothing to set side by side; a program may be empty."""
    assert fact_lines(violation_facts("a hole", None, None, {}, 0, 0)) == [
        "    looked at  a hole",
        "    at         step 0, in a program of 0 steps (no configuration)",
    ]


def test_only_commands_that_show_it_again_are_named(report: VerifyReport) -> None:
    """A name that a shell would take apart is quoted; what only the acts show, shrink plays."""
    finding = dataclasses.replace(report.adapters[0].findings[0], is_judged=False)
    adapter = dataclasses.replace(report.adapters[0], findings=(finding,))
    files = SavedFiles({(adapter.name, "P2"): "my runs/a.jsonl"})
    report = dataclasses.replace(report, adapters=(adapter,))
    text = text_of(report, files)
    assert "    again      pymllm rerun 'my runs/a.jsonl' --adapter my.rows:Rows\n    program\n" in text
