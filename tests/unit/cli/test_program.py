"""Tests of the end of the program: its exit status and its message after each kind of failure."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner, Result

from pymllm import __version__
from pymllm.cli import main, program
from pymllm.cli.output import complain, say
from pymllm.cli.program import Program
from pymllm.errors import TraceError
from tests.child_processes import interrupt, left_of


def run(act: Callable[[], Any], **options: Any) -> Result:
    """Run a program whose only command does ``act``."""
    program = Program("pymllm")
    program.add_command(click.Command("do", callback=act))
    return CliRunner().invoke(program, ["do"], **options)


def fail_with(error: BaseException) -> Callable[[], Any]:
    def act() -> None:
        raise error

    return act


def test_another_project_of_the_same_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line beside the result, where its distribution is the one that is installed; none for ours."""
    assert program.find_clash() is None
    theirs = tmp_path / "pymllm-2.0.1.dist-info"
    theirs.mkdir()
    about = "Metadata-Version: 2.1\nName: pymllm\nVersion: 2.0.1\n"
    (theirs / "METADATA").write_text(about, encoding="utf-8")
    (theirs / "entry_points.txt").write_text("[console_scripts]\nmllm = pymllm.cli:run\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(main, ["--help"], prog_name="pymllm")
    assert done.exit_code == 0
    assert CliRunner().invoke(main, [], prog_name="pymllm").stderr.count("\n") == 1
    told = CliRunner().invoke(main, ["goals", "rows"], prog_name="pymllm").stderr
    assert told.startswith(
        "pymllm: the distribution pymllm 2.0.1 that is installed here is another project's"
    )
    monkeypatch.setattr(program, "distribution", Mock(side_effect=PackageNotFoundError))
    assert program.find_clash() is None


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (1, 1)])
def test_a_commands_own_status_is_the_programs(returned: int | None, status: int) -> None:
    """0 for nothing said, 1 where a law is broken."""
    assert run(lambda: returned).exit_code == status


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (TraceError("t.jsonl", 3, "broken"), "pymllm: t.jsonl:3: broken"),
        (click.ClickException("two\n lines"), "pymllm: two lines"),
        (click.UsageError("bad"), "pymllm: bad (see pymllm do --help)"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_status_2(error: Exception, line: str) -> None:
    """X1: no traceback, nothing on standard output."""
    result = run(fail_with(error))
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", line + "\n")


def test_a_command_that_needs_torch_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 2 where torch is missing; another module that is missing is a bug of ours."""
    error = ModuleNotFoundError("No module named 'numpy'", name="numpy")
    assert run(fail_with(error)).exit_code == 70  # it is there, so something else is wrong
    monkeypatch.setattr("pymllm.cli.program.why_no_torch", lambda: "needs what is not there")
    result = run(fail_with(error))
    assert (result.exit_code, result.stderr) == (2, "pymllm: this command needs what is not there\n")
    assert run(fail_with(ModuleNotFoundError("No module named 'x'", name="x"))).exit_code == 70


def test_an_interrupt_is_130() -> None:
    """As shells have it: 128 and the number of the signal."""
    result = run(fail_with(KeyboardInterrupt()))
    assert result.exit_code == 130
    assert result.stderr == "pymllm: interrupted\n"


def test_being_asked_to_end_is_143() -> None:
    """SIGTERM ends a command with status 143, and a handler that the process set before stays."""
    result = run(lambda: signal.raise_signal(signal.SIGTERM))
    assert (result.exit_code, result.stderr) == (143, "pymllm: terminated\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert run(lambda: signal.raise_signal(signal.SIGTERM)).exit_code == 0
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_unforeseen_error_keeps_its_traceback_and_has_its_own_status() -> None:
    """A bug of ours is neither the user's mistake nor, as Python's own status 1 would say, a broken law."""
    result = run(fail_with(ZeroDivisionError("ours")))
    assert (result.exit_code, result.stdout) == (70, "")
    assert result.stderr.startswith("Traceback (most recent call last):")
    assert result.stderr.endswith("ZeroDivisionError: ours\n")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for child processes in /proc")
@pytest.mark.parametrize(
    ("sent", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize(
    "line",
    [
        "verify --adapter rows --examples 1000000",
        "replay agent --requests 20000 --capacity 100k --capacity 200k",
    ],
)
def test_a_signal_ends_processes_too(line: str, sent: signal.Signals, status: int, word: str) -> None:
    """X1: one line, nothing half, and no process that goes on although nobody waits for it."""
    ended = interrupt([sys.executable, "-m", "pymllm", *line.split(), "--jobs", "2"], sent, children=2)
    assert (ended.status, ended.out, ended.err) == (status, "", f"pymllm: {word}\n")
    assert len(ended.children) >= 2
    assert left_of(ended.children) == []


def test_other_programs_may_take_the_errors_themselves() -> None:
    """Without the standalone mode statuses are returned and errors raised."""
    program = Program("pymllm")
    program.add_command(click.Command("seven", callback=lambda: 7))
    program.add_command(click.Command("fail", callback=fail_with(TraceError("t", None, "broken"))))
    assert program.main(["seven"], standalone_mode=False) == 7
    with pytest.raises(TraceError):
        program.main(["fail"], standalone_mode=False)


def test_no_command_shows_the_help() -> None:
    """The name alone shows the help, and the version is that of the package."""
    assert CliRunner().invoke(main, ["--version"]).stdout == f"pymllm {__version__}\n"
    result = CliRunner().invoke(main, [])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == CliRunner().invoke(main, ["--help"]).stdout
    assert "replay" in result.stdout


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\u2028b"])
def test_a_message_is_one_line(name: str) -> None:
    """X1: a name of a file may hold whatever ends a line or paints a terminal."""
    result = run(fail_with(TraceError(name, 3, "broken")))
    assert result.exit_code == 2
    assert result.stderr == f"pymllm: {name.encode('unicode_escape').decode()}:3: broken\n"


def test_text_that_cannot_be_encoded_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files may hold anything; a message about one must still come out."""

    def act() -> None:
        say("a\udcff\n")
        complain("b\udcff")

    result = run(act)
    assert (result.stdout, result.stderr) == ("a\\udcff\n", "pymllm: b\\udcff\n")


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )


def test_the_package_runs_as_a_module() -> None:
    """``python -m pymllm`` is the program, under its own name."""
    done = python("-m", "pymllm", "replay", "--page-size", "0", "chat")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("pymllm: Invalid value for '--page-size': 0")


def test_a_reader_that_is_gone_is_no_error_message() -> None:
    """141: whoever says ``| head`` has read enough."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        command = [sys.executable, "-m", "pymllm", "--help"]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_is_one_line() -> None:
    """X1: what cannot be written is said, not traced back."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "pymllm", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        b"pymllm: cannot write the result: No space left on device\n",
    )


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run one line of a shell, in which ``$0`` is Python."""
    command = ["/bin/sh", "-c", line, sys.executable]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


BROKEN_LAW = (
    "import click; from pymllm.cli.output import complain; from pymllm.cli.program import Program; "
    "program = Program('p'); program.add_command(click.Command('do', callback=lambda: complain('E3') or 1)); "
    "program.main(['do'])"
)


@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ('"$0" -m pymllm --version', 0),
        ('"$0" -m pymllm replay nope', 2),
        ('"$0" -m pymllm --version >/dev/full', 2),
        (f'"$0" -c "{BROKEN_LAW}"', 1),
        (f'"$0" -c "{BROKEN_LAW.replace("or 1", "or 1 / 0")}"', 70),
    ],
    ids=["done", "bad input", "full disk", "broken law", "bug"],
)
def test_the_status_holds_where_nobody_can_be_told(line: str, status: int, errors: str) -> None:
    """Status 1 says that a law is broken and nothing else, even where standard error is closed or full."""
    done = shell(f"{line} {errors}")
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.parametrize("arguments", ["", "--help", "--version", "replay chat --requests 2", "replay nope"])
def test_a_closed_standard_output_is_one_line(arguments: str) -> None:
    """X1: said before anything is computed that could not be printed."""
    done = shell(f'"$0" -m pymllm {arguments} >&-')
    assert done.returncode == 2
    assert done.stderr == (
        "pymllm: standard output is closed, so no result can be written; redirect it to a file\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["replay", "--help"], ["replay", "nothing"], ["verify", "--adapter", "radx"]],
)
def test_help_and_refusals_load_neither_torch_nor_numpy(arguments: list[str]) -> None:
    """Help comes at once: heavy imports wait until something is replayed."""
    code = (
        "import sys; from pymllm.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: print('loaded:', *{'torch', 'numpy', 'hypothesis', 'rich'} & set(sys.modules))"
    )
    assert python("-c", code, *arguments).stdout.splitlines()[-1] == "loaded:"


@pytest.mark.parametrize(
    ("number", "ended"),
    [
        (signal.SIGINT, (130, "pymllm: interrupted\n")),
        (signal.SIGTERM, (143, "pymllm: terminated\n")),
    ],
)
@pytest.mark.parametrize("module", ["pymllm.cli", "click", "pymllm.cli.search.verify", "pymllm.cli.schema"])
def test_a_signal_while_commands_are_loaded_is_one_line(
    module: str, number: signal.Signals, ended: tuple[int, str]
) -> None:
    """X1: whoever notices at once that a word is wrong is shown no traceback, and one who ends it a line."""
    code = (
        "import os, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), {number})\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from pymllm.__main__ import run\n"
        "run()"
    )
    done = python("-c", code, "--version")
    assert (done.returncode, done.stderr) == ended
    assert not done.stdout


def test_a_message_has_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A message of any length is cut, and its beginning and its end are kept."""
    complain("begins" + "x" * 10**6 + "\x1b[2Jends")
    told = capsys.readouterr().err
    assert len(told) < 4_000
    assert told.startswith("pymllm: beginsxxx")
    assert told.endswith("xxx\\x1b[2Jends\n")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("pymllm re", ["repeat", "replay", "replay-serial", "replay-server", "report", "rerun", "resume"]),
        ("pymllm verify --profile d", ["dev", "deep"]),
        ("pymllm verify --adapter radix-", ["radix-window", "radix-policy"]),
        ("pymllm compare radix mam", ["mamba"]),
    ],
)
def test_a_shell_completes_what_is_typed(
    words: str, found: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verbs, values and names of adapters, as docs/tutorials/index.md sets it up for bash."""
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setenv("_PYMLLM_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit):
        main.main([], prog_name="pymllm")
    assert capsys.readouterr().out.split() == [f"plain,{name}" for name in found]


def test_verbs_are_listed_by_task() -> None:
    """Each once, under the heading of its task."""
    shown = CliRunner().invoke(main, ["--help"]).stdout
    headings = re.findall(r"^(\w+):$", shown, flags=re.MULTILINE)
    assert headings == ["Options", "Start", "Search", "Replay", "Servers", "Results", "Machine"]
    listed = re.findall(r"^  ([a-z-]+)  ", shown.partition("Start:")[2], flags=re.MULTILINE)
    assert sorted(listed) == sorted(main.commands)


_MOST_OPTIONS = 25


def test_no_verb_has_more_options_than_somebody_reads() -> None:
    """With --help; what goes beyond is a verb of its own, or a setting of an option."""
    verbs: list[tuple[str, click.Command]] = [("pymllm", main)]
    counts: dict[str, int] = {}
    while verbs:
        words, verb = verbs.pop()
        counts[words] = 1 + sum(isinstance(it, click.Option) for it in verb.params)
        verbs += [(f"{words} {name}", it) for name, it in getattr(verb, "commands", {}).items()]
    assert {words: count for words, count in counts.items() if count > _MOST_OPTIONS} == {}
    assert len(counts) > len(main.commands)
