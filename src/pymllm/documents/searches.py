"""The results of ``pymllm verify`` and ``compare``, as records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Protocol

from msgspec import Meta, field
from msgspec.structs import replace

from pymllm.history.files import Config
from pymllm.history.operations import KINDS
from pymllm.instrument.documents import Document, Row
from pymllm.oracle.verdicts import Verdict, merge_verdicts

Kind = Annotated[str, Meta(extra_json_schema={"enum": list(KINDS)})]


class LimitRow(Row, frozen=True):
    """The number of steps of an operation that were not done, the reason, and the number done (X9).

    ``program`` is the shortest beginning of a program that was seen, which ends with such a step; null where
    the program is the file that was judged. ``step`` is its number; ``done`` is null where nobody counted.
    """

    operation: str
    reason: str
    not_done: int
    done: int | None
    step: int
    config: Config
    program: str | None = None


class LawRow(Row, frozen=True):
    """The results of a law: the tests passed, the audits, and the tests that broke it.

    ``limits`` are operations that it tests and of which steps were not done. ``unfinished`` says that a
    search which could test it ended at a violation of another law.
    """

    id: str
    sentence: str
    source: str
    verdict: Verdict
    tests: int
    walks: int
    broken: int = 0
    limits: tuple[str, ...] = ()
    unfinished: bool = False


class _Judged(Protocol):
    @property
    def laws(self) -> tuple[LawRow, ...]: ...


def merge_laws(adapters: Iterable[_Judged]) -> tuple[LawRow, ...]:
    """Return the results of each law in any adapter's table, merged over all adapters."""
    from pymllm.oracle.laws import LAWS  # not at the top: the records do without

    rows: dict[str, list[LawRow]] = {}
    for adapter in adapters:
        for row in adapter.laws:
            rows.setdefault(row.id, []).append(row)
    return tuple(_merged(rows[law.id]) for law in LAWS if law.id in rows)


def _merged(same: list[LawRow]) -> LawRow:
    verdict = merge_verdicts(row.verdict for row in same)
    return replace(
        same[0],
        verdict=verdict,
        tests=sum(row.tests for row in same),
        walks=sum(row.walks for row in same),
        broken=sum(row.broken for row in same),
        limits=tuple(dict.fromkeys(name for row in same for name in row.limits)),
        unfinished=verdict is not Verdict.VIOLATED and any(row.unfinished for row in same),
    )


class InvariantRow(Row, frozen=True):
    """The verdict on an invariant, with its name and its laws."""

    name: str
    laws: tuple[str, ...]
    verdict: Verdict


class MachineRow(Row, frozen=True, kw_only=True):
    """The work of a machine over all configurations of an adapter.

    Coverage goals by how often they were met; unmet are those that it should have met and never did. Fewer
    programs than promised were played where a search took much too long and was cut short.
    """

    name: str
    configurations: int = 0
    programs: int
    steps: int
    seconds: float
    steps_per_second: float
    goals: dict[str, int] = field(default_factory=dict, name="situations")
    unmet: tuple[str, ...] = ()
    promised: int = 0


class CoverageRow(Row, frozen=True):
    """How often a machine reached a coverage goal, and the adapters on which it should have but did not."""

    name: str
    machine: str
    times: int
    unmet: tuple[str, ...]


class ViolationRow(Row, frozen=True):
    """A broken law with a program that breaks it, the smallest that a completed search found.

    ``played_again`` says whether the acts in its file show what its operations alone do not; ``mistakes`` are
    this package's own, made while a smaller program was looked for. ``doubt`` says which mistake of the
    adapter would look the same, behind the words *the adapter*; empty where none is known.
    """

    law: str
    message: str
    expected: str | None
    observed: str | None
    config: Config
    step: int
    steps: int
    program: str
    file: str | None
    rerun_shows_it: bool
    judge_shows_it: bool
    smallest: bool
    played_again: bool = False
    mistakes: tuple[str, ...] = ()
    operation: str = ""
    doubt: str = ""


class DeviationRow(Row, frozen=True):
    """The status of a known deviation, with the programs and adapters that show it.

    ``status`` is ``shows``, ``gone``, ``not searched`` or ``other version``.
    """

    name: str
    law: str
    kind: str
    reason: str
    link: str
    status: str
    programs: int
    adapters: tuple[str, ...]


class ProblemRow(Row, frozen=True):
    """A problem that left results unknown, with the program that was running.

    Of a program in another process also how the conversation ended, and the file with its last lines.
    """

    message: str
    file: str | None = None
    ended: str | None = None
    conversation: str | None = None


class AdapterRow(Row, frozen=True):
    """The results of an adapter; its kind is null if the adapter could not be loaded."""

    name: str
    kind: Kind | None
    verdict: Verdict
    laws: tuple[LawRow, ...]
    machines: tuple[MachineRow, ...]
    violations: tuple[ViolationRow, ...]
    problems: tuple[ProblemRow, ...]
    limits: tuple[LimitRow, ...] = ()


class SearchedRelease(Row, frozen=True):
    """The release of a package under test, as the caller named it."""

    package: str
    version: str


class VerifyDocument(Document, frozen=True, kw_only=True, tag="pymllm.verify"):
    """The document that ``pymllm verify --json`` prints.

    After an interrupt the command's status is the signal's.

    ``versions`` are of what took part, other projects' packages among them. ``passed_over`` counts the
    programs that broke a law which nobody asked for, by law; ``release`` is null where the caller named none.
    ``kept`` results were taken from the file of ``--keep``.
    """

    versions: dict[str, str]
    profile: str
    seed: int
    examples: int | None = None
    acts_max: int = 0
    jobs: int | None = None
    seconds: float
    verdict: Verdict
    exit_status: int = 0
    interrupted: bool
    strict: bool = False
    laws: tuple[LawRow, ...] = ()
    invariants: tuple[InvariantRow, ...] = ()
    goals: tuple[CoverageRow, ...] = field(default=(), name="situations")
    adapters: tuple[AdapterRow, ...]
    programs: int = 0
    promised: int = 0
    deviations: tuple[DeviationRow, ...] = ()
    passed_over: dict[str, int] = field(default_factory=dict)
    release: SearchedRelease | None = None
    kept: int = 0

    def without_doubts(self) -> VerifyDocument:
        """Return the document without doubts about the adapter, for objects without a written adapter."""
        adapters = tuple(
            replace(it, violations=tuple(replace(one, doubt="") for one in it.violations))
            for it in self.adapters
        )
        return replace(self, adapters=adapters)


class MatrixCell(Row, frozen=True):
    """The results of a law on one implementation; absent if the law does not apply to its kind.

    ``unfinished`` is that of `LawRow`.
    """

    adapter: str
    verdict: Verdict
    tests: int
    walks: int
    limits: tuple[str, ...] = ()
    unfinished: bool = False


class MatrixRow(Row, frozen=True):
    """A law with a cell for each implementation to which it applies."""

    id: str
    sentence: str
    cells: tuple[MatrixCell, ...]


class CompareDocument(VerifyDocument, frozen=True, kw_only=True, tag="pymllm.compare"):
    """The document that ``pymllm compare --json`` prints.

    What verify prints, and a matrix of laws by implementation.
    """

    matrix: tuple[MatrixRow, ...] = ()
