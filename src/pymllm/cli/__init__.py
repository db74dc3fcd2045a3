"""The command line, which imports click and not torch, so that ``pymllm --help`` is fast."""

from __future__ import annotations

from importlib import import_module

from pymllm.cli.program import main

__all__ = ["main"]

VERBS = {
    "Start": ("adapters", "search.check_protocol", "search.verify", "search.vectors"),
    "Search": (
        *("search.compare", "soak.soak", "soak.resume", "soak.repeat", "soak.merge"),
        *("search.faults", "search.goals"),
    ),
    "Replay": (
        "replay.replay",
        "replay.replay_serial",
        "replay.replay_server",
        "replay.curve",
        "replay.trace",
    ),
    "Servers": ("servers.serve", "servers.probe", "servers.watch"),
    "Results": (
        *("results.rerun", "results.judge", "results.shrink", "results.bisect"),
        *("results.diff", "results.report"),
    ),
    "Machine": ("doctor", "schema"),
}
"""The commands by task, with the names of their files."""

for task, files in VERBS.items():
    main.add_section(
        task,
        [
            getattr(import_module(f"pymllm.cli.{file}"), f"{file.rpartition('.')[2]}_command")
            for file in files
        ],
    )
import_module("pymllm.cli.replay.trace_write")  # other verbs of trace
