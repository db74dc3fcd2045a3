"""Run the command line: as ``pymllm``, and as ``python -m pymllm``."""

from __future__ import annotations

import sys


def run() -> None:
    """Run a command, and end with its status; never returns.

    The commands are imported here: Ctrl-C and SIGTERM are answered as later while that goes on.
    """
    try:
        from pymllm.signals import terminable

        with terminable():
            from pymllm.cli import main

            main(prog_name="pymllm")
    except KeyboardInterrupt as interruption:  # before there is anybody else who knows what to do
        status = getattr(interruption, "status", 130)  # that of SIGTERM has one
        if sys.stderr is not None:
            print(f"pymllm: {'interrupted' if status == 130 else 'terminated'}", file=sys.stderr)
        sys.exit(status)


if __name__ == "__main__":
    run()
