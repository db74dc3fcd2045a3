"""The command ``pymllm rerun``: a program in a file, run on an implementation and judged."""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pymllm.adapters.base import Adapter
from pymllm.adapters.recorder import Recorder
from pymllm.cli import options
from pymllm.cli.output import complain
from pymllm.cli.results.judge import make_judgement, make_text, tell_limits
from pymllm.cli.servers.probe import probe_command
from pymllm.cli.store import refuse_own_input, refuse_run_or_program, save_text
from pymllm.cli.tables import tell
from pymllm.documents.programs import JudgementDocument, OperationRow
from pymllm.errors import AdapterError
from pymllm.history.files import Config, History
from pymllm.instrument.timing import Timing
from pymllm.probing.records import is_probe

if TYPE_CHECKING:
    from pymllm.search.program import RerunResult


@dataclass(slots=True)
class _Task:
    """A program to run in a separate process, with a recorder and a timer if requested."""

    history: History
    adapter: str
    config: Config | None
    record: Path | None
    is_timed: bool
    timing: Timing | None = None

    def carry_out(self) -> tuple[RerunResult, tuple[OperationRow, ...] | None]:
        """Run the program, and return the result with the times of its operations."""
        from pymllm.search.program import rerun_history

        options.load_or_refuse(self.adapter)
        result = rerun_history(self.history, self.adapter, self.config, self._wrap)
        if self.timing is None:
            return result, None
        timed = sorted(self.timing.histograms.items())
        return result, tuple(
            OperationRow(name, not is_done, *astuple(histogram.summary()))
            for (name, is_done), histogram in timed
        )

    def _wrap(self, adapter: Adapter) -> Adapter:
        """Wrap the adapter so that its operations are timed, and their outcomes recorded."""
        if self.is_timed:
            adapter = self.timing = Timing(adapter)
        return adapter if self.record is None else Recorder(adapter, self.record)


@click.command("rerun", short_help="Run a recorded program again, on any implementation.")
@click.argument("file", type=click.Path())
@options.adapter
@options.command(multiple=False)
@click.option(
    "--config",
    type=options.json_object,
    metavar="JSON",
    show_default="the file's",
    help="Configuration to build, such as '{\"page_size\": 4}'.",
)
@click.option(
    "--record",
    type=options.OUTPUT_FILE,
    help="Record the run in FILE during the run, as a program that `pymllm rerun` reads.",
)
@click.option("--timing", is_flag=True, help="Show how long each operation took.")
@click.option(
    "--picture",
    type=options.OUTPUT_FILE,
    help="Draw the operations, the owners of the slots, and the tree into FILE, as SVG.",
)
@click.option("--url", metavar="URL", help="Server to make the requests of a file of `pymllm probe` again.")
@click.option("--start", metavar="'COMMAND'", help="Start that server by this command.")
@options.timeout
@options.json
def rerun_command(
    file: str,
    adapter: str | None,
    command: str | None,
    config: Config | None,
    record: Path | None,
    timing: bool,
    picture: Path | None,
    url: str | None,
    start: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Run the operations of FILE again, judge every step, and compare with the recorded outcomes.

    FILE has a program as JSON lines, as `pymllm verify` writes it; outcomes may be missing. If FILE has
    several programs, FILE#NAME is the one of that name. A program names slots and nodes by the step that
    returned them, so it runs on any adapter of its kind. A module or a command that FILE names is never run:
    name it with --adapter or --command. The requests of a file of `pymllm probe` are made again of the server
    at --url, as `pymllm probe URL --again FILE` makes them.

    Exit status: 0 if no law is broken, 1 if one is, 2 for bad input, 3 if the result is unknown, because the
    adapter failed or made other choices than the program relies on.
    """
    if is_probe(Path(file)):
        return _ask_again(Path(file), url, start, timeout, as_json)
    options.refuse_typed(("url", "start"), f"{file} is no file of pymllm probe")
    path, _ = options.split_program(file)
    refuse_own_input("--record", record, path)
    refuse_own_input("--picture", picture, path)
    refuse_run_or_program("--picture", picture)
    if picture is not None and picture.suffix.lower() != ".svg":
        raise click.UsageError(
            f"--picture: {picture} is no name of an SVG; try {picture.with_suffix('.svg')}."
        )
    history, name = options.read_program_for(file, adapter, command)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Not at the top: --help and a mistyped option can do without.
    from pymllm.work.workers import Lost, ask

    try:
        with options.refusing(file):
            answer = ask(_Task.carry_out, _Task(history, name, config, record, timing), timeout)
    except OSError as error:
        if record is None or error.filename not in (str(record), record):
            raise
        raise click.UsageError(f"--record {record}: {error.strerror or error}.") from error
    if isinstance(answer, Lost):
        raise AdapterError(name, answer.message)
    if picture is not None:
        from pymllm.report.picture import draw_program

        if save_text(draw_program(answer[0].history, answer[0].violation), picture):
            complain(f"picture written to {picture}")
    return tell(judgement_of(file, name, *answer), make_text, as_json)


def _ask_again(file: Path, url: str | None, start: str | None, timeout: float, as_json: bool) -> int:
    options.refuse_typed(
        ("adapter", "command", "config", "record", "timing", "picture"), f"{file} is of pymllm probe"
    )
    if url is None:
        raise click.UsageError(f"{file} has requests of a server; name the server with --url.")
    asked = {"url": url, "start": start, "again": file, "timeout": timeout, "as_json": as_json}
    status: int = click.get_current_context().invoke(probe_command, **asked)
    return status


def judgement_of(
    file: str, adapter: str, result: RerunResult, times: tuple[OperationRow, ...] | None = None
) -> JudgementDocument:
    """Return the judgement of a program that was rerun."""
    return make_judgement(
        "rerun",
        file,
        adapter,
        result.history,
        result.exercised,
        result.audited,
        violation=result.violation,
        misfit=result.misfit,
        limits=tell_limits(result.evidence, result.history.header),
        differences=tuple(now.number for _, now in result.differences),
        times=times,
    )
