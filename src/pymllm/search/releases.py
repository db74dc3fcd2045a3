"""The search for the release of a package that changed a program's verdict; each release has a process.

pip knows where packages come from, so it is asked: which releases there are, and to unpack one of them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, distributions
from itertools import pairwise
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from pymllm.adapters.entry import ANY_VERSION
from pymllm.adapters.process.command_name import PREFIX
from pymllm.adapters.registry import find_adapter
from pymllm.documents.programs import ReleaseChange, ReleaseRow
from pymllm.errors import AdapterError, ProgramError, UsageError
from pymllm.history.files import History
from pymllm.history.outcomes import Failed
from pymllm.machines.adapter_calls import load_class
from pymllm.oracle.verdicts import Verdict
from pymllm.search.program import RerunResult, rerun_history
from pymllm.text_file import cut
from pymllm.work.workers import Lost, ask

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_PIP = (sys.executable, "-P", "-m", "pip")
"""The pip of this interpreter, with -P so that files in the working folder cannot replace it."""
_LONGEST = 300  # of what pip says
_OF_CALLS = frozenset(
    {"AttributeError", "ImportError", "ModuleNotFoundError", "NotImplementedError", "TypeError"}
)
"""Errors of a call that a release lacks, about which there is no law."""
_NO_JSON, _LISTED = "no such option: --json", "Available versions:"
"""Texts of pip's output: the complaint of an older pip about an option, and the start of its list."""
_NO_WHEEL = ("No matching distribution found", "Could not find a version")

# -- what pip knows ----------------------------------------------------------------------------------------


def list_releases(package: str, *, prereleases: bool = False) -> tuple[str, ...]:
    """Return the releases of a package that pip lists, oldest first, without yanked ones.

    `UsageError` where pip finds none, with its last line.
    """
    _refuse_name(package)
    asked = ["index", "versions", package, "--ignore-requires-python", *(["--pre"] if prereleases else [])]
    done = _pip(*asked, "--json")
    if done.returncode and _NO_JSON in done.stderr:
        done = _pip(*asked)
    if done.returncode:
        raise UsageError(f"{package}: pip lists no releases: {_last_line(done)}")
    return tuple(sorted(_read_list(done.stdout), key=Version))


def _read_list(told: str) -> list[str]:
    """Read versions from pip's output, as JSON or as text."""
    if told.lstrip().startswith("{"):
        versions: list[str] = json.loads(told)["versions"]
        return versions
    line = next((line for line in told.splitlines() if line.startswith(_LISTED)), _LISTED)
    return [version.strip() for version in line.removeprefix(_LISTED).split(",") if version.strip()]


def within(releases: Sequence[str], first: str | None, last: str | None) -> tuple[str, ...]:
    """Return the releases from one version to another, inclusive; ``None`` sets no bound.

    `UsageError` where a bound is no version, or nothing is left.
    """
    low, high = (None if bound is None else read_version(bound) for bound in (first, last))
    left = tuple(
        release
        for release in releases
        if (low is None or low <= Version(release)) and (high is None or Version(release) <= high)
    )
    if not left:
        known = f"{releases[0]} to {releases[-1]}" if releases else "none"
        raise UsageError(f"no release from {first or 'the first'} to {last or 'the last'}; there are {known}")
    return left


def read_version(text: str) -> Version:
    """Parse a version; raise `UsageError` for a text that is no version."""
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"{cut(text)!r} is no version; write one such as 1.2.1 or 0.5.4.post1") from None


def is_build_of(installed: str, release: str) -> bool:
    """Tell whether an installed version is a build of a release: 2.13.0+cpu is one of 2.13.0."""
    return Specifier(f"=={read_version(release)}").contains(read_version(installed), prereleases=True)


def unpack(package: str, version: str, folder: Path) -> Path:
    """Unpack a release with pip below a folder, without its dependencies; return its folder.

    What is there already is taken as it is, but for an empty folder, which is filled. A wheel is taken, and
    built from source only where there is none. `UsageError` where pip cannot do it, with package, version and
    pip's last line, or where a file is in the way.
    """
    _refuse_name(package)
    name = canonicalize_name(package)
    place = folder.absolute() / f"{name}-{read_version(version)}"
    if place.is_dir() and any(place.iterdir()):
        return place
    if place.exists() and not place.is_dir():
        raise UsageError(f"{place} is in the way of {package} {version}: it is no folder; move it")
    # Beside its place, so that nobody takes half of a release for all of it.
    partial = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    try:
        done = _install(f"{name}=={version}", partial, "--only-binary=:all:")
        if done.returncode and any(words in done.stderr for words in _NO_WHEEL):
            done = _install(f"{name}=={version}", partial, f"--no-binary={name}")
        if done.returncode:
            raise UsageError(f"{package} {version}: pip cannot unpack it: {_last_line(done)}")
        try:
            partial.rename(place)
        except OSError:
            if not (place.is_dir() and any(place.iterdir())):  # nobody else was faster
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def missing_requirements(place: Path) -> tuple[str, ...]:
    """Return the requirements of an unpacked release that this environment lacks.

    Names are pip's. Extras are left out, and so are versions: only what is not there at all. Empty where no
    metadata tells.
    """
    missing = []
    for found in distributions(path=[str(place)]):
        for text in found.requires or ():
            try:
                required = Requirement(text)
            except InvalidRequirement:  # of a release from before the form was fixed
                continue
            if required.marker is not None and not required.marker.evaluate({"extra": ""}):
                continue
            try:
                distribution(required.name)
            except PackageNotFoundError:
                missing.append(required.name)
    return tuple(dict.fromkeys(missing))


def _install(requirement: str, target: Path, form: str) -> subprocess.CompletedProcess[str]:
    target.mkdir(parents=True, exist_ok=True)
    return _pip(
        "install",
        *("--no-deps", "--no-compile", "--ignore-requires-python", "--quiet", form),
        *("--target", str(target), requirement),
    )


def _pip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_PIP, *words, "--no-input", "--disable-pip-version-check"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that pip marked as an error, or the last line of all."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return cut((errors or lines or [f"it ended with status {done.returncode}"])[-1], _LONGEST)


def is_package_name(text: str) -> bool:
    """Tell whether a text is a valid package name."""
    return _NAME.fullmatch(text) is not None


def _refuse_name(package: str) -> None:
    if not is_package_name(package):
        raise UsageError(f"{cut(package)!r} is no name of a package; write one such as sglang")


# -- one release -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """A program, with the adapter to run it on a release that is unpacked in a folder."""

    history: History
    adapter: str
    folder: Path

    def judge(self, version: str, seconds: float) -> ReleaseRow:
        """Run the program in a new process, and return its verdict, or unknown with the reason.

        ``seconds`` is as of `pymllm.work.time_limit.time_limit`. `UsageError` where the adapter is not
        there, or is of another kind than the program: no release makes a difference to that.
        """
        begun = time.monotonic()
        verdict, law, because = self._answer(seconds)
        return ReleaseRow(version, verdict, law, because, round(time.monotonic() - begun, 3))

    def _answer(self, seconds: float) -> tuple[Verdict, str | None, str]:
        try:
            result = ask(Trial.carry_out, self, seconds)
        except AdapterError as error:
            return Verdict.UNKNOWN, None, error.message
        except ProgramError as error:
            return Verdict.UNKNOWN, None, str(error)
        if isinstance(result, Lost):
            return Verdict.UNKNOWN, None, result.message
        stranger = self._find_strange_call(result.history)
        if stranger is not None:
            return Verdict.UNKNOWN, None, stranger
        if result.violation is not None:
            return Verdict.VIOLATED, result.violation.law, result.violation.message
        if result.misfit is not None:
            return Verdict.UNKNOWN, None, f"made other choices than the program relies on: {result.misfit}"
        return Verdict.HOLDS, None, ""

    def _find_strange_call(self, history: History) -> str | None:
        """Return the step that failed in a call unknown to this release, but not when it was recorded."""
        step = history.steps[-1] if history.steps else None
        if step is None or step.outcome is None:
            return None
        raised = step.outcome.result
        if not isinstance(raised, Failed) or raised.error not in _OF_CALLS:
            return None
        recorded = {it.number: it.outcome for it in self.history.steps}[step.number]
        if recorded is not None and recorded.result == raised:
            return None
        return f"step {step.number} raised {raised.error}: {raised.message}"

    def carry_out(self) -> RerunResult:
        """Run the program in this process, which has imported nothing of the package yet."""
        sys.path.insert(0, str(self.folder))
        behind = os.environ.get("PYTHONPATH")  # for what an adapter starts
        os.environ["PYTHONPATH"] = os.pathsep.join([str(self.folder), *filter(None, [behind])])
        os.environ[ANY_VERSION] = "1"
        self._demand_adapter()
        result = rerun_history(self.history, self.adapter)
        if not self.adapter.startswith(PREFIX) and not self._is_loaded():
            raise AdapterError(
                self.adapter, f"imports nothing of {self.folder.name}, so it judges something else"
            )
        return result

    def _demand_adapter(self) -> None:
        """Raise `UsageError` if the adapter is missing, or is of another kind than the program."""
        entry = find_adapter(self.adapter)
        try:
            kind = load_class(entry).KIND
        except AdapterError as error:
            cause, module = error.__cause__, entry.place.partition(":")[0]
            is_gone = isinstance(cause, ModuleNotFoundError) and f"{module}.".startswith(f"{cause.name}.")
            if type(error) is AdapterError and (cause is None or is_gone):
                raise UsageError(str(error)) from None
            raise
        if kind != self.history.header.kind:
            raise UsageError(
                f"the program is for {self.history.header.kind}; {self.adapter} is of kind {kind}"
            )

    def _is_loaded(self) -> bool:
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        return any(Path(file).is_relative_to(self.folder) for file in files if isinstance(file, str))


# -- several releases --------------------------------------------------------------------------------------


class Bisection:
    """A search for the release in which a verdict changed; ``judge`` returns the verdict on a release.

    A release whose verdict is unknown is passed over, as by ``git bisect skip``. `rows` has what was tried,
    by its place among the releases.
    """

    def __init__(self, releases: Sequence[str], judge: Callable[[str], ReleaseRow]) -> None:
        self.releases = releases
        self.rows: dict[int, ReleaseRow] = {}
        self._judge = judge

    def search(self) -> Iterator[ReleaseRow]:
        """Try as few releases as needed to find a change of the verdict, and yield each result.

        Where the verdict changes more than once, the search goes for what looks like the newest change.
        """
        last = len(self.releases) - 1
        for place in dict.fromkeys((last, 0)):
            yield self._try(place)
        for place in self._middles():
            if self._judged:
                break
            yield self._try(place)
        if not self._judged:
            return
        # An adapter knows releases one after the other: it is enough to look for the first and last of them.
        while (outside := self._place_outside()) is not None:
            yield self._try(outside)
        while (between := self._place_between()) is not None:
            yield self._try(between)

    def search_all(self) -> Iterator[ReleaseRow]:
        """Try every release, oldest first, and yield each result."""
        for place in range(len(self.releases)):
            yield self._try(place)

    @property
    def changes(self) -> tuple[ReleaseChange, ...]:
        """All changes of the verdict between two releases without an untried release between them."""
        return tuple(
            ReleaseChange(
                self.rows[old].release,
                self.rows[new].release,
                _shown(self.rows[old]),
                _shown(self.rows[new]),
                tuple(self.releases[old + 1 : new]),
            )
            for old, new in self._pairs()
            if not self._untried(old, new)
        )

    @property
    def settled(self) -> int:
        """The number of releases that are tried or need not be tried."""
        pair = self._newest_pair
        return len(self.rows) if pair is None else len(self.releases) - len(self._untried(*pair))

    def _try(self, place: int) -> ReleaseRow:
        row = self.rows[place] = self._judge(self.releases[place])
        return row

    @property
    def _judged(self) -> list[int]:
        return sorted(place for place, row in self.rows.items() if row.verdict is not Verdict.UNKNOWN)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Yield neighbours among the judged releases whose verdicts differ."""
        for old, new in pairwise(self._judged):
            if _shown(self.rows[old]) != _shown(self.rows[new]):
                yield old, new

    @property
    def _newest_pair(self) -> tuple[int, int] | None:
        return max(self._pairs(), default=None)

    def _untried(self, old: int, new: int) -> list[int]:
        return [place for place in range(old + 1, new) if place not in self.rows]

    def _middles(self) -> Iterator[int]:
        """Yield the places at half, then at quarters, then at eighths of the releases."""
        places = dict.fromkeys(len(self.releases) * eighths // 8 for eighths in (4, 2, 6, 1, 3, 5, 7))
        yield from [place for place in places if place not in self.rows]

    def _place_outside(self) -> int | None:
        """Return the middle between the oldest or newest judged release and the next unknown one outside."""
        if self._newest_pair is not None:
            return None
        oldest, newest = self._judged[0], self._judged[-1]
        before = max((place for place in self.rows if place < oldest), default=oldest)
        behind = min((place for place in self.rows if place > newest), default=newest)
        for known, unknown in ((newest, behind), (oldest, before)):
            if abs(known - unknown) > 1:
                return (known + unknown) // 2
        return None

    def _place_between(self) -> int | None:
        """Return the untried place closest to the middle between the newest pair of different verdicts."""
        old, new = self._newest_pair or (0, 0)
        return min(self._untried(old, new), key=lambda place: abs(2 * place - old - new), default=None)


def _shown(row: ReleaseRow) -> str:
    return row.verdict.value if row.law is None else f"{row.verdict.value} {row.law}"
