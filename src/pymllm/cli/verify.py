"""``pymllm verify``: options in, a table of laws out. The search is in `pymllm.conformance.runner`."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import click
from click.core import ParameterSource

from pymllm.adapters.process.command_name import PREFIX
from pymllm.adapters.registry import AdapterEntry
from pymllm.cli.choice import file_name_of, find_adapters_or_own, find_law_or_refuse
from pymllm.cli.faults import choose_faults, look_and_tell, refuse_beside_faults
from pymllm.cli.options import (
    DEFAULT_TIMEOUT,
    OUTPUT_FILE,
    OUTPUT_FOLDER,
    SEED,
    Whole,
    adapters_option,
    cabinet_option,
    command_option,
    count_processes,
    jobs_option,
    json_option,
    names_of,
    planted_option,
    progress_option,
    store_option,
    timeout_option,
)
from pymllm.cli.program import complain, escaped, say
from pymllm.cli.store import (
    keep_run,
    refuse_missing_folder,
    refuse_unwritable_folder,
    refuse_unwritable_store,
    save_program,
    save_text,
)
from pymllm.cli.tables import (
    draw,
    make_table,
    problem_lines,
    program_lines,
    progress_bar,
    say_document,
    terminal_width,
    violation_lines,
)
from pymllm.conformance.documents import AdapterRow, LawRow, SituationRow, VerifyDocument
from pymllm.errors import UsageError
from pymllm.history.files import History
from pymllm.oracle.laws import Law
from pymllm.oracle.verdicts import Verdict
from pymllm.text_file import write_text_file
from pymllm.torch_extra import require_torch

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from pymllm.conformance.results import SavedFiles, VerifyReport
    from pymllm.conformance.runner import VerifyPlan

PROFILE_NAMES = ("dev", "ci", "deep")
"""Keys of `pymllm.conformance.machines.PROFILES`."""
_SEED_STOP = 2**32

_WORDS = {
    Verdict.UNKNOWN: "UNKNOWN",
    Verdict.VIOLATED: "VIOLATED",
    Verdict.HOLDS: "holds",
    Verdict.NOT_CLAIMED: "not claimed",
}
"""In the order of the table: first what somebody has to look at."""

_UNFINISHED = "    a small one; the search for smaller ones was cut short (--profile deep goes on longer)"


@click.command("verify", short_help="Search implementations for programs that break a law.")
@adapters_option
@command_option(multiple=True)
@click.option(
    "--law",
    "laws",
    metavar="ID",
    multiple=True,
    show_default="all",
    help="Search only what can test this law, such as R6; may be repeated.",
)
@click.option(
    "--profile",
    type=click.Choice(PROFILE_NAMES),
    default="ci",
    show_default=True,
    help="dev: seconds. ci: half a minute on two cores. deep: hours.",
)
@click.option(
    "--seed", type=SEED, metavar="N", show_default="0; deep draws one", help="Seed of every choice."
)
@click.option(
    "--examples",
    type=Whole(1, 10_000_000),
    metavar="N",
    show_default="as many as the profile promises",
    help="Programs per machine and configuration, the same everywhere. A law that none of them tests is "
    "unknown: with 1 that is most laws; what breaks seldom needs hundreds.",
)
@jobs_option
@timeout_option
@click.option(
    "--strict", is_flag=True, help="Fail where a situation was never reached or a search was cut short, too."
)
@click.option(
    "--output",
    type=OUTPUT_FOLDER,
    metavar="DIR",
    default="runs",
    show_default=True,
    help="Where programs that break a law are written.",
)
@json_option
@click.option("--junit", type=OUTPUT_FILE, metavar="FILE", help="Write the verdicts as JUnit XML, too.")
@store_option
@click.option(
    "--check-protocol",
    is_flag=True,
    help="Only talk with each --command for a moment, and tell what is wrong with its answers.",
)
@cabinet_option(
    "Plant each fault of this table, and see whether this very search catches it; may be repeated."
)
@planted_option
@click.option("-v", "--verbose", is_flag=True, help="List every law of every adapter, and every machine.")
@progress_option
def verify_command(
    output: Path,
    as_json: bool,
    junit: Path | None,
    store: Path | None,
    verbose: bool,
    progress: str,
    commands: tuple[str, ...],
    check_protocol: bool,
    cabinets: tuple[str, ...],
    faults: tuple[str, ...],
    **options: Any,
) -> int:
    """Search implementations for programs that break a law.

    Random programs of operations run on each adapter while an oracle, which shares no code with it, says
    what must come of each operation. A program that breaks a law is made as small as possible, printed,
    and written to a file for `pymllm rerun` and `pymllm judge`.

    Ends with 0 where every law that applies was tested and holds, with 1 where one is violated, with 2
    for bad input, and with 3 where something is unknown: a law that no program tested, or an adapter that
    could not be examined. With --strict, situations that no program reached are looked for once more, and
    it ends with 1 where one of them still was not. After Ctrl-C or SIGTERM it tells what is known by then
    and ends with 130 or 143. docs/verify.md explains table and document.

    With --cabinet or --fault it plants one fault after the other and searches its adapters in the same way.
    Ends with 0 where every fault was caught by a law of its list, else with 1.
    """
    options["adapters"] = names_of(options["adapters"], commands)
    plan = VerifyOptions(**options)
    plan.check()
    if check_protocol:
        return _check_protocols(plan, output, as_json, junit is not None or store is not None)
    if cabinets or faults:
        is_moved = click.get_current_context().get_parameter_source("output") is not ParameterSource.DEFAULT
        refuse_beside_faults(
            {"--output": is_moved, "--junit": junit, "--strict": plan.strict, "--verbose": verbose}
        )
        return _look_for_faults(plan, cabinets, faults, as_json, store, progress)
    refuse_missing_folder("--junit", junit)
    refuse_unwritable_store(store)
    refuse_unwritable_folder(output)
    report = run_options(plan, progress)
    files = save_programs(report, output)
    document = report.document(files)
    if junit is not None:
        write_text_file(junit, make_junit(document))
    keep_run(store, document, programs=files.programs.values())
    if as_json:
        say_document(document)
        _complain_of(document)
    else:
        width = terminal_width()
        say(make_text(document, verbose=verbose, width=width, styled=width is not None))
    if report.interruption is not None:
        raise report.interruption
    return document.exit_status


# -- what to do --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of one ``pymllm verify``, as given; ``None`` where a default depends on the rest."""

    adapters: tuple[str, ...]
    laws: tuple[str, ...]
    profile: str
    seed: int | None
    examples: int | None
    jobs: int | None
    timeout: float = DEFAULT_TIMEOUT
    strict: bool = False

    def check(self) -> None:
        """Refuse names that do not exist, and say what there is."""
        self.find_adapters()
        self.find_laws()

    def find_adapters(self) -> tuple[AdapterEntry, ...]:
        """Return the adapters, each once, by default all of ours."""
        return find_adapters_or_own(self.adapters)

    def find_laws(self) -> tuple[Law, ...]:
        """Return the laws, each once."""
        return tuple(dict.fromkeys(find_law_or_refuse(id) for id in self.laws))

    def settle(self) -> VerifyPlan:
        """Fill in the defaults; a seed is drawn where the profile has none."""
        # Not at the top: this loads Hypothesis, which --help and a mistyped option can do without.
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
        from pymllm.conformance.machines import PROFILES
        from pymllm.conformance.runner import VerifyPlan

        profile = PROFILES[self.profile]
        seed = profile.seed if self.seed is None else self.seed
        return VerifyPlan(
            self.find_adapters(),
            self.find_laws(),
            profile,
            secrets.randbelow(_SEED_STOP) if seed is None else seed,
            self.examples,
            count_processes(self.jobs),
            self.timeout,
            self.strict,
        )


def run_options(options: VerifyOptions, progress: str) -> VerifyReport:
    """Verify behind a progress bar; `click.UsageError` where no adapter can test a law, or be imported."""

    def show(label: str, total: int) -> AbstractContextManager[Callable[[int], None] | None]:
        return progress_bar(progress, label, total, unit="")

    plan = options.settle()
    from pymllm.conformance.runner import verify

    try:
        return verify(plan, show)
    except UsageError as error:
        raise click.UsageError(f"{error}.") from error


def save_programs(report: VerifyReport, folder: Path) -> SavedFiles:
    """Write every program that there is to look at, in place of those of the same name."""
    from pymllm.conformance.results import SavedFiles

    files = SavedFiles()
    for adapter in report.adapters:
        name, seed = file_name_of(adapter.name), report.seed
        for finding in adapter.findings:
            history = _annotated(finding.history, report, str(finding.violation))
            path = save_program(history, folder / f"{name}-{finding.law}-{seed}.jsonl")
            if path is not None:
                files.programs[adapter.name, finding.law] = path
        for place, problem in enumerate(adapter.problems):
            begin = folder / f"{name}-crash{place + 1}-{seed}"
            if problem.history is not None:
                history = _annotated(problem.history, report, problem.message)
                path = save_program(history, begin.with_name(f"{begin.name}.jsonl"))
                if path is not None:
                    files.crashes[adapter.name, place] = path
            if problem.conversation is not None:
                text = problem.conversation.text
                path = save_text(text, begin.with_name(f"{begin.name}-conversation.txt"))
                if path is not None:
                    files.conversations[adapter.name, place] = path
    return files


def _annotated(history: History, report: VerifyReport, note: str) -> History:
    return History(replace(history.header, versions=report.versions, note=note), history.steps)


def _look_for_faults(
    options: VerifyOptions,
    cabinets: Sequence[str],
    faults: Sequence[str],
    as_json: bool,
    store: Path | None,
    progress: str,
) -> int:
    """Verify with one fault after the other in place."""
    require_torch("pymllm verify --cabinet")
    refuse_unwritable_store(store)
    chosen = choose_faults(faults, cabinets, options.adapters)
    plan = options.settle()
    from pymllm.conformance.detection import HuntPlan
    from pymllm.conformance.faults_run import hunt_by_verify

    hunt = HuntPlan((plan.seed,), shrinks=plan.profile.shrinks)
    hunter = partial(hunt_by_verify, plan)
    return look_and_tell(chosen, hunt, options.jobs, progress, as_json, store, hunter=hunter)


def _check_protocols(plan: VerifyOptions, output: Path, as_json: bool, is_more_asked: bool) -> int:
    if not plan.adapters or not all(name.startswith(PREFIX) for name in plan.adapters):
        raise click.UsageError("--check-protocol is about programs; give them with --command.")
    if is_more_asked:
        raise click.UsageError("--check-protocol judges no laws; leave --junit and --store out.")
    from pymllm.cli.check_protocol import check_protocols

    names = tuple(entry.name for entry in plan.find_adapters())
    return check_protocols(names, plan.timeout, output, as_json)


# -- as text -----------------------------------------------------------------------------------------------


def make_text(
    document: VerifyDocument, *, verbose: bool = False, width: int | None = None, styled: bool = False
) -> str:
    """Lay a verification out as text; ``verbose`` has every situation, adapter and machine, too."""
    it = document
    parts: list[RenderableType | tuple[str, str]] = [_heading(it), _law_table(it.laws, it.adapters)]
    if it.invariants:
        parts += ["", _invariant_table(it)]
    if it.situations:
        parts += ["", _situation_table(it.situations)]
        parts += [(line, "bold" if it.strict else "") for line in _never_reached(it.situations)]
    if verbose:
        parts += ["", _count_table(it.situations)]
        for adapter in it.adapters:
            parts += [(f"\n{adapter.name}", "bold"), _law_table(adapter.laws, [adapter])]
        parts += ["", _machine_table(it)]
    parts += problem_lines(it.adapters)
    firsts = [id(adapter.violations[0]) for adapter in it.adapters if adapter.violations]
    for violation, text in violation_lines(it):
        parts.append(text)
        if id(violation) in firsts:
            parts.append(f"    program{'' if violation.smallest else _UNFINISHED}")
            parts += program_lines(violation.program)
    return draw(*parts, (f"\n{_sum_up(it)}", "bold"), width=width, styled=styled)


def _sum_up(document: VerifyDocument) -> str:
    """Say in one line how it ended."""
    counts = Counter(law.verdict for law in document.laws)
    words = {
        Verdict.UNKNOWN: "unknown",
        Verdict.VIOLATED: "violated",
        Verdict.HOLDS: "hold",
        Verdict.NOT_CLAIMED: "not claimed",
    }
    spelled = ", ".join(f"{counts[verdict]} {word}" for verdict, word in words.items())
    return f"{spelled}; {played(document)}{cut_short(document)}"


def played(document: VerifyDocument) -> str:
    """Say how much was played."""
    steps = sum(machine.steps for adapter in document.adapters for machine in adapter.machines)
    return f"{document.programs:,} programs, {steps:,} steps, {document.seconds:.1f} s"


def cut_short(document: VerifyDocument) -> str:
    """Say how much less was played than promised, if it was."""
    if document.programs >= document.promised:
        return ""
    failed = "failed by --strict: " if document.strict else ""
    amount = f"played {document.programs:,} of {document.promised:,} promised programs"
    return f"; {failed}CUT SHORT: time was up, {amount}"


def _heading(document: VerifyDocument) -> str:
    versions = "  ".join(f"{name} {version}" for name, version in document.versions.items())
    amount = "" if document.examples is None else f", {document.examples:,} per machine and configuration"
    processes = "1 process" if document.jobs == 1 else f"{document.jobs} processes"
    return (
        f"{versions}\nprofile {document.profile}: programs of up to {document.acts_max} acts{amount}, "
        f"seed {document.seed}, {processes}\n"
    )


def _law_table(laws: Iterable[LawRow], adapters: Sequence[AdapterRow]) -> Table:
    columns = ("law", "demands that", "verdict", "tests", "walks", "adapters")
    table = make_table(*columns, right=("tests", "walks"))
    order = list(_WORDS)
    for law in sorted(laws, key=lambda law: order.index(law.verdict)):
        same = [
            adapter.name
            for adapter in adapters
            for own in adapter.laws
            if (own.id, own.verdict) == (law.id, law.verdict)
        ]
        is_bad = law.verdict in (Verdict.UNKNOWN, Verdict.VIOLATED)
        table.add_row(
            law.id,
            law.sentence,
            _WORDS[law.verdict],
            f"{law.tests:,}",
            f"{law.walks:,}" if law.walks else "-",
            ", ".join(same) if is_bad else str(len(same)),
            style="bold" if is_bad else "",
        )
    return table


def _invariant_table(document: VerifyDocument) -> Table:
    table = make_table("invariant", "verdict", "by laws")
    for it in document.invariants:
        table.add_row(it.name, _WORDS[it.verdict], ", ".join(it.laws))
    return table


def _situation_table(rows: Sequence[SituationRow]) -> Table:
    """Count for each machine the situations that it had to reach, and those that it did reach."""
    table = make_table("situations of the", "reached", "of", right=("reached", "of"))
    for machine in dict.fromkeys(row.machine for row in rows):
        own = [row for row in rows if row.machine == machine]
        table.add_row(machine, f"{sum(not row.unmet for row in own):,}", f"{len(own):,}")
    return table


def _never_reached(situations: Iterable[SituationRow]) -> Iterable[str]:
    """Name what was never reached, machine by machine, and with which adapters."""
    unmet = [row for row in situations if row.unmet]
    for machine in dict.fromkeys(row.machine for row in unmet):
        names = "; ".join(f"{row.name} ({', '.join(row.unmet)})" for row in unmet if row.machine == machine)
        yield f"never reached by the {machine}: {escaped(names)}"


def _count_table(situations: Iterable[SituationRow]) -> Table:
    table = make_table("machine", "situation", "times", "never reached with", right=("times",))
    for row in situations:
        table.add_row(row.machine, row.name, f"{row.times:,}", ", ".join(row.unmet) or "-")
    return table


def _machine_table(document: VerifyDocument) -> Table:
    figures = ("configurations", "programs", "promised", "steps", "time", "steps/s", "situations")
    table = make_table("adapter", "machine", *figures, right=figures)
    for adapter in document.adapters:
        for it in adapter.machines:
            counts = (it.configurations, it.programs, it.promised, it.steps)
            speed = f"{it.seconds:.1f} s", f"{it.steps_per_second:,.0f}"
            numbers = (*(f"{count:,}" for count in counts), *speed, f"{len(it.situations):,}")
            table.add_row(adapter.name, it.name, *numbers)
    return table


def _complain_of(document: VerifyDocument) -> None:
    """Say in one line beside a JSON document what its reader has to look for."""
    for adapter in document.adapters:
        for it in adapter.violations:
            complain(f"{it.law} is violated by {adapter.name}: {it.message}")
        for problem in adapter.problems:
            complain(f"{adapter.name} could not be examined to the end: {problem.message}")
    if cut_short(document):
        complain(cut_short(document).removeprefix("; "))
    for row in document.situations if document.strict else ():
        if row.unmet:
            complain(f"{row.machine} never reached: {row.name} ({', '.join(row.unmet)})")


# -- as JUnit XML ------------------------------------------------------------------------------------------


def make_junit(document: VerifyDocument) -> str:
    """Write the verdicts as JUnit XML: one suite per adapter, one case per law.

    A violated law is a failure, an unknown one an error, one that is not claimed is skipped. Where it is
    strict, a situation that was never reached is a failure in a suite of its own.
    """
    from pymllm.report.feeds import add_search, add_suite, make_case, make_xml

    root = ElementTree.Element("testsuites", name="pymllm verify", time=f"{document.seconds:.3f}")
    for adapter in document.adapters:
        add_search(root, adapter)
    if document.strict and document.situations:
        rows = [make_case(row.machine, row.name, *_unmet(row)) for row in document.situations]
        add_suite(root, "situations", 0.0, rows)
    return make_xml(root)


def _unmet(row: SituationRow) -> tuple[str, ...]:
    return ("failure", f"never reached with {', '.join(row.unmet)}") if row.unmet else ()
