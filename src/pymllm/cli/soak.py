"""``pymllm soak``: long campaigns from seeds. The play is in `pymllm.conformance.soak.campaign`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli.command_option import command_option, names_of
from pymllm.cli.faults import (
    cabinet_option,
    choose_faults,
    look_and_tell,
    planted_option,
    refuse_beside_faults,
)
from pymllm.cli.file_adapter import is_of_registry
from pymllm.cli.options import adapters_option, jobs_option, json_option, progress_option, timeout_option
from pymllm.cli.program import complain, say
from pymllm.cli.run_store import (
    keep_run,
    refuse_missing_folder,
    refuse_run_or_program,
    refuse_unwritable_store,
    store_option,
)
from pymllm.cli.soak_plan import AUDIT, LEDGER, SoakOptions
from pymllm.cli.values import CONFIG, SEED, Amount, Whole
from pymllm.errors import UsageError
from pymllm.text_file import write_text_file
from pymllm.torch_extra import require_torch

if TYPE_CHECKING:
    from pymllm.conformance.soak.campaign import SoakReport

__all__ = ["soak_command"]


def _count(most: int) -> Whole:
    return Whole(1, most)


_strict_option = click.option(
    "--strict", is_flag=True, help="Fail where a situation was never reached, or memory grows."
)
_page_option = click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the summary as Markdown, too.",
)


@click.group("soak", invoke_without_command=True, short_help="Play long campaigns from seeds, for hours.")
@adapters_option
@command_option(multiple=True)
@click.option(
    "--config",
    "configs",
    type=CONFIG,
    metavar="JSON",
    multiple=True,
    show_default="the adapter's, and larger ones",
    help="Only this configuration of the one adapter; may be repeated.",
)
@click.option("--machine", metavar="NAME", help="Only this machine, such as PrefixMachine.")
@click.option(
    "--minutes",
    type=Amount(0, 1_000_000),
    metavar="M",
    show_default="10",
    help="No run begins later than this.",
)
@click.option(
    "--operations",
    type=_count(10**12),
    metavar="N",
    help="Operations to play, the same runs on every machine.",
)
@click.option(
    "--longest", type=_count(1_000_000), metavar="N", show_default="50000", help="Most operations of one run."
)
@click.option(
    "--seed",
    type=SEED,
    metavar="N",
    show_default="drawn",
    help="Seed of every choice.",
)
@click.option(
    "--run",
    type=SEED,
    metavar="SEED",
    help="Play only the run with this seed, as a failure names it.",
)
@jobs_option
@click.option(
    "--audit",
    type=AUDIT,
    metavar="RATE",
    show_default="1/64",
    help="Walks from inside: every, 1/N operations, or off.",
)
@timeout_option
@click.option("--stop-on-failure", is_flag=True, help="Begin no run after one that failed.")
@_strict_option
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    show_default="runs/soak-SEED",
    help="For the ledger, and programs that fail.",
)
@click.option(
    "--resume",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Go on with a campaign behind its last run; name a module or command of it with --adapter again.",
)
@cabinet_option(
    "Plant each fault of this table, and see whether a campaign catches it; may be repeated. Each gets its "
    "own --minutes or --operations."
)
@planted_option
@json_option
@store_option
@_page_option
@progress_option
@click.pass_context
def soak_command(
    context: click.Context,
    /,
    strict: bool,
    as_json: bool,
    store: Path | None,
    page: Path | None,
    progress: str,
    commands: tuple[str, ...],
    cabinets: tuple[str, ...],
    faults: tuple[str, ...],
    **options: Any,
) -> int | None:
    """Play long campaigns from seeds: pools that fill, age and drain for hours, every operation judged.

    A campaign is a number of runs. In each, a machine plays on one configuration of one adapter, with some of
    its acts switched off and others preferred, in phases. A run that ends is a line of the campaign's ledger,
    from which it can go on. A failure is kept as a program, made small, and the campaign goes on.

    Ends with 0 where nothing was found, with 1 where a law is broken, with 2 for bad input, and with 3 where
    an adapter could not be asked, or no run ended. After Ctrl-C or SIGTERM it tells what is known by then and
    ends with 130 or 143. docs/soak.md explains table, ledger and document.

    With --cabinet or --fault it plants one fault after the other, and plays a campaign on its adapters until
    a run fails; no ledger is kept. Ends with 0 where each was caught by a law of its list, else with 1.
    """
    if context.invoked_subcommand is not None:
        return None
    options["adapters"] = names_of(options["adapters"], commands)
    plan = SoakOptions(**options)
    plan.check()
    _refuse_page(page)
    refuse_unwritable_store(store)
    if cabinets or faults:
        refuse_beside_faults(
            {
                "--page": page,
                "--strict": strict,
                "--output": plan.output,
                "--resume": plan.resume,
                "--run": plan.run is not None,
            }
        )
        return _look_for_faults(plan, cabinets, faults, as_json, store, progress)
    # Not at the top: this loads Hypothesis, which --help and a mistyped option can do without.
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    report = _play(plan, progress)
    _keep(report, strict, store, () if report.folder is None else (report.folder,))
    _tell(report, strict, as_json, page)
    if report.interruption is not None:
        complain(f"go on with: {_resuming(report)}")
        raise report.interruption
    return report.verdict(strict=strict).exit_status


def _look_for_faults(
    options: SoakOptions,
    cabinets: Sequence[str],
    faults: Sequence[str],
    as_json: bool,
    store: Path | None,
    progress: str,
) -> int:
    """Play a campaign with one fault after the other in place."""
    require_torch("pymllm soak --cabinet")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    chosen = choose_faults(faults, cabinets, options.adapters)
    from pymllm.conformance.command_hunts import hunt_by_soak
    from pymllm.conformance.detection import HuntPlan

    with TemporaryDirectory() as folder:  # nothing is in the way of a campaign whose ledger nobody keeps
        plan, _ = replace(options, output=Path(folder)).settle()
    hunter = partial(hunt_by_soak, plan)
    # A campaign makes small what it finds, by limits of its own; above 0 the table has a column for it.
    return look_and_tell(
        chosen, HuntPlan((plan.seed,), shrinks=1), options.jobs, progress, as_json, store, hunter=hunter
    )


def _refuse_page(page: Path | None) -> None:
    """Refuse a page that could not be written, or would be written over what a campaign keeps."""
    refuse_missing_folder("--page", page)
    refuse_run_or_program("--page", page)
    if page is not None and os.path.basename(os.path.realpath(page)) == LEDGER:
        raise click.UsageError(f"--page {page}: a campaign calls its ledger so; name another one.")


def _resuming(report: SoakReport) -> str:
    """Return the command with which a campaign goes on: what runs from outside is named again."""
    names = dict.fromkeys(place.adapter for header in report.headers for place in header.places)
    words = ["pymllm", "soak", "--resume", str(report.folder)]
    for name in names:
        words += [] if is_of_registry(name) else ["--adapter", name]
    return shlex.join(words)


@soak_command.command("merge", short_help="Put the ledgers of several campaigns together.")
@click.argument("folders", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write one ledger with every run, each once.",
)
@_strict_option
@json_option
@store_option
@_page_option
def merge_command(
    folders: tuple[Path, ...],
    output: Path | None,
    strict: bool,
    as_json: bool,
    store: Path | None,
    page: Path | None,
) -> int:
    """Put the ledgers of FOLDERs together, and tell what all campaigns came to.

    A run is the same run wherever it was played: it counts once, and two that did not do the same break X3.
    """
    _refuse_page(page)
    refuse_unwritable_store(store)
    from pymllm.conformance.soak.campaign import merge_campaigns

    try:
        report = merge_campaigns(folders, output)
    except FileExistsError:
        raise click.UsageError(f"--output {output}: there is a ledger already; choose another.") from None
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}.") from None
    _keep(report, strict, store, folders)
    _tell(report, strict, as_json, page)
    return report.verdict(strict=strict).exit_status


def _play(options: SoakOptions, progress: str) -> SoakReport:
    from pymllm.cli.soak_display import soak_display
    from pymllm.conformance.soak.campaign import load_campaign, soak

    try:
        resumed = None if options.resume is None else load_campaign(options.resume)
        if resumed is not None:
            options.check_resumed(place.adapter for place in resumed[0].places)
        plan, folder = options.settle(resumed[0].operations if resumed is not None else None)
        with soak_display(progress) as show:
            return soak(plan, folder, resumed, show)
    except UsageError as error:
        raise click.UsageError(f"{error}.") from error
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}.") from None


def _tell(report: SoakReport, strict: bool, as_json: bool, page: Path | None) -> None:
    from pymllm.cli.soak_document import make_document
    from pymllm.cli.soak_table import make_page, make_text

    if page is not None:
        write_text_file(page, make_page(report, strict=strict))
    if as_json:
        say(json.dumps(make_document(report, strict=strict), indent=2))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    say(make_text(report, strict=strict, width=width))


def _keep(report: SoakReport, strict: bool, store: Path | None, campaigns: Sequence[Path]) -> None:
    """Keep campaigns with the course of their memory, and the programs of their failures."""
    if store is None:
        return
    from pymllm.cli.soak_document import make_document
    from pymllm.conformance.soak.campaign import find_ledgers
    from pymllm.report.documents import read_document
    from pymllm.report.ledger_file import read_ledger_file
    from pymllm.report.program_files import files_of

    document = make_document(report, strict=strict)
    ledgers = find_ledgers(campaigns)
    curves = read_ledger_file(*ledgers).curves if ledgers else ()
    programs = files_of(read_document(document))
    keep_run(store, document, curves, programs, [it.parent for it in ledgers], report.headers[0].versions)
