"""Executors of this machine, as ``--executor module:factory`` calls for them."""

from __future__ import annotations

import tempfile
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path


def jobs() -> Executor:
    """Return one whose jobs of submitit are processes of this machine, of which two run at a time."""
    from pymllm.work.spread.slurm_executor import SlurmExecutor

    executor = SlurmExecutor(Path(tempfile.gettempdir()) / "jobs", cluster="local")
    executor._max_workers = 2
    return executor


def processes() -> Executor:
    """Return Python's own, with two processes."""
    return ProcessPoolExecutor(2)
