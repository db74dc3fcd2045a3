"""Probes of the embedded server: nothing where it is right, and planted faults, with a small program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pymllm.faults.plant import Edit, planted
from pymllm.faults.table import SERVERS, find_faults
from pymllm.oracle.verdicts import Verdict
from pymllm.probing import player
from pymllm.probing.clients import Client, connect, make_http
from pymllm.probing.judge import judge
from pymllm.probing.laws import LAWS
from pymllm.probing.records import Ask, Cold, Head, History, Reset, Step, read_history, write_history
from pymllm.probing.search import ProbePlan, Servers, play_again, probe, shrink
from pymllm.probing.shrinking import Program, Shrinker
from pymllm.probing.telling import lines_of
from pymllm.serving.background import serving
from pymllm.serving.service import ServerConfig, Service
from pymllm.signals import Terminated
from tests.unit.cli.typed import typed

EMPTIES_NOTHING = Edit("pymllm.serving.service:Service._reset", "engine.evict_everything()", "pass")
LEFT = "a reset of the cache succeeded, and left cached tokens of an earlier request"
PLAN = ProbePlan(requests=20, longest=96, max_tokens=2)


@contextmanager
def embedded(architecture: str = "dense") -> Iterator[Servers]:
    """A server of our own, and a client of it."""
    with serving(Service(ServerConfig(architecture))) as url, make_http(url, 60) as http:
        yield Servers(connect(http, "auto"))


@pytest.mark.parametrize("architecture", ["dense", "window", "hybrid"])
def test_a_right_server_keeps_every_law(architecture: str) -> None:
    """Every law is tested, and warm answers are cold ones but for rounding."""
    with embedded(architecture) as servers:
        done = probe(servers, replace(PLAN, seed=1))
    assert (done.failure, done.judgement.violation) == (None, None)
    assert {done.judgement.verdict_of(law) for law in LAWS} == {Verdict.HOLDS}
    assert done.judgement.largest < 1e-5
    assert done.requests >= 20


@pytest.mark.parametrize(("law", "id"), [("V1", "B70-server"), ("V5", "B273-server")])
def test_a_planted_fault_is_found_and_shrunk(law: str, id: str) -> None:
    """Its law is named, the smallest program shows it, and says so when it is judged from its file alone."""
    (fault,) = find_faults([id], SERVERS)
    with planted(fault.edits), embedded(fault.adapters[0]) as servers:
        done = probe(servers, PLAN)
        assert done.judgement.violation is not None
        assert done.judgement.violation.law == law
        shrink(servers, done, 4)
    assert done.smallest is not None
    assert done.unshrunk is None
    # V1 shows in the measurement already, whose steps take longer to leave out than this test has.
    assert len(done.smallest.steps) <= (4 if law == "V5" else len(done.history.steps) - 1)
    again = judge(done.smallest).violation
    assert again is not None
    assert again.law == law


def test_a_server_is_started_again_for_the_first_and_the_last_try() -> None:
    """Between them its namespaces are fresh."""
    (fault,) = find_faults(["B273-server"], SERVERS)
    starts = list[int]()
    with planted(fault.edits), embedded() as servers:

        def renew() -> Client:
            starts.append(len(starts))
            servers.client.reset()  # as a new process
            return servers.client

        done = probe(servers, PLAN)
        shrink(replace(servers, renew=renew), done, 20)
    assert done.smallest is not None
    assert len(done.smallest.steps) == 2
    assert len(starts) == 2 < done.tries


def test_what_a_new_server_does_not_show_is_not_shrunk() -> None:
    """A program that shows only on the server that was probed is not kept, and said not to show again."""
    (fault,) = find_faults(["B273-server"], SERVERS)
    with ExitStack() as plants, embedded() as servers:
        plants.enter_context(planted(fault.edits))
        done = probe(servers, PLAN)
        renewed = list[int]()

        def renew() -> Client:
            renewed.append(1)
            if len(renewed) > 1:
                plants.close()  # the fault is gone
            return servers.client

        shrink(replace(servers, renew=renew), done, 3)
    assert (done.smallest, len(renewed) > 3) == (None, True)
    assert "did not show again" in str(done.unshrunk)


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
@pytest.mark.parametrize("has_smaller", [True, False])
def test_an_interrupt_of_the_shrinking_loses_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: KeyboardInterrupt,
    status: int,
    has_smaller: bool,
) -> None:
    """The violation is told, and the smallest program so far is kept; before any, the whole one is."""
    shows = Shrinker._shows

    def interrupted(self: Shrinker, program: Program) -> bool:
        if has_smaller and self.smallest is None:
            return shows(self, program)
        raise error

    monkeypatch.setattr(Shrinker, "_shows", interrupted)
    (fault,) = find_faults(["B273-server"], SERVERS)
    words = ("probe", "--demo", "--output", tmp_path, "--progress", "off", "--json")
    with planted(fault.edits):
        result = typed(*words, "--requests", 20, "--longest", 96, "--max-tokens", 2)
    document = json.loads(result.stdout)
    assert (result.exit_code, document["verdict"], document["violation"]["law"]) == (status, "violated", "V5")
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"probe-V5-whole.jsonl", *(["probe-V5.jsonl"] if has_smaller else [])}
    assert Path(document["output"]).name == ("probe-V5.jsonl" if has_smaller else "probe-V5-whole.jsonl")
    found = judge(read_history(Path(document["output"]))).violation
    assert found is not None
    assert found.law == "V5"
    told = document["notes"][-1] if has_smaller else document["unshrunk"]
    assert told.endswith("shrinking was interrupted")
    assert bool(document["program"]) is has_smaller


def test_what_is_held_for_ever_is_found_and_not_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """V6 would show in every later try, too, whatever that asks."""
    monkeypatch.setattr(player, "REST_SECONDS", 0.3)  # what it waits for never comes
    (fault,) = find_faults(["B29-server"], SERVERS)
    with planted(fault.edits), embedded() as servers:
        done = probe(servers, PLAN)
        assert done.judgement.violation is not None
        assert done.judgement.violation.law == "V6"
        shrink(servers, done, 4)
    assert "--start" in str(done.unshrunk)


def test_what_a_reset_leaves_behind_is_found() -> None:
    """Cached tokens behind a reset that no prompt since explains: V4; without the fault nothing is found."""
    prompt = tuple(range(32, 96))
    steps = tuple(Step(operation=it) for it in (Ask(1, prompt, 1), Reset(), Ask(2, prompt, 1), Cold((2,))))
    head = Head(server="pymllm", api="openai", cold="salt", has_salts=True, is_clean=True)
    with embedded() as servers:
        right = play_again(servers, History(head, steps), PLAN).judgement
        with planted([EMPTIES_NOTHING]):
            wrong = play_again(servers, History(head, steps), PLAN).judgement
    assert right.violation is None
    assert wrong.violation is not None
    found = wrong.violation
    assert (found.law, found.expected, found.observed) == ("V4", "at most 0", "48")
    assert found.message == LEFT


@pytest.mark.parametrize("has_salts", [True, False])
def test_a_reset_that_empties_nothing_is_shrunk(has_salts: bool) -> None:
    """To a request, the reset and a request; also where the cache could not be emptied between two tries."""
    with planted([EMPTIES_NOTHING]), embedded() as servers:
        servers.client.has_salts = has_salts
        done = probe(servers, replace(PLAN, requests=60, seed=2))
        shrink(servers, done, 20)
    assert (done.judgement.violation is not None, done.unshrunk) == (True, None)
    assert done.smallest is not None
    first, *rest = done.smallest.program
    assert isinstance(first, Ask)
    if has_salts:
        assert [type(it) for it in rest] == [Reset, Ask]
        assert lines_of(done.smallest)[1] == "2  the cache is emptied"
    else:  # there each cold request is behind a reset
        assert rest == [Cold((first.id,))]
        assert lines_of(done.smallest)[1] == f"2  request {first.id} again, behind an emptied cache"
    again = judge(done.smallest).violation
    assert again is not None
    assert (again.law, again.message) == ("V4", LEFT)


def test_the_requests_of_a_file_are_made_again(tmp_path: Path) -> None:
    """By rerun, of a right server: nothing is broken, whatever the file's answers were."""
    prompt = tuple(range(32, 96))
    operations = (Ask(1, prompt, 1), Ask(2, prompt, 1), Cold((2,)))
    head = Head(server="pymllm", api="openai", cold="salt", has_salts=True, is_clean=True)
    with serving(Service(ServerConfig())) as url, make_http(url, 60) as http:
        program = History(head, tuple(Step(operation=it) for it in operations))
        write_history(
            play_again(Servers(connect(http, "auto")), program, PLAN).history, tmp_path / "it.jsonl"
        )
        result = typed("rerun", tmp_path / "it.jsonl", "--url", url, "--json")
    document = json.loads(result.stdout)
    assert (document["requests"], document["violation"]) == (2, None)
    assert {law["id"]: law["tests"] for law in document["laws"]}["V1"] == 1
