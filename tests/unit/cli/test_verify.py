"""``pymllm verify`` from the outside: arguments in, a table and a status out."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from pymllm.cli import main
from pymllm.cli.program import Terminated
from pymllm.cli.schema import make_schema
from pymllm.conformance.machines import DEV, PROFILES
from pymllm.conformance.worker_process import Task
from pymllm.history.files import load_history
from pymllm.oracle.judge import judge_steps
from tests.child_processes import interrupt, left_of

FEW = ("--examples", "12", "--jobs", "1", "--profile", "dev")


def verify(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["verify", *arguments], catch_exceptions=False)


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
    assert "P2    a freed row is zero, and is freed once" in result.stdout
    assert "0 unknown, 0 violated, 8 hold, 0 not claimed" in result.stdout
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
    assert "8 unknown, 0 violated, 0 hold, 0 not claimed" in result.stdout


def test_a_search_that_comes_to_grief_keeps_its_program(tiny: str) -> None:
    """Nothing is violated; the file has what was asked last, without an outcome."""
    result = verify("--adapter", f"{tiny}:GivesUp", *FEW)
    assert result.exit_code == 3
    assert "    because    lost the connection\n    program    runs/tiny_adapters-GivesUp-crash1-0.jsonl" in (
        result.stdout
    )
    steps = load_history(Path("runs/tiny_adapters-GivesUp-crash1-0.jsonl")).steps
    assert [step for step in steps if step.outcome is None]


def test_violated_outranks_unknown(tiny: str) -> None:
    """One adapter is wrong, another is not there."""
    result = verify("--adapter", f"{tiny}:KeepsEntries", "--adapter", f"{tiny}:Refuses", *FEW)
    assert result.exit_code == 1
    assert f"{tiny}:Refuses  could not be examined to the end" in result.stdout


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


def test_what_is_left_unfinished_is_not_called_the_smallest(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two programs are not enough to make one small."""
    monkeypatch.setitem(PROFILES, "dev", dataclasses.replace(DEV, shrinks=2))
    arguments = ("--adapter", f"{tiny}:KeepsEntries", *FEW)
    assert (
        "    program    a small one; the search for smaller ones was cut short" in verify(*arguments).stdout
    )
    document = json.loads(verify(*arguments, "--json").stdout)
    assert [it["smallest"] for it in document["adapters"][0]["violations"]] == [False]


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


def test_verbose_lists_every_adapter_and_machine(tiny: str) -> None:
    """Each law of each, and how fast each machine was."""
    result = verify("--adapter", "rows", "--adapter", f"{tiny}:TinyRows", "-v", *FEW)
    assert result.stdout.count("P2    a freed row is zero, and is freed once") == 3
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:3] for line in lines if line[1:2] == ["RowMachine"]] == [
        ["rows", "RowMachine", "2"],
        [f"{tiny}:TinyRows", "RowMachine", "2"],
    ]


def test_a_situation_at_zero_fails_with_strict() -> None:
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
    """What is missing is looked for until it was met."""
    result = verify("--adapter", "kv-buffers", "--profile", "dev", "--jobs", "1", "--strict")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "never reached" not in result.stdout
    assert "BufferMachine            17   17" in result.stdout


def test_a_law_can_be_asked_for(tiny: str) -> None:
    """Only its row, and those of broken ones; the same adapter twice is examined once."""
    name = f"{tiny}:KeepsEntries"
    result = verify("--adapter", name, "--adapter", name, "--law", "p1", "--law", "P1", *FEW)
    rows = [line[:2] for line in result.stdout.splitlines() if line[:1] in tuple("XP") and line[2:3] == " "]
    assert rows == ["P2", "P1", "P2"]  # twice in the table, once in the words below
    assert result.exit_code == 1


@pytest.mark.parametrize("name", ["TinyRows", "KeepsEntries", "GivesUp", "Refuses"])
def test_the_document_keeps_to_its_schema(tiny: str, name: str) -> None:
    """Whatever came out; beside it standard error says in a line what to look for."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator(make_schema("verify"))
    result = verify("--adapter", f"{tiny}:{name}", "--json", *FEW)
    document = json.loads(result.stdout)
    validator.validate(document)
    assert document["exit_status"] == result.exit_code
    assert document["adapters"][0]["name"] == f"{tiny}:{name}"
    assert result.stderr.count("\n") == (0 if name == "TinyRows" else len(result.stderr.splitlines()))
    assert all(line.startswith("pymllm: ") for line in result.stderr.splitlines())
    assert bool(result.stderr) == (name != "TinyRows")


def facts(document: Any) -> Any:
    """A document without times and the number of jobs."""
    if isinstance(document, dict):
        kept = {key: value for key, value in document.items() if "second" not in key and key != "jobs"}
        return {key: facts(value) for key, value in kept.items()}
    return [facts(item) for item in document] if isinstance(document, list) else document


def test_equal_seeds_make_equal_documents(tiny: str) -> None:
    """X3: whatever the number of processes."""
    arguments = ("--adapter", f"{tiny}:TinyRows", "--json", "--seed", "9", "--examples", "10")
    one, two = (json.loads(verify(*arguments, "--jobs", jobs).stdout) for jobs in "12")
    assert facts(one) == facts(two)
    assert one["seed"] == 9


def test_deep_draws_a_seed_and_prints_it(tiny: str) -> None:
    """A night looks elsewhere than the night before, and can be repeated."""
    arguments = (
        "--adapter",
        f"{tiny}:TinyRows",
        "--profile",
        "deep",
        "--json",
        "--examples",
        "1",
        "--jobs",
        "1",
    )
    seeds = {json.loads(verify(*arguments).stdout)["seed"] for _ in "abc"}
    assert len(seeds) > 1


def test_verdicts_are_written_as_junit(tiny: str) -> None:
    """What a CI server reads has the same verdicts."""
    result = verify("--adapter", f"{tiny}:KeepsEntries", "--junit", "out.xml", *FEW)
    assert result.exit_code == 1
    suite = ElementTree.parse("out.xml").getroot().find("testsuite")
    assert suite is not None
    assert suite.get("failures") == "1"


def test_a_terminal_gets_a_styled_table(monkeypatch: pytest.MonkeyPatch, tiny: str) -> None:
    """Bold is what somebody has to look at, and it is as wide as the terminal."""
    monkeypatch.setattr("pymllm.cli.verify._stdout_is_terminal", lambda: True)
    arguments = ["verify", "--adapter", f"{tiny}:KeepsEntries", *FEW]
    result = CliRunner().invoke(main, arguments, color=True)
    assert "\x1b[1m" in result.stdout


def test_the_bar_leaves_the_document_alone(tiny: str) -> None:
    """Progress is on standard error, the document on standard output."""
    result = verify("--adapter", f"{tiny}:TinyRows", "--progress", "on", "--json", *FEW)
    assert json.loads(result.stdout)["verdict"] == "holds"
    assert "searches" in result.stderr
    assert "2/2" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--adapter", "raddix"], "no adapter 'raddix' (did you mean radix?); pymllm adapters lists"),
        (["--adapter", "raddix"], "(did you mean radix?)"),
        (["--law", "Q9"], "no law 'Q9'; pymllm verify --verbose lists"),
        (["--law", "r11"], "(did you mean R1 or R10?)"),
        (["--adapter", "rows", "--law", "S4", "--jobs", "1"], "no adapter asked for can test S4"),
        (["--profile", "soak"], "'soak' is not one of 'dev', 'ci', 'deep'"),
        (["--seed", "-1"], "-1 is not in the range"),
        (["--examples", "0"], "0 is not in the range"),
        (["--timeout", "-1"], "-1.0 is not in the range"),
        (
            ["--adapter", "no_such_module_here:X", "--jobs", "1"],
            "adapter no_such_module_here:X: cannot import",
        ),
        (["--adapter", "json:Nobody", "--jobs", "1"], "adapter json:Nobody: json has no class 'Nobody'"),
        (["--jobs", "0"], "0 is not in the range"),
        (["--junit", "no/such/out.xml"], "there is no folder no/such; make it first"),
        (["--junit", "."], "is a directory"),
        (["--output", "/proc/x"], "--output /proc/x: cannot write in /proc: "),
        (["--output", "/dev/null/x"], "--output /dev/null/x: cannot write in /dev/null: "),
        (["radix"], "unexpected extra argument"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: list[str], words: str) -> None:
    """X1: the line names the value and what there is; nothing was run."""
    result = verify(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("pymllm: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


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
        "from pymllm.adapters.own_hashes import KeysAndHashes\nclass Mine(KeysAndHashes):\n    pass\n",
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
    assert "0 unknown, 0 violated" in done.stdout


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for child processes in /proc")
@pytest.mark.parametrize(
    ("sent", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_ends_it_and_leaves_no_process(sent: signal.Signals, status: int, word: str) -> None:
    """Such as an interrupt from a terminal, which every process of the group gets."""
    command = [sys.executable, "-m", "pymllm", "verify", "--adapter", "rows", "--examples", "1000000"]
    ended = interrupt([*command, "--jobs", "2"], sent, children=2)
    assert (ended.status, ended.out, ended.err) == (status, "", f"pymllm: {word}\n")
    assert len(ended.children) >= 2
    assert left_of(ended.children) == []


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
    result = verify(
        *(
            "--command",
            command,
            "--examples",
            "3",
            "--profile",
            "dev",
            "--jobs",
            jobs,
            "--timeout",
            "3" if verdict == "hung" else "30",
            "--json",
        )
    )
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
    result = verify("--cabinet", "tiny_cabinet:TABLE", *FEW)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["keeping", "dirty"]
    assert "BY ANOTHER LAW" in lines[1]
    assert lines[-1].startswith("1 of 2 faults caught by a law of their list (2 by the verification)")
    adapter = ("--adapter", f"{tiny}:TinyRows")
    result = verify("--cabinet", "tiny_cabinet:TABLE", *adapter, *FEW, "--json")
    document = json.loads(result.stdout)
    Draft202012Validator(make_schema("faults")).validate(document)
    assert (result.exit_code, [row["id"] for row in document["faults"]]) == (0, ["dirty"])
    assert document["faults"][0]["detections"][0]["searcher"] == "verification"


def test_a_fault_is_chosen_by_its_id(tiny: str) -> None:
    """One of this package without a cabinet."""
    result = verify("--fault", "B116", *FEW)
    assert (result.exit_code, result.stdout.splitlines()[1].split()[0]) == (0, "B116")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--strict",), "--strict: with --cabinet or --fault only faults are told of"),
        (("--output", "there"), "--output: with --cabinet or --fault only faults are told of"),
        (("--fault", "B999"), "no fault 'B999'"),
        (
            ("--adapter", "hashes"),
            "none of 2 faults is about hashes; they are about tiny_adapters:TinyRows, ",
        ),
        (("--cabinet", "nowhere:TABLE"), "cannot import nowhere"),
    ],
)
def test_what_means_nothing_beside_faults_is_refused(
    tiny: str, arguments: tuple[str, ...], words: str
) -> None:
    """X1: one line, and nothing is planted."""
    result = verify("--cabinet", "tiny_cabinet:TABLE", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
