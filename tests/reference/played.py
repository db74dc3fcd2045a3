"""What the reference package plays and judges, as lines that any later one can be held against.

Runs in a process of its own that imports the reference, and uses only names that the reference has:
``python played.py play SEED OPERATIONS [ADAPTER ...]`` plays, ``faults SEED OPERATIONS`` does so with each
fault in place, ``judge`` judges what it reads.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from pymllm.adapters.cabinet.table import PLANTED
from pymllm.oracle.history import dump_history, read_history  # type: ignore[import-not-found]

from pymllm.adapters.cabinet.planting import planted
from pymllm.adapters.registry import FAULTY, OWN, find_adapter, load_adapter, make_adapter
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.machines import load_machine, machines_for
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.oracle.judge import judge_steps

ACTS = (40, 160, 80, 320)


def play(seed: int, operations: int, names: list[str]) -> Iterator[dict[str, Any]]:
    """Play each machine on each configuration of some adapters, so many operations for each adapter."""
    for name in names:
        spent = 0
        places = list(_places(name))
        for number in itertools.count():
            if spent >= operations or not places:
                break
            config, entry = places[number % len(places)]
            machine = make_machine(load_machine(entry), name, config, seed=seed, audit=False)
            machine.REPLAY_EVERY = sys.maxsize
            ended: list[Any] = []
            machine.on_end = ended.append
            try:
                drive(machine, (seed << 32) + number, ACTS[number // len(places) % len(ACTS)])
            except InvariantViolation:
                pass
            except Exception as error:  # a faulty class may come to any end; its program is judged as it is
                yield {"adapter": name, "crash": f"{type(error).__name__}: {error}"}
            for examiner in ended[:1]:
                steps = [step for step in examiner.history.steps if step.outcome is not None]
                examiner.history.steps[:] = steps
                spent += len(steps)
                yield _judged(name, list(dump_history(examiner.history)))
            spent += 1


def _places(name: str) -> Iterator[tuple[dict[str, Any], Any]]:
    for config in load_adapter(find_adapter(name)).CONFIGURATIONS:
        adapter = make_adapter(name, dict(config))
        adapter.close()
        for entry in machines_for(adapter.kind, adapter.capabilities):
            yield dict(config), entry


def _judged(name: str, lines: list[str]) -> dict[str, Any]:
    begun = time.process_time()
    history = read_history(lines, name)
    read = time.process_time()
    verdict = _verdict(history)
    return {
        "adapter": name,
        "lines": lines,
        "verdict": verdict,
        "read_s": read - begun,
        "judge_s": time.process_time() - read,
    }


def _verdict(history: Any) -> list[Any]:
    try:
        evidence, found = judge_steps(history.header, history.steps)
    except ProgramError:
        return ["no program"]
    if found is not None:
        return [found[1].law, found[0].number]
    return ["kept", dict(sorted(evidence.exercised.items())), dict(sorted(evidence.reached.items()))]


def _play_with_faults(seed: int, operations: int) -> Iterator[dict[str, Any]]:
    for fault in PLANTED:
        with planted(fault.edits):
            for found in play(seed, operations, list(fault.adapters[:1])):
                yield {**found, "fault": fault.id}


def main() -> None:
    """Print a line for each program."""
    command, *rest = sys.argv[1:]
    if command == "judge":
        answers: Iterator[dict[str, Any]] = (
            _judged("", json.loads(line)) | {"lines": []} for line in sys.stdin
        )
    elif command == "faults":
        answers = _play_with_faults(int(rest[0]), int(rest[1]))
    else:
        names = rest[2:] or [entry.name for entry in (*OWN, *FAULTY)]
        answers = play(int(rest[0]), int(rest[1]), names)
    for answer in answers:
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
