"""The results of mutants are kept line by line, and the lines of several machines make the whole."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mutation
import pytest
from mutant_results import Results, digest_sources
from mutants import Change

NAMES = [f"pymllm.core.it.x_f__mutmut_{number}" for number in range(1, 10)]
EXPLAINED = NAMES[3]
NOBODY = {NAMES[1], NAMES[6]}
"""Those that no test notices, beside the one that is explained."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept.jsonl"


# -- the file ----------------------------------------------------------------------------------------------


def test_what_was_noticed_stays_noticed(path: Path) -> None:
    """A noticed mutant stays noticed; an unnoticed mutant counts for the same sources only."""
    results = Results(path, "as they are")
    results.keep("a", "a test")
    results.keep("b", "")
    assert Results(path, "as they are").known == {"a": "a test", "b": ""}
    assert Results(path, "changed").known == {"a": "a test"}
    Results(path, "changed").keep("b", "a new test")
    assert Results(path, "as they are").known == {"a": "a test", "b": "a new test"}


def test_another_process_keeps_its_results_there_too(path: Path) -> None:
    """They are read when they are asked for."""
    results = Results(path, "it")
    Results(path, "it").keep("a", "a test")
    assert results.known == {}
    results.reload()
    assert results.known == {"a": "a test"}


def test_lines_may_be_in_any_order_twice_and_torn(tmp_path: Path) -> None:
    """A line without its end takes no other with it, whether or not it is whole."""
    lines = ['{"mutant": "a", "by": "a test"}\n', '{"mutant": "a", "by": "", "sources": "it"}\n']
    lines += ['{"mutant": "b", "by": "", "sources": "it"}\n', '{"mutant": "c", "by"', "\n"]
    lines += ['{"mutant": "b", "by": "", "sources": "another"}\n', '{"mutant": "d", "by": "a test"}']
    for number, order in enumerate(itertools.islice(itertools.permutations(lines), 0, None, 97)):
        file = tmp_path / str(number)
        file.write_text("".join(["[]\n", *order, *order]), encoding="utf-8")
        results = Results(file, "it")
        assert results.known == {"a": "a test", "b": "", "d": "a test"}
        results.keep("c", "")
        assert Results(file, "it").known == {"a": "a test", "b": "", "c": "", "d": "a test"}


def test_sources_are_the_package_and_its_tests(tmp_path: Path) -> None:
    """By name and content; what an interpreter or an editor leaves there is none of them, nor are reasons."""
    reasons = tmp_path / "tests" / "meta" / "reasons.json"
    for name in (
        "src/pymllm/core/a.py",
        "src/pymllm/table.toml",
        "tests/unit/test_a.py",
        "tests/meta/reasons.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    first = digest_sources(tmp_path, [reasons])
    for name in ("src/pymllm/__pycache__/a.pyc", "tests/.cache/a", "src/pymllm.egg-info/files", "notes/a.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    reasons.write_text("other", encoding="utf-8")
    assert digest_sources(tmp_path, [reasons]) == first != digest_sources(tmp_path)
    found = {first}
    for change in (
        lambda: (tmp_path / "tests/unit/test_a.py").write_text("other", encoding="utf-8"),
        lambda: (tmp_path / "src/pymllm/table.toml").write_text("other", encoding="utf-8"),
        lambda: (tmp_path / "src/pymllm/core/a.py").rename(tmp_path / "src/pymllm/core/b.py"),
    ):
        change()
        found.add(digest_sources(tmp_path, [reasons]))
    assert len(found) == 4


# -- the command -------------------------------------------------------------------------------------------


class Machine:
    """The command with a runner that knows the result of each mutant, and remembers the tried mutants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.tried: list[str] = []
        self.dies_after = len(NAMES)
        self._capsys = capsys
        self._patch = monkeypatch.setattr
        monkeypatch.delenv("PYMLLM_SHARD", raising=False)
        for name, stand_in in {
            "make_mutants": lambda folder, root, only: NAMES,
            "read_mutant": lambda folder, name: Change("pymllm.core.it", "pymllm.core.it.f", "old", name, ""),
            "version": lambda name: "3",  # mutmut is installed only where mutants are made
            "explain": lambda: {mutation.Mutant("pymllm.core.it.f", "old", EXPLAINED): "it is equal"},
            "find_stale": lambda reasons: [],
            "run_all": self._run_all,
        }.items():
            monkeypatch.setattr(mutation, name, stand_in)
        self.change_sources("as they are")

    def change_sources(self, digest: str) -> None:
        self._patch(mutation, "digest_sources", lambda root, without: digest)

    def _run_all(
        self,
        root: Path,
        left: dict[str, Change],
        rooms: object,
        jobs: int,
        folder: Path,
        results: Results,
        show: Callable[[str, str], None],
    ) -> None:
        for key, it in left.items():
            if len(self.tried) == self.dies_after:
                raise KeyboardInterrupt
            self.tried.append(it.new)
            by = "" if it.new in NOBODY else f"tests/unit/core/test_it.py::test_{it.new[-1]}"
            results.keep(key, by)
            show(key, by)

    def type(self, *words: object) -> tuple[int, str]:
        """Type the command, note the tried mutants in ``tried``, and return the status and the output."""
        self.tried = []
        status = mutation.main(["--sample", "9", "--jobs", "1", *map(str, words)])
        return status, self._capsys.readouterr().out


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    return Machine(monkeypatch, capsys)


def shards_of(machine: Machine, folder: Path, count: int) -> list[str]:
    """The files of all shards of a sample, and that each mutant was tried once."""
    tried: list[str] = []
    for number in range(1, count + 1):
        status, said = machine.type("--shard", f"{number}/{count}", "--keep", folder / f"{number}.jsonl")
        assert status == 0  # a part has no goal, whatever its score
        assert f"part {number}/{count}, " in said
        tried += machine.tried
    assert sorted(tried) == sorted({*NAMES} - {EXPLAINED})
    return [(folder / f"{number}.jsonl").read_text(encoding="utf-8") for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_all_shards_together_are_the_whole(machine: Machine, tmp_path: Path, count: int) -> None:
    """All shards give the same page and words, byte for byte, in any order and twice, without a new try."""
    whole = machine.type("--keep", tmp_path / "whole.jsonl", "--page", tmp_path / "whole.md")
    assert whole[0] == 1  # 6 of 8 are too few
    assert "6 noticed, 2 not noticed, 1 that no test can notice: 75.0%; seed pymllm, 9 of 9" in whole[1]
    page = (tmp_path / "whole.md").read_bytes()
    parts = shards_of(machine, tmp_path, count)
    for order in itertools.islice(itertools.permutations(parts), 3):
        kept, text = tmp_path / "all.jsonl", "".join([*order, order[0]])
        kept.write_text(text + '{"mutant": "torn', encoding="utf-8")
        assert machine.type("--keep", kept, "--page", tmp_path / "all.md") == whole
        assert machine.tried == []
        assert (tmp_path / "all.md").read_bytes() == page


def test_what_a_lost_shard_had_is_tried(machine: Machine, tmp_path: Path) -> None:
    """And nothing else; a file that ends in the middle of a line loses this line."""
    whole = machine.type("--page", tmp_path / "whole.md")
    first, second, third = shards_of(machine, tmp_path, 3)
    lost = {json.loads(line)["mutant"].split()[0] for line in second.splitlines()}
    torn = json.loads(third.splitlines()[-1])["mutant"].split()[0]
    (tmp_path / "all.jsonl").write_text(third[:-9] + first, encoding="utf-8")
    assert machine.type("--keep", tmp_path / "all.jsonl", "--page", tmp_path / "all.md") == whole
    assert sorted(machine.tried) == sorted({*lost, torn})
    assert (tmp_path / "all.md").read_bytes() == (tmp_path / "whole.md").read_bytes()


def test_what_nobody_noticed_is_tried_again_after_a_change(machine: Machine, path: Path) -> None:
    """Of the package or of the tests, and once only; what was noticed never is."""
    first = machine.type("--keep", path)
    machine.change_sources("changed")
    for tried in (NOBODY, set()):
        assert machine.type("--keep", path) == first
        assert set(machine.tried) == tried


def test_a_run_that_was_ended_goes_on(machine: Machine, path: Path) -> None:
    """A run that was ended goes on with the mutants that it had not tried."""
    machine.dies_after = 3
    with pytest.raises(KeyboardInterrupt):
        machine.type("--keep", path)
    begun = machine.tried
    machine.dies_after = len(NAMES)
    machine.type("--keep", path)
    assert len(begun) == 3
    assert sorted(begun + machine.tried) == sorted({*NAMES} - {EXPLAINED})


def test_without_a_file_nothing_is_kept(machine: Machine, tmp_path: Path) -> None:
    """A folder keeps mutants only, which the same words make again."""
    for _ in range(2):
        machine.type("--folder", tmp_path / "made")
        assert len(machine.tried) == 8


def test_a_scheduler_may_say_the_shard(machine: Machine, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable of all commands, or by its own; empty is none."""
    for name, value, words in (
        ("PYMLLM_SHARD", "2/3", []),
        ("PYMLLM_SHARD", "env", []),
        ("PYMLLM_SHARD", "", ["--shard", "2/3"]),
        ("PYMLLM_SHARD", "1/3", ["--shard", "env"]),
    ):
        monkeypatch.setenv(name, value)
        monkeypatch.setenv("CI_NODE_INDEX", "2")
        monkeypatch.setenv("CI_NODE_TOTAL", "3")
        assert "part 2/3, 3 mutants of seed pymllm, 9 of 9" in machine.type(*words)[1]


WRONG: dict[str, tuple[Sequence[Any], str]] = {
    "no shard": (["--shard", "half"], "--shard 'half' is no shard; write I/N"),
    "a shard too many": (["--shard", "3/2"], "--shard 3/2: 3 is no shard of 2; shards are counted from 1"),
    "a part that is empty": (["--shard", "1/10"], "--shard 1/10: of 9 mutants; take at most so many shards"),
    "a page of a part": (
        ["--shard", "1/2", "--page", "p.md"],
        "--page is of the whole sample, and --shard 1/2",
    ),
    "no scheduler": (["--shard", "env"], "--shard env: none of SLURM_ARRAY_TASK_ID"),
    "no sample": (["--sample", "0"], "argument --sample: '0' must be a whole number from 1 on"),
    "no jobs": (["--jobs", "-1"], "argument --jobs: '-1' must be a whole number from 1 on"),
    "a folder that is not there": (
        ["--keep", "not/there"],
        "--keep not/there: there is no folder not; make it",
    ),
    "a folder as a file": (["--keep", "."], "--keep: results cannot be kept in .: "),
    "another file": (
        ["--keep", "notes.txt"],
        "--keep: notes.txt: no line of it is a result of a mutant; name",
    ),
    "a page on the results": (
        ["--keep", "a", "--page", "./a"],
        "--page a: it is a folder, or the file of --keep",
    ),
    "a file as a folder": (
        ["--folder", "notes.txt"],
        "--folder notes.txt: it is no folder; name another one",
    ),
    "files that are not there": (["--only", "src/core/*"], "--only src/core/*: no file of "),
    "an option that is none": (["--results", "a"], "unrecognized arguments: --results a"),
}


@pytest.mark.parametrize("what", WRONG)
def test_words_that_make_no_sense_are_one_line(
    what: str,
    machine: Machine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """X1: before any mutant is made; files are as they were."""
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX", "CI_NODE_INDEX"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "notes.txt").write_text("mine\n", encoding="utf-8")
    words, message = WRONG[what]
    with pytest.raises(SystemExit) as ended:
        machine.type(*words)
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith(f"mutation.py: {message}")
    assert (machine.tried, (tmp_path / "notes.txt").read_text(encoding="utf-8")) == ([], "mine\n")
