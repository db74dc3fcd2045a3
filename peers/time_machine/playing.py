"""One row of the table played: two releases, the same searches of both, and what tells them apart."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peers.time_machine.bugs import Bug
from peers.time_machine.results import Result, Search, Seen, program_of
from pymllm.errors import UsageError
from pymllm.history.files import load_history
from pymllm.oracle.verdicts import Verdict
from pymllm.report.machine import look_at_this_machine
from pymllm.search.releases import Trial, unpack

ROOT = Path(__file__).parents[2]

ORDER = (("verify", 0), ("verify", 1), ("verify", 2), ("soak", 0))
"""Commands and seeds of every row, one after the other until the bug is found."""
SECONDS = 600.0
"""Of all searches of a release; the soak has what the verifications leave of it."""


_CALL_SECONDS = 30.0
"""Of a call of an adapter, as in the commands."""


@dataclass(frozen=True, slots=True)
class Program:
    """The record of a search: a program for a law, and whether there was time to make it small."""

    law: str
    message: str
    smallest: bool
    file: Path


@dataclass(frozen=True, slots=True)
class Release:
    """An installed release, the adapter that knows it, and the number of processes for searches.

    `store` is where verifications are kept for `pymllm report`, or `None`.
    """

    package: str
    version: str
    folder: Path
    adapter: str
    jobs: int
    store: Path | None = None

    def ask(self, command: str, *words: str) -> dict[str, Any]:
        """Run a pymllm command on this release, in its own process; return its document."""
        parts = [self.folder, ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, "-m", "pymllm", command, *words, "--adapter", self.adapter, "--json"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, parts)), "PYMLLM_ANY_VERSION": "1"},
            stdout=subprocess.PIPE,
            check=False,
        )
        if not done.stdout.strip():
            raise UsageError(f"pymllm {command} ended with {done.returncode}, and said above why")
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def verify(self, seed: int, output: Path) -> tuple[dict[str, Any], list[Program], list[str]]:
        """Search in the default profile; return the document, the programs, and the reason for a stop."""
        words = ("--seed", str(seed), "--jobs", str(self.jobs), "--output", str(output))
        kept = () if self.store is None else ("--store", str(self.store))
        document = self.ask("verify", *words, "--release", f"{self.package}=={self.version}", *kept)
        (adapter,) = document["adapters"]
        programs = [
            Program(it["law"], it["message"], it["smallest"], ROOT / it["file"])
            for it in adapter["violations"]
            if it["file"] is not None
        ]
        return document, programs, [it["message"] for it in adapter["problems"]]

    def soak(
        self, seed: int, seconds: float, output: Path
    ) -> tuple[dict[str, Any], list[Program], list[str]]:
        """Soak for some seconds; return the same as `verify`."""
        words = ("--seed", str(seed), "--jobs", str(self.jobs), "--output", str(output))
        document = self.ask("soak", *words, "--minutes", f"{seconds / 60:.3f}")
        failures = [it for adapter in document["adapters"] for it in adapter["failures"]]
        programs, problems = [], []
        for it in failures:
            law, message = it["failure"]["law"], it["failure"]["message"]
            file = it["short"] or it["file"]
            if law is None:
                problems.append(message)
            elif file is not None:
                programs.append(Program(law, message, False, output / file))
        return document, programs, problems


@dataclass(slots=True)
class Play:
    """One row in progress: the searches made, and the programs that they found."""

    bug: Bug
    old: Release
    fixed: Release
    work: Path
    searches: list[Search] = field(default_factory=list)
    seen: list[tuple[Seen, Path]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def search(self) -> tuple[Seen, Path] | None:
        """Search the old release until the bug is found."""
        for command, seed in ORDER:
            search, programs = self._make(self.old, command, seed)
            self.searches.append(search)
            self.seen += [(self._play(program), program.file) for program in programs]
            found = [it for it in self.seen if it[0].tells_apart and it[0].law in self.bug.expected]
            if found:
                return self._shorten(*min(found, key=lambda it: it[0].operations))
        return None

    def search_again(self) -> tuple[Search, ...]:
        """Repeat the same searches on the fixed release."""
        return tuple(self._make(self.fixed, done.command, done.seed)[0] for done in self.searches)

    def _make(self, release: Release, command: str, seed: int) -> tuple[Search, list[Program]]:
        started, used = time.monotonic(), _used()
        output = self.work / f"{release.folder.name}-{command}-{seed}"
        if command == "verify":
            document, programs, problems = release.verify(seed, output)
            self.versions = document["versions"]
        else:
            spent = sum(search.seconds for search in self.searches if search.command == "verify")
            document, programs, problems = release.soak(seed, max(0.0, SECONDS - spent), output)
        laws, why = (tuple(dict.fromkeys(it)) for it in ([it.law for it in programs], problems))
        seconds, cpu_seconds = (round(it, 1) for it in (time.monotonic() - started, _used() - used))
        return Search(command, seed, seconds, cpu_seconds, laws, why), programs

    def _shorten(self, seen: Seen, file: Path) -> tuple[Seen, Path]:
        """Shrink further the program that found the bug, where the search had no time to."""
        if seen.smallest:
            return seen, file
        short = file.with_suffix(".short.jsonl")
        ended = bool(self.old.ask("shrink", str(file), "--output", str(short))["finished"])
        shorter = self._play(Program(seen.law, seen.message, ended, short))
        # A smaller program may break the law by another bug, which the fixed release has, too.
        return (shorter, short) if shorter.tells_apart else (seen, file)

    def _play(self, program: Program) -> Seen:
        history = load_history(program.file)
        old, fixed = (
            Trial(history, self.bug.adapter, release.folder).judge(release.folder.name, _CALL_SECONDS)
            for release in (self.old, self.fixed)
        )
        ends = fixed.because if fixed.verdict is Verdict.UNKNOWN else None
        length = len(history.steps)
        return Seen(program.law, program.message, length, program.smallest, old.law, fixed.law, ends)


def _used() -> float:
    """Return the processor time of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def play(
    bug: Bug, packages: Path, work: Path, jobs: int, programs: Path, store: Path | None = None
) -> Result:
    """Play a row, and keep the program that found its bug.

    Parameters
    ----------
    bug : Bug
        The row.
    packages : Path
        Where releases are installed, each in a folder of its own; one that is there is used as it is.
    work : Path
        For what the searches write.
    jobs : int
        Processes of a search.
    programs : Path
        Where the program is kept.
    store : Path, optional
        Where verifications are kept, each with its release.

    Raises
    ------
    UsageError
        pip has no such release, or a command refused.
    """
    old, fixed = (
        Release(bug.project, version, unpack(bug.project, version, packages), bug.adapter, jobs, store)
        for version in (bug.last_with, bug.first_without)
    )
    at_play = Play(bug, old, fixed, work)
    started = time.monotonic()
    found = at_play.search()
    seconds = round(time.monotonic() - started, 1)
    kept = program_of(bug.id, programs)
    kept.unlink(missing_ok=True)
    if found is not None:
        programs.mkdir(exist_ok=True)
        shutil.copyfile(found[1], kept)
    besides = tuple(seen for seen, _ in at_play.seen if found is None or seen.law != found[0].law)
    machine = look_at_this_machine()
    return Result(
        bug.id,
        bug.adapter,
        bug.last_with,
        bug.first_without,
        None if found is None else found[0],
        besides,
        seconds,
        tuple(at_play.searches),
        at_play.search_again() if found is not None else (),
        datetime.now(UTC).date().isoformat(),
        f"{machine.processor}, {machine.cores} cores, {machine.system}",
        jobs,
        at_play.versions,
    )
