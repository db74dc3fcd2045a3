"""The process of a shard: the program ``pymllm``, which ends when its starter does.

A worker that is killed cannot end what it has started; without this, its shard would go on beside the second
attempt, and take a processor that somebody else was given.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

_TICK = 0.5  # seconds between two looks


def run(starter: int) -> None:
    """Run pymllm with this process's arguments; ``starter`` is the parent process."""
    threading.Thread(target=_guard, args=(starter,), daemon=True).start()
    sys.argv[0] = "pymllm"
    runpy.run_module("pymllm", run_name="__main__", alter_sys=True)


def _guard(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(_TICK)
    # Every line of a ledger is whole, and the processes that play look after their own starter.
    os.kill(os.getpid(), signal.SIGKILL)
