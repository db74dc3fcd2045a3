"""An executor of jobs that are processes of this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pymllm.campaign.slurm_executor import SlurmExecutor


def make() -> SlurmExecutor:
    """Return the executor, as ``--executor module:factory`` calls for it."""
    return SlurmExecutor(Path(tempfile.gettempdir()) / "jobs", cluster="local")
