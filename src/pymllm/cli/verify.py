"""``pymllm verify``: options in, a table of laws out. The search is in `pymllm.conformance.runner`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pymllm.adapters.process.command_name import PREFIX
from pymllm.cli.command_option import command_option, names_of
from pymllm.cli.faults import (
    cabinet_option,
    choose_faults,
    look_and_tell,
    planted_option,
    refuse_beside_faults,
)
from pymllm.cli.options import adapters_option, jobs_option, json_option, progress_option, timeout_option
from pymllm.cli.program import complain, say
from pymllm.cli.run_store import (
    keep_run,
    refuse_missing_folder,
    refuse_unwritable,
    refuse_unwritable_store,
    store_option,
)
from pymllm.cli.values import SEED, Whole
from pymllm.cli.verify_plan import PROFILE_NAMES, VerifyOptions
from pymllm.text_file import write_text_file
from pymllm.torch_extra import require_torch

if TYPE_CHECKING:
    from pymllm.cli.verify_files import SavedFiles
    from pymllm.conformance.results import VerifyReport

__all__ = ["refuse_unwritable_folder", "verify_command"]


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
    "--seed",
    type=SEED,
    metavar="N",
    show_default="0; deep draws one",
    help="Seed of every choice.",
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
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    default="runs",
    show_default=True,
    help="Where programs that break a law are written.",
)
@json_option
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the verdicts as JUnit XML, too.",
)
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
    # Not at the top: this loads Hypothesis, which --help and a mistyped option can do without.
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    from pymllm.cli.verify_files import save_programs
    from pymllm.cli.verify_run import run_options

    report = run_options(plan, progress)
    files = save_programs(report, output)
    if junit is not None:
        from pymllm.cli.verify_junit import make_junit

        write_text_file(junit, make_junit(report))
    if store is not None:
        from pymllm.cli.verify_document import make_document

        keep_run(store, make_document(report, files), programs=files.programs.values())
    say(_as_json(report, files) if as_json else _as_text(report, files, verbose))
    if as_json:
        _complain_of(report)
    if report.interruption is not None:
        raise report.interruption
    return report.exit_status


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
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    chosen = choose_faults(faults, cabinets, options.adapters)
    from pymllm.cli.verify_run import settle
    from pymllm.conformance.command_hunts import hunt_by_verify
    from pymllm.conformance.detection import HuntPlan

    plan = settle(options)
    hunter = partial(hunt_by_verify, plan)
    return look_and_tell(
        chosen,
        HuntPlan((plan.seed,), shrinks=plan.profile.shrinks),
        options.jobs,
        progress,
        as_json,
        store,
        hunter=hunter,
    )


def _check_protocols(plan: VerifyOptions, output: Path, as_json: bool, is_more_asked: bool) -> int:
    if not plan.adapters or not all(name.startswith(PREFIX) for name in plan.adapters):
        raise click.UsageError("--check-protocol is about programs; give them with --command.")
    if is_more_asked:
        raise click.UsageError("--check-protocol judges no laws; leave --junit and --store out.")
    from pymllm.cli.protocol_table import check_protocols

    names = tuple(entry.name for entry in plan.find_adapters())
    return check_protocols(names, plan.timeout, output, as_json)


def refuse_unwritable_folder(output: Path) -> None:
    """Refuse a given folder that could not take a program after minutes of search; none is made yet."""
    if click.get_current_context().get_parameter_source("output") is ParameterSource.DEFAULT:
        return  # whoever searches in a read-only folder may not want files
    refuse_unwritable("--output", output)


def _as_json(report: VerifyReport, files: SavedFiles) -> str:
    from pymllm.cli.verify_document import make_document

    return json.dumps(make_document(report, files), indent=2)


def _as_text(report: VerifyReport, files: SavedFiles, verbose: bool) -> str:
    from pymllm.cli.verify_table import make_text

    if not _stdout_is_terminal():
        return make_text(report, files, verbose=verbose)
    width = shutil.get_terminal_size().columns
    return make_text(report, files, verbose=verbose, width=width, styled=True)


def _stdout_is_terminal() -> bool:
    return sys.stdout.isatty()


def _complain_of(report: VerifyReport) -> None:
    """Say in one line beside a JSON document what its reader has to look for."""
    from pymllm.cli.verify_table import cut_short

    for adapter in report.adapters:
        for finding in adapter.findings:
            complain(f"{finding.law} is violated by {adapter.name}: {finding.violation.message}")
        for problem in adapter.problems:
            complain(f"{adapter.name} could not be examined to the end: {problem.message}")
    if report.is_cut_short:
        complain(cut_short(report).removeprefix("; "))
    for row in report.situations if report.is_strict else ():
        if row.unmet:
            complain(f"{row.machine} never reached: {row.name} ({', '.join(row.unmet)})")
