"""Run a program that was written down: every step carried out, judged, and at the end run again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pymllm.adapters.base import Adapter
from pymllm.conformance.adapter_calls import build_adapter, closing
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.twins import check_twins
from pymllm.history.files import Config, History
from pymllm.history.operations import Operation

__all__ = ["end_program", "play_steps", "run_program"]


def run_program(
    adapter: str, config: Config, operations: Sequence[Operation] | Mapping[int, Operation]
) -> History:
    """Run a program on an adapter.

    Parameters
    ----------
    adapter : str
        Registry name or ``module:Class``.
    config : dict
        What to build.
    operations : sequence of Operation, or mapping from step number
        In order; a sequence is numbered from 1.

    Returns
    -------
    History
        Every step with its outcome.

    Raises
    ------
    InvariantViolation
        The program breaks a law on this adapter.
    ProgramError
        The program makes no sense.
    AdapterError
        The adapter cannot be loaded, built or asked.
    """
    numbered = operations if isinstance(operations, Mapping) else dict(enumerate(operations, 1))
    examiner = Examiner(build_adapter(adapter, dict(config)))
    with closing(examiner.adapter, examiner.history):
        play_steps(examiner, numbered.items())
    return examiner.history


def play_steps(examiner: Examiner, steps: Iterable[tuple[int, Operation]]) -> None:
    """Carry out steps, judge the end, and run the program on new adapters again, in part and as a whole (X3).

    Raises
    ------
    InvariantViolation
        A law is broken.
    """
    for number, operation in steps:
        examiner.do(operation, number)
    end_program(examiner)


def end_program(examiner: Examiner) -> None:
    """Judge the end of a program, and run it on new adapters again, in part and as a whole (X3).

    Raises
    ------
    InvariantViolation
        A law is broken.
    """
    header = examiner.history.header

    def make() -> Adapter:
        return build_adapter(header.adapter, dict(header.config))

    check_twins(examiner, make)
    examiner.judge.check_end()
    examiner.check_replay(make)
