"""Run the command line as ``python -m pymllm``."""

from __future__ import annotations

from pymllm.cli import main

if __name__ == "__main__":
    main(prog_name="pymllm")
