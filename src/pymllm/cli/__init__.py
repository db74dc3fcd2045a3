"""The command line; importing it loads click and no torch, so that ``pymllm --help`` answers at once."""

from __future__ import annotations

from pymllm.cli.adapters import adapters_command
from pymllm.cli.compare import compare_command
from pymllm.cli.diff import diff_command
from pymllm.cli.doctor import doctor_command
from pymllm.cli.faults import faults_command
from pymllm.cli.judge import judge_command
from pymllm.cli.program import main
from pymllm.cli.replay import replay_command
from pymllm.cli.report import report_command
from pymllm.cli.rerun import rerun_command
from pymllm.cli.schema import schema_command
from pymllm.cli.shrink import shrink_command
from pymllm.cli.situations import situations_command
from pymllm.cli.soak import soak_command
from pymllm.cli.verify import verify_command

__all__ = ["main"]

for command in (
    verify_command,
    soak_command,
    compare_command,
    diff_command,
    rerun_command,
    judge_command,
    shrink_command,
    faults_command,
    adapters_command,
    situations_command,
    doctor_command,
    schema_command,
    replay_command,
    report_command,
):
    main.add_command(command)
