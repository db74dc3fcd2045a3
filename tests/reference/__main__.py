"""Hold this package against the one before the redesign: ``python -m tests.reference [GATE ...]``.

The reference is a commit of this repository. It is built into a wheel, which is installed into a folder of
its own beside this environment's packages, and speaks from processes that import it there.

``files``   the reference plays every own and faulty adapter; this package reads each history, and writes it
            as it was.
``judging`` this package says the same of each, by law and step, with the same laws tested and situations met.
``changes`` and of each small change of the recorded programs.
``faults``  the same with each fault of the cabinet put into the reference.
``playing`` this package's own adapters do again what the reference's did.
``words``   each verb, option and choice of the command line is still there.
``speed``   no benchmark is more than 5 % slower: medians, each side in turn, again where one seems to be.
``power``   no more operations until the faults are caught: the median of all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from pymllm.adapters.registry import OWN
from pymllm.cli import main as command_line
from pymllm.conformance.program import run_program
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import History, dump_history, read_history
from pymllm.oracle.judge import judge_steps
from tests.reference.changes import change_each
from tests.unit.oracle.recorded import read_corpus

COMMIT = "a2b65e42c7a3aca1f0acb59384a29e606c579dd8"
"""The last commit before the redesign."""

ROOT = Path(__file__).parents[2]
PLAYED = Path(__file__).with_name("played.py")
SLOWER = 1.05
ROUNDS = 3
AGAIN = 9

Answer = dict[str, Any]


class Reference:
    """The package before the redesign, in processes of its own.

    Parameters
    ----------
    folder : Path
        Where its package and its tree lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, *command: str, feed: Iterable[str] = (), cwd: Path | None = None) -> Iterator[str]:
        """Yield the lines that a Python command prints, which imports the reference."""
        with tempfile.TemporaryFile("w+", encoding="utf-8") as given:
            given.writelines(f"{line}\n" for line in feed)
            given.seek(0)
            with subprocess.Popen(
                [sys.executable, *command],
                cwd=cwd or self._folder,
                env={**os.environ, "PYTHONPATH": str(self._folder / "package"), "PYTHONSAFEPATH": "1"},
                stdin=given,
                stdout=subprocess.PIPE,
                text=True,
            ) as process:
                assert process.stdout is not None
                yield from process.stdout
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: the reference ended with {process.returncode}")

    def ask(self, *command: str, feed: Iterable[str] = ()) -> Iterator[Answer]:
        """Yield what ``played.py`` answers."""
        return map(json.loads, self.run(str(PLAYED), *command, feed=feed))


def build(folder: Path) -> Reference:
    """Build the reference's wheel out of the history of this repository, unless it is there."""
    mark = folder / "commit"
    if not mark.is_file() or mark.read_text(encoding="utf-8") != COMMIT:
        tree, package = folder / "tree", folder / "package"
        tree.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
        pip = [sys.executable, "-m", "pip", "--quiet"]
        subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder), str(tree)], check=True)
        (wheel,) = folder.glob("*.whl")
        subprocess.run([*pip, "install", "--no-deps", "--target", str(package), str(wheel)], check=True)
        mark.write_text(COMMIT, encoding="utf-8")
    return Reference(folder)


# -- what was played ---------------------------------------------------------------------------------------


def judge(history: History) -> list[Any]:
    """Say of a history what the reference's side of `played.py` says."""
    try:
        evidence, found = judge_steps(history.header, history.steps)
    except ProgramError:
        return ["no program"]
    if found is not None:
        return [found[1].law, found[0].number]
    return ["kept", dict(sorted(evidence.exercised.items())), dict(sorted(evidence.reached.items()))]


class Tally:
    """Counts what was compared, and shows the first differences of each sort."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.different: list[str] = []

    def compare(self, sort: str, where: str, before: object, now: object) -> None:
        """Count one comparison."""
        self.counts[sort] += 1
        if before != now:
            self.different.append(f"{sort}: {where}: was {_shown(before, now)}, is {_shown(now, before)}")


def _shown(one: Any, other: Any) -> str:
    """Cut a verdict; of two that were kept, tell what the other has not."""
    if isinstance(one, list) and isinstance(other, list) and one[:1] == other[:1] == ["kept"]:
        return str([sorted({*mine} - {*theirs}) for mine, theirs in zip(one[1:], other[1:], strict=True)])
    return str(one)[:300]


def compare_answers(answers: Iterable[Answer], tally: Tally, *, replay: bool) -> tuple[float, float]:
    """Compare each history that the reference played; the processor seconds of judging, before and now."""
    own = {entry.name for entry in OWN}
    before = now = 0.0
    for answer in answers:
        if "crash" in answer:
            continue
        where = f"{answer['adapter']} {answer.get('fault', '')}"
        history = read_history(answer["lines"], where)
        tally.counts["operations"] += len(history)
        lines = [*dump_history(history)]
        written = [json.loads(line) for line in lines]
        tally.compare("files", where, answer["lines"], lines)
        begun = time.process_time()
        verdict = judge(history)
        now += time.process_time() - begun
        before += answer["judge_s"]
        if verdict[0] not in _NEWER:
            tally.compare("judging", where, _tested(answer["verdict"]), _tested(verdict))
        if replay and answer["adapter"] in own:
            tally.compare("playing", where, written[1:], _played_again(history))
    return before, now


_NEWER = {"X8", "X9", "R11"}  # laws that the reference has not


def _tested(verdict: list[Any]) -> list[Any]:
    """Leave out how often a law was tested and a situation met: checks may be cut otherwise."""
    if verdict[0] != "kept":
        return verdict
    return ["kept", sorted({*verdict[1]} - _NEWER), sorted(verdict[2])]


def _played_again(history: History) -> list[Any]:
    try:
        again = run_program(
            history.header.adapter,
            history.header.config,
            {step.number: step.operation for step in history.steps},
        )
    except InvariantViolation as violation:
        return [str(violation)]
    return [json.loads(line) for line in dump_history(again)][1:]


def compare_changes(reference: Reference, tally: Tally, kinds: list[str]) -> tuple[float, float]:
    """Compare the verdicts on all small changes of the recorded programs."""
    now = 0.0
    mine, lines = [], []
    for name, history in track(read_corpus().items(), "small changes", transient=True):
        if kinds and history.header.kind not in kinds:
            continue
        for words, changed in change_each(history):
            begun = time.process_time()
            verdict = judge(changed)
            now += time.process_time() - begun
            mine.append((f"{name}, {words}", verdict))
            lines.append(json.dumps(list(dump_history(changed))))
    before = 0.0
    for (where, verdict), answer in zip(mine, reference.ask("judge", feed=lines), strict=True):
        before += answer["judge_s"]
        if verdict[0] not in _NEWER:
            tally.compare("changes", where, _tested(answer["verdict"]), _tested(verdict))
    return before, now


# -- the command line --------------------------------------------------------------------------------------


_WORDS = """
import json, click
from pymllm.cli import main
def tell(command, path):
    for given in command.params:
        choices = list(getattr(given.type, "choices", ()))
        yield [path, given.name, sorted([*given.opts, *given.secondary_opts]), choices]
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from tell(command.get_command(click.Context(command), name), f"{path} {name}")
print(json.dumps(list(tell(main, "pymllm"))))
"""


def compare_words(reference: Reference, tally: Tally) -> None:
    """Compare verbs, options and choices: there may be more than there were."""
    (before,) = reference.run("-c", _WORDS)
    now: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
    for path, command in _commands(command_line, "pymllm"):
        for given in command.params:
            choices = {str(choice) for choice in getattr(given.type, "choices", ())}
            now[path, str(given.name)] = ({*given.opts, *given.secondary_opts}, choices)
    for path, name, options, choices in json.loads(before):
        found, offered = now.get((path, name), (set(), set()))
        lost = sorted({*options, *choices} - found - offered)
        tally.compare("words", f"{path} {name}", [], lost)


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _commands(below, f"{path} {name}")


# -- speed and power ---------------------------------------------------------------------------------------


def compare_speed(folder: Path, tally: Tally, options: list[str]) -> None:
    """Run both sides' benchmarks in turn, and compare the fastest median of each.

    What comes out slower is run again, on both sides: one process may be a half slower than the next, by
    where its memory lies. The same code on both sides gave ratios of 0.6 to 1.6 in single pairs.
    """
    medians: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
    ratios: dict[str, float] = {}
    what = ["benchmarks"]
    for number in range(ROUNDS + AGAIN):
        if number >= ROUNDS:
            what = [name for name, ratio in ratios.items() if ratio > SLOWER]
        if not what:
            break
        for is_now in (False, True):
            for name, median in _time(ROOT if is_now else folder, is_now, [*what, *options]):
                medians[is_now].setdefault(name, []).append(median)
        both = sorted(medians[False].keys() & medians[True].keys())
        ratios = {name: min(medians[True][name]) / min(medians[False][name]) for name in both}
    for name, ratio in ratios.items():
        print(f"{ratio:6.3f}  {name}")
        tally.compare("speed", name, "at most 1.05", "at most 1.05" if ratio <= SLOWER else f"{ratio:.3f}")


def _time(folder: Path, is_now: bool, arguments: list[str]) -> Iterator[tuple[str, float]]:
    """Run benchmarks of one side, and yield the median of each."""
    with tempfile.TemporaryDirectory() as made:
        output = Path(made, "times.json")
        command = ["-m", "pytest", "-q", "--benchmark-enable", f"--benchmark-json={output}"]
        subprocess.run(
            [sys.executable, *command, "-p", "no:cacheprovider", *arguments],
            cwd=folder if is_now else folder / "tree",
            # One thread: a second one waits for whoever else has the core.
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(folder / ("src" if is_now else "package")),
            },
            check=True,
        )
        for it in json.loads(output.read_text(encoding="utf-8"))["benchmarks"]:
            yield it["fullname"], it["stats"]["median"]


def compare_power(reference: Reference, tally: Tally) -> None:
    """Compare how many operations it takes to catch a fault: the median of all faults."""
    show = ["-m", "pymllm", "faults", "--json"]
    before = _operations(json.loads("".join(reference.run(*show))))
    done = subprocess.run([sys.executable, *show], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    now = _operations(json.loads(done.stdout))
    print(f"median operations until caught: {before:,.0f} before, {now:,.0f} now")
    tally.compare("power", "median operations", True, now <= before or f"{now:,.0f} and not {before:,.0f}")


def _operations(document: Answer) -> float:
    return statistics.median(fault["operations"] for fault in document["faults"] if fault["caught"])


# -- all of it ---------------------------------------------------------------------------------------------

GATES = ("files", "judging", "changes", "faults", "playing", "words", "speed", "power")


def main(arguments: list[str] | None = None) -> int:
    """Run the gates, print what was compared; 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("gates", nargs="*", help=f"of {', '.join(GATES)}; by default all but the last two")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".tox" / "reference" / "built", help="to build in"
    )
    parser.add_argument("--package", type=Path, help="a package folder to take for the reference")
    parser.add_argument("--operations", type=int, default=10_000, help="of each adapter and fault")
    parser.add_argument(
        "--adapters", nargs="*", default=[], help="by default all of ours, and the faulty ones"
    )
    parser.add_argument("--kinds", nargs="*", default=[], help="whose programs are changed; by default all")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--benchmarks", default="", help="options of pytest for the benchmarks")
    given = parser.parse_args(arguments)
    gates = given.gates or list(GATES[:-2])
    if unknown := set(gates) - set(GATES):
        parser.error(f"no gate {', '.join(sorted(unknown))}; there are {', '.join(GATES)}")
    if given.package is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        (given.folder / "package").symlink_to(given.package.resolve())
    reference = Reference(given.folder) if given.package is not None else build(given.folder)
    tally = Tally()
    seconds: dict[str, tuple[float, float]] = {}
    asked: dict[str, Callable[[int], Iterator[Answer]]] = {}
    if {"files", "judging", "playing"} & set(gates):
        asked["played"] = lambda seed: reference.ask(
            "play", str(seed), str(given.operations), *given.adapters
        )
    if "faults" in gates:
        asked["faults"] = lambda seed: reference.ask("faults", str(seed), str(given.operations))
    for name, ask in asked.items():
        for seed in given.seeds:
            shown = track(ask(seed), f"{name}, seed {seed}", transient=True)
            replay = (
                "playing" in gates and name == "played"
            )  # with a fault in place, nobody else does the same
            seconds[f"{name} {seed}"] = compare_answers(shown, tally, replay=replay)
    if "changes" in gates:
        seconds["changes"] = compare_changes(reference, tally, given.kinds)
    if "words" in gates:
        compare_words(reference, tally)
    if "speed" in gates:
        compare_speed(given.folder, tally, given.benchmarks.split())
    if "power" in gates:
        compare_power(reference, tally)
    console = Console()
    for sort, count in tally.counts.items():
        console.print(f"{sort:12}{count:12,}")
    for name, (before, now) in seconds.items():
        console.print(f"judging {name}: {before:.1f} s of processor before, {now:.1f} s now")
    for line in tally.different[:40]:
        console.print(line, markup=False)
    console.print(f"{len(tally.different):,} differences", style="red" if tally.different else "green")
    return 1 if tally.different else 0


if __name__ == "__main__":
    sys.exit(main())
