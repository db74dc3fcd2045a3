"""The command line: what users type, and what they get to read.

`main` is the program. Importing this package loads click and nothing heavier; torch, caches and
workloads are loaded by the command that needs them, so that ``pymllm --help`` answers at once.
"""

from __future__ import annotations

from pymllm.cli.program import main
from pymllm.cli.replay import replay_command

__all__ = ["main"]

main.add_command(replay_command)
