"""The three profiles."""

from __future__ import annotations

import subprocess
import sys

from pymllm.conformance.machines import CI, DEEP, DEV, PROFILES


def test_each_profile_is_found_by_its_name() -> None:
    """The command line and pytest take the same three words."""
    assert PROFILES == {"dev": DEV, "ci": CI, "deep": DEEP}


def test_each_profile_looks_further_than_the_one_before() -> None:
    """Whoever asks for more gets more of everything, and a new place each night."""
    for less, more in ((DEV, CI), (CI, DEEP)):
        assert less.steps < more.steps
        assert less.examples < more.examples
        assert less.seconds < more.seconds
        assert less.shrinks < more.shrinks
    assert (DEV.seed, CI.seed, DEEP.seed) == (0, 0, None)


def test_the_numbers_can_be_read_before_anything_else() -> None:
    """A test session reads them first; nothing heavy comes along."""
    code = (
        "import sys, pymllm.conformance.machines; print('hypothesis' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
