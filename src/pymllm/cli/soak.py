"""``pymllm soak``: long campaigns from seeds. The play is in `pymllm.soak.campaign`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli import options
from pymllm.cli.faults import choose_faults, look_and_tell, refuse_beside_faults
from pymllm.cli.output import complain
from pymllm.cli.soak_options import LEDGER, SoakOptions
from pymllm.cli.soak_spread import spread_campaign
from pymllm.cli.spread import read_spread, work_options
from pymllm.cli.store import keep_run, refuse_run_or_program, save_text
from pymllm.cli.tables import progress_bar, tell
from pymllm.torch_extra import require_torch

if TYPE_CHECKING:
    from pymllm.soak.results import SoakReport


def rate(value: object) -> int:
    """Read after how many operations an implementation is walked from inside, 0 for never."""
    text = str(value).strip()
    found = re.fullmatch(r"1/(\d{1,9})", text)
    if text in ("off", "every"):
        return int(text == "every")
    if found is None or not int(found[1]):
        why = "write every, off, or 1/64 for each 64th operation."
        raise click.BadParameter(f"{text!r} is not a rate; {why}")
    return int(found[1])


def _free_page(context: click.Context, param: click.Parameter, page: Path | None) -> Path | None:
    """Refuse a page that would be written over what a campaign keeps."""
    refuse_run_or_program("--page", page)
    if page is not None and os.path.basename(os.path.realpath(page)) == LEDGER:
        raise click.UsageError(f"--page {page}: this is the name of a campaign's ledger; name another file.")
    return page


_strict_option = click.option(
    "--strict",
    is_flag=True,
    help="Also fail if a coverage goal was never reached, if memory grows, or if a listed deviation is gone.",
)
_verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Also list the coverage goals that were not reached."
)
_page_option = click.option(
    "--page",
    type=options.OUTPUT_FILE,
    callback=_free_page,
    help="Also write the summary to FILE, as Markdown.",
)


def _corpus_option(help: str) -> Callable[[Any], Any]:
    return click.option("--corpus", type=options.OUTPUT_FOLDER, metavar="FOLDER", help=help)


@click.group("soak", invoke_without_command=True, short_help="Run long random programs for hours.")
@options.adapters
@options.command(multiple=True)
@click.option(
    "--config",
    "configs",
    type=options.json_object,
    metavar="JSON",
    multiple=True,
    show_default="the adapter's, and larger ones",
    help="Run only this configuration of the adapter; may be repeated.",
)
@options.deviations
@click.option("--machine", metavar="NAME", help="Run only this state machine, such as PrefixMachine.")
@click.option(
    "--minutes",
    type=options.Amount(0, 1_000_000),
    metavar="M",
    show_default="10",
    help="Minutes after which no run begins.",
)
@click.option(
    "--operations",
    type=options.whole(1, 10**12),
    help="Operations to play; the last run goes beyond. Equal numbers and seeds give equal runs.",
)
@click.option(
    "--longest", type=options.whole(1, 1_000_000), show_default="50000", help="Most operations of one run."
)
@click.option("--seed", type=options.SEED, show_default="drawn", help="Seed of every choice.")
@click.option(
    "--run",
    type=options.SEED,
    metavar="SEED",
    help="Repeat only the run with this seed, as a failure names it.",
)
@_corpus_option("Play the runs first that pymllm soak merge --corpus kept there, beside --operations.")
@work_options(keeps=False)
@click.option(
    "--audit",
    type=rate,
    show_default="1/64",
    help="How often an adapter checks its own data: every, 1/N operations, or off.",
)
@options.timeout
@click.option("--stop-on-failure", is_flag=True, help="Begin no run after the first failure.")
@_strict_option
@click.option(
    "--output",
    type=options.OUTPUT_FOLDER,
    metavar="FOLDER",
    show_default="runs/soak-SEED",
    help="Folder for the ledger and for programs that fail.",
)
@click.option(
    "--resume",
    type=options.OUTPUT_FOLDER,
    metavar="FOLDER",
    help="Continue the campaign in FOLDER; give --adapter again for a module or a command.",
)
@options.cabinet(
    "Plant each fault of this table, and see whether a campaign catches it; may be repeated. --minutes and "
    "--operations count for each fault."
)
@options.planted
@options.json
@options.store
@_page_option
@_verbose_option
@options.progress
@click.pass_context
def soak_command(
    context: click.Context,
    /,
    strict: bool,
    as_json: bool,
    store: Path | None,
    page: Path | None,
    verbose: bool,
    progress: str,
    commands: tuple[str, ...],
    cabinets: tuple[str, ...],
    faults: tuple[str, ...],
    **chosen: Any,
) -> int | None:
    """Run long random programs for hours, while pools fill, age and drain; judge every operation.

    A campaign has many runs. In a run, a state machine chooses the operations for one configuration of one
    adapter; it leaves out some kinds of operation, prefers others, and changes this from phase to phase. Each
    finished run is a line in the campaign's ledger; --resume continues from there. A program that fails is
    saved and made small, and the campaign continues. With --shard it runs one part of the campaign; the same
    command continues that part, and pymllm soak merge puts all parts together.

    Exit status: 0 if no law is broken, 1 if one is, 2 for bad input, 3 if an adapter failed, no run
    ended, or a shard was given up. After Ctrl-C or SIGTERM the results so far are printed, and the status is
    130 or 143. docs/soak.md explains table, ledger and document.

    With --cabinet or --fault it plants one fault after the other, and runs a campaign on its adapters until
    a run fails; no ledger is kept. Exit status: 0 if each fault was caught by a law of its list, else 1.
    """
    if context.invoked_subcommand is not None:
        return None
    spread = read_spread("run", "cabinets", "faults")
    is_spread = spread is not None
    chosen["adapters"] = options.names_of(chosen["adapters"], commands)
    if chosen["resume"] is not None:
        options.refuse_typed(_OF_A_CAMPAIGN, "--resume takes it from the ledger")
        chosen["shard"] = None  # which may be of the environment
    if cabinets or faults:
        kept = ("page", "strict", "verbose", "output", "resume", "run", "deviations")
        refuse_beside_faults(*kept, "shard", "corpus")
    shard = chosen["shard"] = None if is_spread else chosen["shard"]  # which may be of the environment
    if shard is not None and (cabinets or faults):  # so is this one
        raise click.UsageError(f"{shard.asked}: pymllm faults --shard looks for a part of the faults.")
    if strict and shard is not None:
        raise click.UsageError(
            f"--strict is for the whole campaign, {shard.asked} for a part; give it to pymllm soak merge."
        )
    plan = SoakOptions(**chosen)
    plan.check(is_spread=is_spread)
    # Not at the top: this loads Hypothesis, which --help and a mistyped option can do without.
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    if cabinets or faults:
        return _look_for_faults(plan, cabinets, faults, as_json, store, progress)
    report = spread_campaign(plan, spread, progress) if spread is not None else _play(plan, progress)
    _tell_of_corpus(plan.corpus, report)
    if report.interruption is not None and not is_spread:
        complain(f"continue with: {_resuming(report)}")
    folders = () if report.folder is None else (report.folder,)
    return _tell(report, strict, verbose, as_json, store, page, folders)


def _tell_of_corpus(folder: Path | None, report: SoakReport) -> None:
    """Say how much of a corpus came first: it may be empty, or of other adapters."""
    if folder is None or not report.headers:
        return
    from pymllm.soak.corpus import read_corpus

    runs, played = len(read_corpus(folder)), len(report.headers[0].corpus)
    if not runs:
        complain(f"--corpus {folder}: there is no corpus in it yet, so that no run came first")
    else:
        complain(f"--corpus {folder}: runs in it that fit here, and came first: {played:,} of {runs:,}")


def _look_for_faults(
    asked: SoakOptions,
    cabinets: Sequence[str],
    faults: Sequence[str],
    as_json: bool,
    store: Path | None,
    progress: str,
) -> int:
    """Play a campaign with one fault after the other in place."""
    require_torch("pymllm soak --cabinet")
    chosen = choose_faults(faults, cabinets, asked.adapters)
    from pymllm.faults.detection import HuntPlan
    from pymllm.faults.hunt import hunt_by_soak

    with TemporaryDirectory() as folder:  # nothing is in the way of a campaign whose ledger nobody keeps
        plan, _ = replace(asked, output=Path(folder)).settle()
    # A campaign makes small what it finds, by limits of its own; above 0 the table has a column for it.
    hunt, hunter = HuntPlan((plan.seed,), shrinks=1), partial(hunt_by_soak, plan)
    return look_and_tell(chosen, hunt, asked.jobs, progress, as_json, store, hunter=hunter)


def _resuming(report: SoakReport) -> str:
    """Return the command with which a campaign goes on: what runs from outside is named again."""
    names = dict.fromkeys(place.adapter for header in report.headers for place in header.places)
    words = ["pymllm", "soak", "--resume", str(report.folder)]
    for name in names:
        words += [] if options.is_of_registry(name) else ["--adapter", name]
    return shlex.join(words)


@soak_command.command("merge", short_help="Merge the ledgers of several campaigns.")
@click.argument("folders", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True)
@click.option(
    "--output",
    type=options.OUTPUT_FOLDER,
    metavar="FOLDER",
    help="Folder for one ledger that has every run once, and for what was found.",
)
@click.option(
    "--shrink",
    "shrinks",
    type=options.whole(0, 1_000),
    metavar="N",
    default=0,
    help="Make the programs of up to N failing runs of each adapter and law small.",
)
@click.option(
    "--baseline",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="What is known: a folder of an earlier merge, its findings, or a ledger. Only other findings fail.",
)
@_corpus_option("Also keep there the runs that reached coverage goals that few runs reach.")
@options.adapters
@options.command(multiple=True)
@options.jobs
@_strict_option
@options.json
@options.store
@_page_option
@_verbose_option
@options.progress
def merge_command(
    folders: tuple[Path, ...],
    output: Path | None,
    shrinks: int,
    baseline: Path | None,
    corpus: Path | None,
    adapters: tuple[str, ...],
    commands: tuple[str, ...],
    jobs: int,
    strict: bool,
    as_json: bool,
    store: Path | None,
    page: Path | None,
    verbose: bool,
    progress: str,
) -> int:
    """Merge the ledgers in FOLDERs, and print the results of all campaigns.

    A run that several ledgers have counts once; if its results differ, that breaks law X3. The merged ledger
    is the same file whoever played the runs, and what was measured is beside it. Adapters run only with
    --shrink; give --adapter again for a module or a command.

    Exit status: as of pymllm soak, and 3 if runs of a campaign are missing.
    """
    from pymllm.soak.findings import read_baseline
    from pymllm.soak.merged_campaigns import MergePlan, merge_campaigns

    trusted = options.names_of(adapters, commands)
    for name in trusted:
        options.find_adapter_or_refuse(name)

    def refuse(played: Iterable[str]) -> None:
        for name in sorted(played):
            options.adapter_of_file(str(folders[0]), name, name if name in trusted else None)

    with options.refusing_unreadable():
        try:
            known = None if baseline is None else read_baseline(baseline)
            show = partial(progress_bar, progress, unit="")
            plan = MergePlan(output, shrinks, known, corpus, jobs, show, refuse)
            report = merge_campaigns(folders, plan)
        except FileExistsError:
            why = "there is a ledger already; choose another folder."
            raise click.UsageError(f"--output {output}: {why}") from None
    return _tell(report, strict, verbose, as_json, store, page, folders)


def _play(asked: SoakOptions, progress: str) -> SoakReport:
    from pymllm.cli.soak_table import soak_display
    from pymllm.soak.campaign import soak
    from pymllm.soak.resuming import load_campaign

    with options.refusing(), options.refusing_unreadable():
        resumed = None if asked.resume is None else load_campaign(asked.resume)
        if resumed is not None:
            asked.check_resumed(place.adapter for place in resumed[0].places)
        plan, folder = asked.settle(resumed[0].operations if resumed is not None else None)
        options.tell_shard_of_environment(plan.shard)
        with soak_display(progress) as show:
            return soak(plan, folder, resumed, show)


def _tell(
    report: SoakReport,
    strict: bool,
    verbose: bool,
    as_json: bool,
    store: Path | None,
    page: Path | None,
    folders: Sequence[Path],
) -> int:
    """Keep and print the results of campaigns; return the exit status."""
    document = report.document(strict=strict)
    if store is not None:  # with the course of the memory, and the programs of the failures
        from pymllm.report.documents import read_ledger_file
        from pymllm.report.program_files import files_of
        from pymllm.soak.merged_campaigns import find_ledgers

        ledgers = find_ledgers(folders)
        curves = read_ledger_file(*ledgers).curves if ledgers else ()
        beside = [*(it.parent for it in ledgers), *([] if report.folder is None else [report.folder])]
        keep_run(store, document, curves, files_of(document), beside, report.headers[0].versions)
    from pymllm.cli.soak_table import make_text

    if page is not None:
        text = make_text(report, strict=strict)
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))  # a name may have some
        save_text(f"# Soak\n\n{fence}text\n{text}{fence}\n", page, "--page")
    make_shown = partial(make_text, report, strict=strict, verbose=verbose, fits_terminal=True)
    return tell(document, lambda _: make_shown(), as_json, report.interruption)


_OF_A_CAMPAIGN = (
    "configs",
    "deviations",
    "machine",
    "shard",
    "corpus",
    "seed",
    "run",
    "operations",
    "longest",
    "audit",
    "output",
)
"""Options that a campaign that goes on has in its ledger."""
