"""The command line; importing it loads click and no torch, so that ``pymllm --help`` answers at once."""

from __future__ import annotations

from importlib import import_module

from pymllm.cli.program import main

__all__ = ["main"]

for verb in (
    *("verify", "soak", "compare", "diff", "rerun", "judge", "shrink", "bisect"),
    *("faults", "adapters", "goals", "doctor", "trace", "schema", "replay", "curve", "report", "vectors"),
):
    main.add_command(getattr(import_module(f"pymllm.cli.{verb}"), f"{verb}_command"))
    if verb == "trace":
        import_module("pymllm.cli.trace_write")  # its other verbs
