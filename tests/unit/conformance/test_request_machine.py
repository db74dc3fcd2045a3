"""The machine of whole requests finds what is wrong with a context, and knows the calls of its adapter."""

from __future__ import annotations

import pytest

from pymllm.adapters.own_requests import MALFORMED_CALLS, Requests
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.request_machine import RequestMachine
from pymllm.errors import InvariantViolation
from pymllm.history.files import Config
from pymllm.oracle.coverage import expected_situations

CONFIG: Config = dict(Requests.CONFIGURATIONS[0])


def machine_of(adapter_class: type[Requests], config: Config = CONFIG) -> type[RequestMachine]:
    build = {"make_adapter": classmethod(lambda cls: adapter_class("x", config))}
    made: type[RequestMachine] = type(
        adapter_class.__name__, (make_machine(RequestMachine, "requests", config, audit=False),), build
    )
    return made


class Bare(Requests):
    """Claims nothing that needs the adapter's help."""

    def claim(self) -> frozenset[str]:
        return super().claim() & {"mamba"}


def test_the_machine_knows_every_malformed_call_of_the_adapter() -> None:
    """X1: and no other, so that none is passed over in silence."""
    assert {(call.call, call.wrong) for call in RequestMachine.MALFORMED} == set(MALFORMED_CALLS)


def test_an_adapter_that_claims_nothing_is_asked_for_nothing_more() -> None:
    """X1, X2: neither misuse nor failures, and no look inside."""
    machine = drive(machine_of(Bare), 1, 150)
    names = {type(step.operation).__name__ for step in machine.examiner.history.steps}
    assert not names & {"Malformed", "Fault", "Inspect"}
    assert {"AddRequest", "ScheduleChunk", "RunStep", "Release"} <= names


@pytest.mark.parametrize(
    "sizes",
    [
        {
            "max_requests": 1,
            "num_blocks": 2,
            "max_blocks": 1,
            "paused_limit": 0,
            "block_size": 1,
            "chunk_size": 1,
        },
        {
            "max_requests": 8,
            "num_blocks": 40,
            "max_blocks": 12,
            "block_size": 3,
            "chunk_size": 6,
            "layers": 1,
        },
    ],
)
def test_the_machine_fits_itself_to_every_size(sizes: dict[str, int]) -> None:
    """C1 to C8: the least context, and one larger than what is drawn."""
    machine = drive(make_machine(RequestMachine, "requests", {**CONFIG, **sizes}), 5, 80)
    header = machine.examiner.history.header
    assert set(machine.examiner.judge.evidence.reached) <= expected_situations(header) | {
        "a chunk finds no room where there is some",
        "a step keeps several states",
    }


class LosesRows(Requests):
    """Clears a row of the table once in a while."""

    def apply(self, step: int, operation: object) -> object:  # type: ignore[override]
        if step % 50 == 0:
            self.context.request_to_kv_block_ids[0] = -1
        return super().apply(step, operation)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_context_is_found(seed: int) -> None:
    """E2: from each of three seeds, without a look inside."""
    with pytest.raises(InvariantViolation) as caught:
        drive(machine_of(LosesRows), seed, 300)
    assert caught.value.law in {"E2", "C3", "E4", "E1"}


def test_a_rival_has_the_hash_of_what_is_there() -> None:
    """C3: its tokens are others; where hashes are whole there is none."""
    weak = make_machine(RequestMachine, "requests", {**CONFIG, "hash_digits": 1})()
    assert not weak.has_rivals
    weak.add(2, 0, 3, 0, 0)
    weak.serve(0, 0, 1)
    assert weak.has_rivals
    weak.add_rival(0, 1, 2)
    assert weak.examiner.judge.evidence.reached["a hash names a block of other content"] == 1
    prompts = [request.tokens[: request.prompt] for request in weak.model.served.values()]
    assert prompts[0][:4] == prompts[1][:4]
    assert prompts[0][4:7] == prompts[1][4:7]
    assert prompts[0][7] != prompts[1][7]
    strong = make_machine(RequestMachine, "requests", CONFIG)()
    strong.add(2, 0, 3, 0, 0)
    assert not strong.has_rivals


def test_all_are_set_aside_until_they_keep_too_much() -> None:
    """C1: the limit on what paused requests keep is met."""
    machine = make_machine(RequestMachine, "requests", CONFIG)()
    for turn in (0, 3):
        machine.add_longest(turn, 1, 0)
    machine.pause_all(0)
    assert machine.examiner.judge.evidence.reached["a pause would keep too many blocks"] >= 1
