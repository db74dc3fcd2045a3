"""The judge of a kind of implementation: takes steps one by one and refuses the first that breaks a law."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Protocol

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.config_limits import check_config
from pymllm.history.files import Header, Step
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Outcome
from pymllm.oracle.evidence import Evidence

_JUDGES = {
    "slots": "pymllm.oracle.slot_judge:SlotJudge",
    "rows": "pymllm.oracle.row_judge:RowJudge",
    "buffers": "pymllm.oracle.buffer_judge:BufferJudge",
    "states": "pymllm.oracle.state_judge:StateJudge",
    "hashes": "pymllm.oracle.hash_judge:HashJudge",
    "prefix": "pymllm.oracle.prefix_judge:PrefixJudge",
    "blocks": "pymllm.oracle.block_judge:BlockJudge",
    "requests": "pymllm.oracle.request_judge:RequestJudge",
}


class Judge(Protocol):
    """What every judge offers.

    Attributes
    ----------
    evidence : Evidence
        What was tested so far.
    """

    evidence: Evidence

    def judge(self, step: int, operation: Operation, outcome: Outcome) -> None:
        """Judge one step and follow it in the model.

        Raises
        ------
        InvariantViolation
            The outcome breaks a law. The judge is of no further use: its model and the implementation
            have parted.
        ProgramError
            The operation makes no sense here; nothing was judged.
        """

    def check_end(self) -> None:
        """Judge what is left at the end of a program; `InvariantViolation` as of `judge`."""


def make_judge(header: Header) -> Judge:
    """Make the judge of a history from its header alone: kind, configuration and capabilities.

    Raises
    ------
    ProgramError
        The header names no kind that there is, or a size of its configuration is missing or too large.
    """
    if header.kind not in _JUDGES:
        raise ProgramError(f"kind is {header.kind!r}; it must be one of {', '.join(_JUDGES)}")
    check_config(header.config, header.kind)
    module, _, name = _JUDGES[header.kind].partition(":")
    judge: Judge = getattr(importlib.import_module(module), name)(header)
    return judge


def judge_steps(
    header: Header, steps: Iterable[Step]
) -> tuple[Evidence, tuple[Step, InvariantViolation] | None]:
    """Judge recorded outcomes without the implementation.

    Parameters
    ----------
    header : Header
        Of the history.
    steps : iterable of Step
        In order, each with its outcome.

    Returns
    -------
    Evidence
        What was tested.
    tuple of (Step, InvariantViolation) or None
        The step that broke a law, and how.

    Raises
    ------
    ProgramError
        A step has no outcome, or makes no sense; its number is named.
    """
    judge = make_judge(header)
    step = None
    try:
        for step in steps:
            if step.outcome is None:
                raise ProgramError("it has no outcome: this is a program that was not run")
            judge.judge(step.number, step.operation, step.outcome)
        judge.check_end()
    except ProgramError as error:
        raise ProgramError(f"step {step.number if step else 0}: {error}") from error
    except InvariantViolation as violation:
        assert step is not None  # an empty program breaks no law
        return judge.evidence, (step, violation)
    return judge.evidence, None
