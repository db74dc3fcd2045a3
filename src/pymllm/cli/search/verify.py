"""The command ``pymllm verify``, whose search is done by `pymllm.search.runner`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from pymllm.cli import options
from pymllm.cli.output import complain, escaped
from pymllm.cli.search.search_files import earlier_notes, save_programs
from pymllm.cli.shard_table import (
    demand_file,
    open_kept,
    refuse_beside_shard,
    search_shard,
    spread_searches,
)
from pymllm.cli.spread import Executor, demand_keep, shard_beside, work_options
from pymllm.cli.store import keep_run, refuse_own_input, save_text
from pymllm.cli.tables import draw_document, progress_bar, tell
from pymllm.documents.searches import SearchedRelease, VerifyDocument
from pymllm.history.files import Deviation
from pymllm.report.findings import known_texts
from pymllm.report.sections.verification import cut_short, passed_over, suites_of
from pymllm.text_file import cut, read_text_file

if TYPE_CHECKING:
    from pymllm.search.results import VerifyReport
    from pymllm.search.tasks import VerifyPlan
    from pymllm.work.kept import KeptResults
    from pymllm.work.shards import Shard

PROFILE_NAMES = ("dev", "ci", "deep")
"""The keys of `pymllm.machines.registry.PROFILES`, repeated to avoid loading that module."""
_SEED_STOP = 2**32


def read_release(context: click.Context, param: click.Parameter, text: str | None) -> SearchedRelease | None:
    """Read the release under test: PACKAGE, or PACKAGE==VERSION, which must be the installed one.

    A checkout, or a wheel without its metadata, is no installed package: its version is taken as told.
    """
    if text is None:
        return None
    from pymllm.search.releases import is_build_of, is_package_name, read_version

    package, is_told, told = text.partition("==")
    if is_told and not package:
        raise click.BadParameter(f"{cut(text)!r} names no package; write PACKAGE=={cut(told)}.")
    if text and not is_package_name(package):
        raise click.BadParameter(
            f"{cut(text)!r} is neither a package nor a release of one; write PACKAGE or PACKAGE==VERSION."
        )
    try:
        installed = version(package)
    except (PackageNotFoundError, ValueError):
        installed = None
    found = told if is_told else installed
    if found is None:
        way = f"install it, or write {cut(package) or 'PACKAGE'}==VERSION"
        raise click.BadParameter(f"no package {cut(package)!r} is installed; {way}.")
    with options.refusing("--release"):
        release = SearchedRelease(package, str(read_version(found)))
        if installed is not None and not is_build_of(installed, found):
            raise click.BadParameter(
                f"{cut(text)!r} is not what is installed, which is {package} {installed}; "
                f"write {package}, or install {package}=={release.version}."
            )
    return release


@click.command("verify", short_help="Search implementations for programs that break a law.")
@options.adapters
@options.command(multiple=True)
@click.option(
    "--law",
    "laws",
    metavar="ID",
    multiple=True,
    show_default="all",
    help="Search for violations of this law, such as R6, behind those of others; may be repeated.",
)
@options.deviations
@click.option(
    "--write-deviations",
    "begun",
    type=options.OUTPUT_FILE,
    metavar="FILE",
    help="Also write the violations into such a file, or add them to an existing one.",
)
@click.option(
    "--profile",
    type=click.Choice(PROFILE_NAMES),
    default="ci",
    help="dev: seconds. ci: half a minute on two cores. deep: hours.",
)
@click.option("--seed", type=options.SEED, show_default="0; deep draws one", help="Seed of every choice.")
@click.option(
    "--examples",
    type=options.whole(1, 10_000_000),
    show_default="as many as the profile promises",
    help="Programs per state machine and configuration. A law that no program tests is unknown: with 1 most "
    "laws are; rare bugs take hundreds.",
)
@work_options
@options.timeout
@click.option(
    "--strict",
    is_flag=True,
    help="Also fail if a coverage goal was never reached, or if a search was cut short.",
)
@options.programs
@options.json
@click.option(
    "--release",
    metavar="PACKAGE",
    callback=read_release,
    help="Write the examined release of a package into the document: the installed one, or "
    "PACKAGE==VERSION; `pymllm report` sets releases beside each other.",
)
@click.option("--junit", type=options.OUTPUT_FILE, help="Also write the verdicts to FILE, as JUnit XML.")
@options.store
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also list coverage goals, and the laws and state machines of each adapter, and explain the words.",
)
@options.progress
def verify_command(
    output: Path,
    as_json: bool,
    release: SearchedRelease | None,
    junit: Path | None,
    store: Path | None,
    shard: Shard | None,
    keep: Path | None,
    verbose: bool,
    progress: str,
    commands: tuple[str, ...],
    adapters: tuple[str, ...],
    begun: Path | None,
    executor: Executor | None,
    **chosen: Any,
) -> int:
    """Search implementations for programs that break a law.

    Random programs run on each adapter. An oracle, which shares no code with the adapter, judges the outcome
    of each operation. A program that breaks a law is made as small as possible, printed, and written to a
    file for `pymllm rerun` and `pymllm judge`.

    Exit status: 0 if every law that applies was tested and holds, 1 if one is violated, 2 for bad input, 3 if
    something is unknown, such as a law that no program tested or an adapter that could not be examined. A
    deviation listed in --deviations is no violation. With --strict, a second search looks for goals that were
    not reached, and the status is 1 if it does not reach all, or if a listed deviation no longer shows. After
    Ctrl-C or SIGTERM the results so far are printed, and the status is 130 or 143. docs/verify.md explains
    table, document and files.

    With --shard and --keep, several machines search a part each; the same command without --shard, and --keep
    with all their lines in one file, does the rest and prints the whole result. With --executor and --keep,
    an engine's machines search the parts.
    """
    names = options.names_of(adapters, commands)
    demand_keep(executor, keep)
    shard = shard_beside(executor, shard)
    if shard is not None:
        demand_file(shard, keep)
        refuse_beside_shard(shard, "output", "junit", "store", "begun", "release", "verbose")
    for option, path in (("--junit", junit), ("--write-deviations", begun)):
        refuse_own_input(option, path, *([] if keep is None else [keep]))
    plan = plan_search(names, **chosen)
    if executor is not None and keep is not None:
        spread_searches(executor, plan, keep, chosen["seed"], progress)
    kept = open_kept(keep, plan, chosen["seed"])
    if shard is not None and kept is not None:
        return search_shard(plan, shard, kept, "verify", progress, as_json)
    report = search(plan, progress, kept)
    files = save_programs(report, output)
    document = msgspec.structs.replace(report.document(files), release=release)
    if junit is not None:
        from pymllm.report.feeds import write_junit

        text = write_junit("pymllm verify", suites_of(document), document.seconds)
        save_text(text, junit, "--junit")
    if begun is not None:
        _write_deviations(document, begun)
    keep_run(store, document, programs=files.programs.values())
    if as_json:
        _complain_of(document)
    notes = earlier_notes(files.earlier)
    return tell(document, lambda it: draw_document(it, *notes, verbose=verbose), as_json, report.interruption)


# -- what to do --------------------------------------------------------------------------------------------


def plan_search(
    names: Sequence[str],
    laws: Sequence[str],
    profile: str,
    seed: int | None,
    examples: int | None,
    jobs: int,
    timeout: float,
    strict: bool = False,
    deviations: tuple[Deviation, ...] = (),
) -> VerifyPlan:
    """Return the plan of the search that options describe; refuse unknown names with the known ones."""
    adapters = options.find_adapters_or_own(names)
    found = tuple(dict.fromkeys(options.find_law_or_refuse(id) for id in laws))
    # Not at the top: this loads Hypothesis, which --help and a mistyped option can do without.
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    from pymllm.machines.registry import PROFILES
    from pymllm.search.tasks import VerifyPlan

    depth = PROFILES[profile]
    seed = depth.seed if seed is None else seed
    seed = secrets.randbelow(_SEED_STOP) if seed is None else seed
    return VerifyPlan(adapters, found, depth, seed, examples, jobs, timeout, strict, deviations)


def search(plan: VerifyPlan, progress: str, kept: KeptResults[Any, Any] | None = None) -> VerifyReport:
    """Verify with a progress bar; raise `click.UsageError` if no adapter can be tested or imported."""
    from pymllm.search.runner import verify

    with options.refusing():
        return verify(plan, partial(progress_bar, progress, unit=""), kept)


def _complain_of(document: VerifyDocument) -> None:
    """Report, one line each beside a JSON document, the results that need attention."""
    for adapter in document.adapters:
        for it in adapter.violations:
            complain(f"{adapter.name} violates {it.law}: {it.message}")
        for problem in adapter.problems:
            complain(f"{adapter.name} could not be examined to the end: {problem.message}")
    if short := cut_short(document):
        complain(short)
    for text in (*known_texts(document.deviations), *passed_over(document)):
        if text.tone:
            complain(escaped(text.text.partition(" ")[2].strip()))
    for row in document.goals if document.strict else ():
        if row.unmet:
            complain(f"{row.machine} never reached: {row.name} ({', '.join(row.unmet)})")


def _write_deviations(document: VerifyDocument, path: Path) -> None:
    """Append a table for each violation to a file of deviations."""
    from pymllm.search.deviations import begin_deviations, read_deviations

    before, names = "", []
    if path.exists():
        with options.refusing(str(path)), options.refusing_unreadable():
            before, names = read_text_file(path), [it.name for it in read_deviations(path)]
    parts = [
        *([before.rstrip("\n") + "\n"] if before.strip() else []),
        *begin_deviations(document.adapters, names),
    ]
    save_text("\n".join(parts), path, "--write-deviations")
