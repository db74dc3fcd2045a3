"""``pymllm rerun``: the operations of a file on an implementation, judged as they happen."""

from __future__ import annotations

import json
import os
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pymllm.adapters.base import Adapter
from pymllm.cli.command_option import command_option
from pymllm.cli.file_adapter import adapter_of_file, given_adapter
from pymllm.cli.judgement import Judgement, OperationRow, make_document, make_text, read_program
from pymllm.cli.options import json_option, timeout_option
from pymllm.cli.program import say
from pymllm.cli.run_store import refuse_own_input
from pymllm.cli.values import CONFIG
from pymllm.cli.verify_plan import find_adapter_or_refuse, load_or_refuse
from pymllm.errors import AdapterError, UsageError
from pymllm.history.files import Config, History
from pymllm.instrument.recorder import Recorder
from pymllm.instrument.timing import Timing

if TYPE_CHECKING:
    from pymllm.conformance.rerun import RerunResult

__all__ = ["rerun_command"]


class _Instruments:
    """What is put around an adapter, on request: a recorder, and a timer outside of nothing else."""

    def __init__(self, record: Path | None, is_timed: bool) -> None:
        self._record, self._is_timed = record, is_timed
        self._timing: Timing | None = None

    def wrap(self, adapter: Adapter) -> Adapter:
        """Time the adapter alone, and record what comes of it."""
        if self._is_timed:
            adapter = self._timing = Timing(adapter)
        return adapter if self._record is None else Recorder(adapter, self._record)

    def times(self) -> tuple[OperationRow, ...] | None:
        """Return what was timed; ``None`` without a timer."""
        if self._timing is None:
            return None
        return tuple(
            OperationRow(name, not is_done, *astuple(histogram.summary()))
            for (name, is_done), histogram in sorted(self._timing.histograms.items())
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """What a process beside this one is to run again."""

    history: History
    adapter: str
    config: Config | None
    record: Path | None
    is_timed: bool

    def carry_out(self) -> tuple[RerunResult, tuple[OperationRow, ...] | None]:
        """Run it, and return what it came to, with the times of its operations."""
        from pymllm.conformance.rerun import rerun_history

        instruments = _Instruments(self.record, self.is_timed)
        load_or_refuse(self.adapter)
        return rerun_history(self.history, self.adapter, self.config, instruments.wrap), instruments.times()


@click.command("rerun", short_help="Run a recorded program again, on any implementation.")
@click.argument("file", type=click.Path())
@click.option(
    "--adapter",
    metavar="NAME",
    show_default="the one that the file names, if `pymllm adapters` has it",
    help="A name of `pymllm adapters`, or module:Class.",
)
@command_option(multiple=False)
@click.option(
    "--config",
    type=CONFIG,
    metavar="JSON",
    show_default="the file's",
    help="What to build, such as '{\"page_size\": 4}'.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write what happens to FILE, while it happens: a program that `pymllm rerun` reads.",
)
@click.option("--timing", is_flag=True, help="Show how long each operation took.")
@timeout_option
@json_option
def rerun_command(
    file: str,
    adapter: str | None,
    command: str | None,
    config: Config | None,
    record: Path | None,
    timing: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Run the operations of FILE again, judge every step, and compare with what was recorded.

    FILE holds a program as JSON lines, as `pymllm verify` writes it; outcomes may be missing. It names
    slots and nodes by the step that gave them, so it runs on any adapter of its kind. A module or a command
    that FILE names is never run: name it with --adapter or --command.

    Ends with 0 where no law is broken, with 1 where one is, with 2 for bad input, and with 3 where nothing
    can be said: the adapter could not be asked, or made choices that the program does not fit.
    """
    given = given_adapter(adapter, command)
    refuse_own_input("--record", record, file)
    history = read_program(file)
    name = find_adapter_or_refuse(adapter_of_file(file, history.header.adapter, given)).name
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Not at the top: --help and a mistyped option can do without.
    from pymllm.conformance.worker_process import Lost
    from pymllm.conformance.workers import ask

    try:
        answer = ask(_Task.carry_out, _Task(history, name, config, record, timing), timeout)
    except UsageError as error:
        raise click.UsageError(f"{file}: {error}.") from error
    except OSError as error:
        if record is None or error.filename not in (str(record), record):
            raise
        raise click.UsageError(f"--record {record}: {error.strerror or error}.") from error
    if isinstance(answer, Lost):
        raise AdapterError(name, answer.message)
    result, times = answer
    judgement = Judgement(
        "rerun",
        file,
        name,
        result.history,
        result.exercised,
        result.audited,
        result.violation,
        result.misfit,
        tuple(now.number for _, now in result.differences),
        times,
    )
    say(json.dumps(make_document(judgement), indent=2) if as_json else make_text(judgement))
    return judgement.verdict.exit_status
