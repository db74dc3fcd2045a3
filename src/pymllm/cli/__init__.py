"""The command line; importing it loads click and no torch, so that ``pymllm --help`` answers at once."""

from __future__ import annotations

from importlib import import_module

from pymllm.cli.program import main

__all__ = ["main"]

VERBS = {
    "Start": ("adapters", "check_protocol", "verify", "vectors"),
    "Search": ("compare", "soak", "resume", "repeat", "merge", "faults", "goals"),
    "Replay": ("replay", "replay_serial", "curve", "trace"),
    "Results": ("rerun", "judge", "shrink", "bisect", "diff", "report"),
    "Machine": ("doctor", "schema"),
}
"""The verbs by task: the names of their files."""

for section, verbs in VERBS.items():
    main.add_section(
        section, [getattr(import_module(f"pymllm.cli.{verb}"), f"{verb}_command") for verb in verbs]
    )
import_module("pymllm.cli.trace_write")  # other verbs of trace
