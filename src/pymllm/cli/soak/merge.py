"""The command ``pymllm merge``, which merges the ledgers of several campaigns."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click

from pymllm.cli import options
from pymllm.cli.soak import soak_options
from pymllm.cli.soak.soak_telling import corpus_option, tell_campaigns, telling_options
from pymllm.cli.tables import progress_bar


@click.command("merge", short_help="Merge the ledgers of several soaks.")
@click.argument(
    "folders", metavar="LEDGER...", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True
)
@click.option(
    "--output",
    type=options.OUTPUT_FOLDER,
    metavar="FOLDER",
    help="Folder for one ledger that has every run once, and for the findings.",
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
    help="Known findings: a folder of an earlier merge, its findings file, or a ledger. Only new ones fail.",
)
@corpus_option("Also keep there the runs that reached coverage goals that few runs reach.")
@soak_options.trusted
@options.command(multiple=True)
@options.jobs
@telling_options
def merge_command(
    folders: tuple[Path, ...],
    output: Path | None,
    shrinks: int,
    baseline: Path | None,
    corpus: Path | None,
    adapters: tuple[str, ...],
    commands: tuple[str, ...],
    jobs: int,
    progress: str,
    **told: Any,
) -> int:
    """Put ledgers of `pymllm soak` together, and print the results of all campaigns.

    A LEDGER is a file, or a folder that has some in it.

    A run that several ledgers have counts once; if its results differ, that breaks law X3. The merged ledger
    is the same file for any distribution of the runs; measured values are in a file beside it. Adapters run
    only with --shrink; give --adapter again for a module or a command.

    Exit status: as of `pymllm soak`, and 3 if runs of a campaign are missing.
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
    return tell_campaigns(report, folders, **told)
