"""Commands of pymllm in children of this process: what they need is imported once, each has its limits."""

from __future__ import annotations

import gc
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY = 200 << 20
"""Bytes that a child may have beside what its parent has."""
SECONDS = 10
"""Of CPU time."""
_PATIENCE = 120
_LONGEST_LINE = 4_500
_REFUSED = 2


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its status, negative for a signal, and what it said."""

    status: int
    output: str
    errors: str
    seconds: float


def warm_up() -> None:
    """Import the modules that the commands import, so that child processes need not import them."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    for name in (
        *(
            "adapters.process.adapter",
            "adapters.registry",
            "cli",
            "cli.search.faults",
            "cli.results.judge",
            "cli.replay.replay",
            "cli.replay.curve",
            "cli.results.report",
        ),
        *(
            "cli.results.rerun",
            "cli.results.shrink",
            "cli.soak.soak",
            "faults.hunt",
            "search.kept_searches",
            "search.runner",
        ),
        *(
            "machines.registry",
            "search.program",
            "search.protocol_check",
            "search.releases",
            "search.shrinker",
        ),
        *(
            "work.spread.engines",
            "soak.returned_shards",
            "work.spread.spread",
            "soak.campaign",
            "soak.merged_campaigns",
            "oracle.judge",
            "report.loading",
            "report.page",
        ),
        *(
            "report.feeds",
            "replay.replays",
            "replay.curves",
            "cli.replay.replay_server",
            "replay.prediction",
            "probing.clients",
            "workloads.engine",
            "traces.statistics",
            "traces.synthesis",
        ),
    ):
        __import__(f"pymllm.{name}")
    gc.collect()
    gc.freeze()


def run(words: Sequence[str], folder: Path) -> Ended:
    """Run a command in a folder."""
    output, errors = folder / ".output", folder / ".errors"
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(words, folder, output, errors)
    status = _wait(child, begun + _PATIENCE)
    told = [path.read_text(encoding="utf-8", errors="replace") for path in (output, errors)]
    return Ended(status, told[0], told[1], time.monotonic() - begun)


def _wait(child: int, until: float) -> int:
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGALRM
        time.sleep(0.002)


def _become(words: Sequence[str], folder: Path, output: Path, errors: Path) -> None:
    """Be the command; never returns."""
    status = 70
    try:
        os.chdir(folder)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        for number, path in ((1, output), (2, errors)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # theirs to the end
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.path.insert(0, str(folder))  # where a module waits to be imported
        _limit()
        status = _status_of(words)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _limit() -> None:
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    spent = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (spent + SECONDS, spent + SECONDS))


def _status_of(words: Sequence[str]) -> int:
    from pymllm.adapters.process.adapter import end_idle_programs
    from pymllm.cli import main
    from pymllm.faults import hunt
    from pymllm.probing import clients
    from pymllm.replay import served
    from pymllm.search import releases, runner
    from pymllm.work.workers import Workers

    def look_for_nothing(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    # The file was read by then; pip would ask the network.
    hunt.look_for_faults = look_for_nothing  # type: ignore[assignment]
    releases.list_releases = look_for_nothing  # type: ignore[assignment]
    clients.connect = lambda http, api, **_: clients.OpenAI(http, "pymllm", "m")  # what the file has is told
    served.play = lambda *_, results, **__: served.Play(dict(results))
    if words[0] == "verify" and "--keep" in words:  # what the file has is told; nothing is searched
        runner.run_search = look_for_nothing  # type: ignore[assignment]
        runner.shrink_findings = look_for_nothing  # type: ignore[assignment]
        begin = Workers.__init__
        here: Any = lambda workers, jobs, seconds=0.0: begin(workers, 0, seconds)  # noqa: E731
        Workers.__init__ = here  # type: ignore[method-assign]
    try:
        main(list(words), prog_name="pymllm")
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        end_idle_programs()
    return 0


def find_fault(ended: Ended, allowed: Sequence[int]) -> str | None:
    """Describe the fault of an ended command that no input excuses; return ``None`` if there is no fault."""
    if ended.status < 0:
        return f"ended by {signal.Signals(-ended.status).name}"
    if "Traceback" in ended.errors or "KeyError" in ended.errors or ended.status == 70:
        return "a traceback"
    if ended.status not in (*allowed, _REFUSED):
        return f"status {ended.status}"
    # What a report leaves out of its page is told, too, whatever becomes of the rest.
    lines = [line for line in ended.errors.splitlines() if not line.startswith("pymllm: left out of ")]
    if ended.status == _REFUSED and (len(lines) != 1 or ended.output):
        return f"status 2 with {len(lines)} lines of error and {len(ended.output)} characters of output"
    if any(len(line) > _LONGEST_LINE for line in lines):
        return "a line of error without end"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", ended.errors):
        return "control characters"
    if re.search(r"recursion depth|int_max_str_digits|Error\(", ended.errors):
        return "words of Python"
    return None
