"""``pymllm doctor``: what this machine has, for bug reports and for the logs of runners."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pymllm.cli.options import json_option, progress_option
from pymllm.cli.program import say
from pymllm.cli.run_store import keep_run, refuse_unwritable_store, store_option

__all__ = ["doctor_command"]


@click.command("doctor", short_help="Show what this machine has.")
@json_option
@store_option
@progress_option
def doctor_command(as_json: bool, store: Path | None, progress: str) -> None:
    """Show Python, torch, GPUs, what NVML reads, and versions: what a bug report needs.

    What is missing, or cannot be read, is unknown with the reason, and no error: the command ends with 0.
    Torch is loaded for it, which takes a second or more, and CUDA initialised where there is a device.
    """
    refuse_unwritable_store(store)
    # Not at the top: rich is for this command only, and --help does without.
    from pymllm.cli.doctor_facts import LOOKS, look_at_machine
    from pymllm.cli.doctor_table import make_text
    from pymllm.cli.progress import progress_bar
    from pymllm.history.records import encode

    with progress_bar(progress, "loading torch, asking NVML", LOOKS, "looks") as show:
        document = look_at_machine(show)
    keep_run(store, encode(document))
    say(json.dumps(encode(document), indent=2) if as_json else make_text(document))
