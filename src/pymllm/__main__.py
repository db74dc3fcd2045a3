"""Run the command line: as ``pymllm``, and as ``python -m pymllm``."""

from __future__ import annotations

import sys


def run() -> None:
    """Run a command, and end with its status; never returns.

    The commands are imported here: who types Ctrl-C while that goes on is answered as later.
    """
    try:
        from pymllm.cli import main

        main(prog_name="pymllm")
    except KeyboardInterrupt:  # before there is anybody else who knows what to do
        if sys.stderr is not None:
            print("pymllm: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    run()
