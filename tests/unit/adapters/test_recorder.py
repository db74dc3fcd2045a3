"""Tests of histories that are written as they happen, and of wrappers that change nothing."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pymllm.adapters.base import Adapter
from pymllm.adapters.own_slots import TokenSlots
from pymllm.adapters.recorder import AdapterWrapper, Recorder, layers
from pymllm.adapters.registry import OWN, make_adapter
from pymllm.errors import AdapterError, ProgramError
from pymllm.history.files import History, load_history
from pymllm.history.operations import Alloc, Free, Operation, Span
from pymllm.history.outcomes import Result
from pymllm.instrument.timing import Timing
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.examiner import Examiner
from pymllm.machines.registry import load_machine, machines_for
from pymllm.oracle.judge import judge_steps
from pymllm.search.program import play_steps


class Breaking(TokenSlots):
    """Gives no answer for 3 tokens, and ends its process for 4."""

    def do_alloc(self, step: int, operation: Operation) -> Result:
        if operation == Alloc(3):
            raise AdapterError(self.name, "no answer")
        if operation == Alloc(4):
            os.kill(os.getpid(), signal.SIGKILL)
        result: Result = super().do_alloc(step, operation)  # type: ignore[arg-type]  # it is an Alloc
        return result


def make(path: Path) -> Recorder:
    return Recorder(Breaking("breaking", Breaking.CONFIGURATIONS[0]), path)


def test_a_recorded_run_can_be_judged(tmp_path: Path) -> None:
    """Header, operations and outcomes are all that the judge needs."""
    path = tmp_path / "run.jsonl"
    adapter = make_adapter("token-slots")
    recorder = Recorder(adapter, path, seed=7, versions={"torch": "2"}, note="for the record")
    outcomes = [recorder.apply(2, Alloc(1)), recorder.apply(5, Free((Span(2, 0, 1),)))]
    recorder.close()
    history = load_history(path)
    assert (history.header.seed, history.header.note) == (7, "for the record")
    assert history.header.versions == {"torch": "2"}
    assert history.header.config == adapter.config
    assert [(step.number, step.outcome) for step in history.steps] == [(2, outcomes[0]), (5, outcomes[1])]
    evidence, broken = judge_steps(history.header, history.steps)
    assert broken is None
    assert sum(evidence.exercised.values()) > 0


def test_each_step_is_in_the_file_at_once(tmp_path: Path) -> None:
    """Nothing waits in a buffer: the file is a history after each step."""
    path = tmp_path / "run.jsonl"
    recorder = make(path)
    for step in range(1, 4):
        recorder.apply(step, Alloc(1))
        assert len(load_history(path)) == step
    recorder.close()


def test_a_killed_process_leaves_the_operation_it_died_in(tmp_path: Path) -> None:
    """The last step has no outcome, and those before it have theirs."""
    path = tmp_path / "run.jsonl"
    code = (
        "import sys, pathlib; from tests.unit.adapters.test_recorder import make\n"
        "from pymllm.history.operations import Alloc\n"
        "recorder = make(pathlib.Path(sys.argv[1]))\n"
        "recorder.apply(1, Alloc(1)); recorder.apply(2, Alloc(4))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code, path], cwd=root, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    history = load_history(path)
    assert [step.outcome is None for step in history.steps] == [False, True]
    assert history.steps[1].operation == Alloc(4)


def test_an_adapter_without_an_answer_leaves_a_step_without_an_outcome(tmp_path: Path) -> None:
    """A step without an answer is recorded without an outcome, and the next step is recorded, too."""
    path = tmp_path / "run.jsonl"
    recorder = make(path)
    with pytest.raises(AdapterError, match="no answer"):
        recorder.apply(1, Alloc(3))
    recorder.apply(2, Alloc(1))
    recorder.close()
    assert [step.outcome is None for step in load_history(path).steps] == [True, False]


def test_an_operation_without_sense_is_not_in_the_history(tmp_path: Path) -> None:
    """X1: it was not carried out, and the history without it is one that can be run."""
    path = tmp_path / "run.jsonl"
    recorder = make(path)
    recorder.apply(1, Alloc(1))
    before = path.read_bytes()
    with pytest.raises(ProgramError, match="step 9"):
        recorder.apply(2, Free((Span(9, 0, 1),)))
    assert path.read_bytes() == before
    recorder.apply(3, Alloc(1))
    assert [step.number for step in load_history(path).steps] == [1, 3]
    recorder.close()


def test_numbers_only_grow_and_nothing_follows_the_close(tmp_path: Path) -> None:
    """X1: what no reader would accept is refused before it is carried out."""
    path = tmp_path / "run.jsonl"
    recorder = make(path)
    recorder.apply(4, Alloc(1))
    with pytest.raises(ProgramError, match="above 4"):
        recorder.apply(4, Alloc(1))
    recorder.close()
    recorder.close()
    with pytest.raises(ProgramError, match="after the close"):
        recorder.apply(5, Alloc(1))
    assert [step.number for step in load_history(path).steps] == [4]


def test_a_file_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    """Before anything runs that could not be recorded; a pipe cannot be written in place."""
    with pytest.raises(FileNotFoundError):
        make(tmp_path / "nowhere" / "run.jsonl")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Illegal seek"):
        make(tmp_path / "pipe")
    assert len(os.listdir("/proc/self/fd")) == descriptors
    os.close(reader)


@pytest.mark.parametrize(("good_writes", "steps"), [(2, [False]), (3, [False, True])])
def test_a_full_disk_leaves_a_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good_writes: int, steps: list[bool]
) -> None:
    """X1: no room for an operation, and it is not carried out; none for its outcome, and recording ends."""
    path = tmp_path / "run.jsonl"
    recorder = make(path)
    write = os.pwrite
    writes = 0

    def filling(file: int, data: memoryview, place: int) -> int:
        nonlocal writes
        writes += 1
        if writes <= good_writes:
            return write(file, data, place)
        if writes == good_writes + 1:
            return write(file, data[:1], place)
        if place + len(data) <= path.stat().st_size:
            return write(file, data, place)  # where there is something already, there is room
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", filling)
    recorder.apply(1, Alloc(1))
    with pytest.raises(OSError, match="No space"):
        recorder.apply(2, Alloc(1))
    monkeypatch.undo()
    assert [step.outcome is None for step in load_history(path).steps] == steps
    if len(steps) == 1:
        recorder.apply(3, Alloc(1))
        assert [step.number for step in load_history(path).steps] == [1, 3]
    else:
        with pytest.raises(ProgramError, match="after the close"):
            recorder.apply(3, Alloc(1))
    recorder.close()


def recorded(name: str, seed: int = 3, steps: int = 40) -> History:
    """A program that a machine makes for an adapter, with its outcomes."""
    adapter = make_adapter(name)
    entry = next(iter(machines_for(adapter.kind, adapter.capabilities)))
    return drive(make_machine(load_machine(entry), name, adapter.config), seed, steps).examiner.history


@pytest.mark.parametrize("name", [entry.name for entry in OWN])
def test_instruments_in_any_order_change_nothing(name: str, tmp_path: Path) -> None:
    """Outcomes and audits under a recorder and a timer are those without, for every own adapter."""
    history = recorded(name)
    bare = make_adapter(name)
    for order in itertools.permutations(["record", "time"]):
        adapter: Adapter = make_adapter(name)
        for number, kind in enumerate(order):
            adapter = Timing(adapter) if kind == "time" else Recorder(adapter, tmp_path / f"{number}.jsonl")
        examiner = Examiner(adapter)
        play_steps(examiner, ((step.number, step.operation) for step in history.steps))
        adapter.close()
        assert examiner.history.steps == history.steps
        assert load_history(next(tmp_path.iterdir())).steps == history.steps
        assert (adapter.name, adapter.kind, adapter.config) == (bare.name, bare.kind, bare.config)
        assert adapter.capabilities == bare.capabilities
        for path in tmp_path.iterdir():
            path.unlink()


def test_layers_lead_from_the_outside_to_the_adapter() -> None:
    """Whoever holds a stack finds the timer in it."""
    inside = make_adapter("token-slots")
    timing = Timing(inside)
    outside = AdapterWrapper(timing)
    assert list(layers(outside)) == [outside, timing, inside]
    assert list(layers(inside)) == [inside]


def test_a_wrapper_hands_audit_and_close_on() -> None:
    """A process behind an adapter ends with the outermost wrapper."""
    told = []

    class Telling(AdapterWrapper):
        def audit(self) -> tuple[str, ...]:
            told.append("audit")
            return ("A1",)

        def close(self) -> None:
            told.append("close")

    stack = AdapterWrapper(Timing(Telling(make_adapter("token-slots"))))
    assert stack.audit() == ("A1",)
    stack.close()
    assert told == ["audit", "close"]


def test_what_is_no_adapter_is_refused() -> None:
    """A wrapper refuses at once an object that is no adapter, and names the missing parts (X1)."""
    with pytest.raises(TypeError, match=r"adapter must have name, kind, .* got None; make_adapter of"):
        Timing(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got 'radix'"):
        AdapterWrapper("radix")  # type: ignore[arg-type]
