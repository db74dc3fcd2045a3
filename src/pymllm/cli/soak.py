"""``pymllm soak``: long campaigns from seeds. The play is in `pymllm.conformance.soak.campaign`."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli.choice import adapter_of_file, find_adapter_or_refuse, find_adapters_or_own, is_of_registry
from pymllm.cli.faults import choose_faults, look_and_tell, refuse_beside_faults
from pymllm.cli.options import (
    CONFIG,
    OUTPUT_FILE,
    OUTPUT_FOLDER,
    SEED,
    Amount,
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
from pymllm.cli.program import complain, say
from pymllm.cli.store import keep_run, refuse_missing_folder, refuse_run_or_program, refuse_unwritable_store
from pymllm.cli.tables import say_document, terminal_width
from pymllm.errors import UsageError
from pymllm.history.files import Config
from pymllm.text_file import write_text_file
from pymllm.torch_extra import require_torch

if TYPE_CHECKING:
    from pymllm.conformance.soak.campaign import SoakPlan, SoakReport

    _IntParam = click.ParamType[int]
else:
    _IntParam = click.ParamType  # generic from click 8.4 on

_SEED_STOP = 2**32
_MINUTES = 10.0
_LONGEST = 50_000
LEDGER = "ledger.jsonl"
"""As `pymllm.conformance.soak.ledger.FILE`, which is not loaded for a mistyped option."""


class AuditRate(_IntParam):
    """How often an implementation is walked from inside: ``every``, ``off``, or ``1/N``."""

    name = "rate"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the operations between two walks; 0 for none."""
        text = str(value).strip()
        found = re.fullmatch(r"1/(\d{1,9})", text)
        if text == "off":
            return 0
        if text == "every":
            return 1
        if found is None or not int(found[1]):
            self.fail(f"{text!r} is no rate; write every, off, or 1/64 for each 64th operation.", param, ctx)
        return int(found[1])


AUDIT = AuditRate()


_strict_option = click.option(
    "--strict", is_flag=True, help="Fail where a situation was never reached, or memory grows."
)
_page_option = click.option(
    "--page", type=OUTPUT_FILE, metavar="FILE", help="Write the summary as Markdown, too."
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
    type=Whole(1, 10**12),
    metavar="N",
    help="Operations to play, the same runs on every machine.",
)
@click.option(
    "--longest",
    type=Whole(1, 1_000_000),
    metavar="N",
    show_default="50000",
    help="Most operations of one run.",
)
@click.option("--seed", type=SEED, metavar="N", show_default="drawn", help="Seed of every choice.")
@click.option(
    "--run", type=SEED, metavar="SEED", help="Play only the run with this seed, as a failure names it."
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
    type=OUTPUT_FOLDER,
    metavar="FOLDER",
    show_default="runs/soak-SEED",
    help="For the ledger, and programs that fail.",
)
@click.option(
    "--resume",
    type=OUTPUT_FOLDER,
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
    status = _tell(report, strict, as_json, store, page, () if report.folder is None else (report.folder,))
    if report.interruption is not None:
        complain(f"go on with: {_resuming(report)}")
        raise report.interruption
    return status


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
    from pymllm.conformance.detection import HuntPlan
    from pymllm.conformance.faults_run import hunt_by_soak

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
    "--output", type=OUTPUT_FOLDER, metavar="FOLDER", help="Write one ledger with every run, each once."
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
    return _tell(report, strict, as_json, store, page, folders)


def _play(options: SoakOptions, progress: str) -> SoakReport:
    from pymllm.cli.soak_table import soak_display
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


def _tell(
    report: SoakReport,
    strict: bool,
    as_json: bool,
    store: Path | None,
    page: Path | None,
    folders: Sequence[Path],
) -> int:
    """Keep and print what campaigns came to; the exit status."""
    document = report.document(strict=strict)
    if store is not None:  # with the course of the memory, and the programs of the failures
        from pymllm.conformance.soak.campaign import find_ledgers
        from pymllm.report.ledger_file import read_ledger_file

        ledgers = find_ledgers(folders)
        curves = read_ledger_file(*ledgers).curves if ledgers else ()
        failures = [it for adapter in document.adapters for it in adapter.failures]
        programs = [name for it in failures if (name := it.short or it.file) is not None]
        keep_run(store, document, curves, programs, [it.parent for it in ledgers], report.headers[0].versions)
    from pymllm.cli.soak_table import make_text

    if page is not None:
        text = make_text(report, strict=strict)
        write_text_file(page, f"# Soak\n\n```text\n{text}```\n")
    if as_json:
        say_document(document)
    else:
        say(make_text(report, strict=strict, width=terminal_width()))
    return document.exit_status


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """The options of one ``pymllm soak``, as given; ``None`` where a default depends on the rest.

    The adapters of a campaign that goes on are those that may run although the ledger names them.
    """

    adapters: tuple[str, ...]
    configs: tuple[Config, ...]
    machine: str | None
    seed: int | None
    run: int | None
    operations: int | None
    minutes: float | None
    longest: int | None
    audit: int | None
    jobs: int | None
    timeout: float
    stop_on_failure: bool
    output: Path | None
    resume: Path | None

    def check(self) -> None:
        """Refuse what does not fit together, and names that do not exist."""
        for name in self.adapters:
            find_adapter_or_refuse(name)
        if self.configs and len(dict.fromkeys(self.adapters)) != 1:
            raise click.UsageError("--config is a configuration of one adapter; name it with --adapter.")
        if self.run is not None and not self.configs:
            raise click.UsageError("--run plays one run again: give its --adapter and --config, too.")
        if self.resume is None:
            return
        given = {
            "--config": self.configs,
            "--machine": self.machine,
            "--seed": self.seed,
            "--run": self.run,
            "--operations": self.operations,
            "--longest": self.longest,
            "--audit": self.audit,
            "--output": self.output,
        }
        for option, value in given.items():
            if value not in (None, ()):
                raise click.UsageError(f"{option}: a campaign that goes on has its own; leave it away.")
        if not (self.resume / LEDGER).is_file():
            raise click.UsageError(f"--resume {self.resume}: there is no {LEDGER} in it.")

    def check_resumed(self, adapters: Iterable[str]) -> None:
        """Refuse to play what a ledger alone names: it may be anybody's, whatever it says of itself."""
        known = dict.fromkeys(adapters)
        for name in self.adapters:
            if name not in known:
                played = ", ".join(known) or "no adapter"
                raise click.UsageError(
                    f"--adapter {name}: the campaign in {self.resume} plays {played}, and goes on with that."
                )
        for name in known:
            adapter_of_file(f"{self.resume}/{LEDGER}", name, name if name in self.adapters else None)

    def settle(self, operations: int | None = None) -> tuple[SoakPlan, Path]:
        """Fill in the defaults; without a seed, one is drawn."""
        from pymllm.conformance.soak.campaign import SoakPlan

        seed = secrets.randbelow(_SEED_STOP) if self.seed is None else self.seed
        is_bounded = any(it is not None for it in (operations, self.operations, self.run))
        minutes = _MINUTES if self.minutes is None and not is_bounded else self.minutes
        plan = SoakPlan(
            find_adapters_or_own(self.adapters),
            self.configs,
            seed,
            self.operations,
            None if minutes is None else 60 * minutes,
            self.longest or _LONGEST,
            64 if self.audit is None else self.audit,
            count_processes(self.jobs),
            self.timeout,
            self.stop_on_failure,
            self.machine,
            self.run,
        )
        folder = self.resume or self.output or Path("runs") / f"soak-{seed if self.run is None else self.run}"
        if self.resume is None and (folder / LEDGER).exists():
            raise click.UsageError(
                f"--output {folder}: a campaign is there already; --resume it, or choose another folder."
            )
        return plan, folder
