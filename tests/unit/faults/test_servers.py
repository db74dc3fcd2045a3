"""Faults of servers: the table, and a few of them put into the embedded server and probed."""

from __future__ import annotations

import json

import pytest

from pymllm.faults.detection import HuntPlan, HuntTask
from pymllm.faults.fault import Fault
from pymllm.faults.plant import planted
from pymllm.faults.servers import hunt_by_probe
from pymllm.faults.table import PLANTED, SERVERS, bug_of, find_faults
from pymllm.probing import player
from pymllm.probing.laws import LAWS
from pymllm.probing.search import ProbePlan
from pymllm.probing.shrinking import Shrinker
from pymllm.serving.tiny_model import ARCHITECTURES
from pymllm.watching.laws import LAWS as LAWS_OF_STREAMS
from tests.unit.cli.typed import refused, typed

each_fault = pytest.mark.parametrize("fault", SERVERS, ids=lambda fault: fault.id)


@each_fault
def test_every_fault_of_servers_can_be_planted_and_blamed(fault: Fault) -> None:
    """In an architecture that there is, by a law of servers; what has an id of a bug is that bug."""
    assert {*fault.adapters} <= {*ARCHITECTURES}
    assert {*fault.laws} <= {*LAWS, *LAWS_OF_STREAMS}
    assert (bug_of(fault) is not None) == (not fault.id.startswith("server-"))
    with planted(fault.edits):
        assert fault.searchers == ("probe",)


def test_what_is_not_edited_otherwise_is_planted_as_in_the_engine() -> None:
    """Six of the bugs are in the engine, which this server runs on."""
    edits = {fault.id: fault.edits for fault in PLANTED}
    alike = {fault.id for fault in SERVERS if edits.get(fault.entry) == fault.edits}
    assert alike == {f"{id}-server" for id in ("B70", "B89", "B109", "B121", "B29", "B98")}


@pytest.mark.parametrize("id", ["B152-server", "server-counts-pages", "server-counts-hits-twice"])
def test_a_fault_is_caught_by_a_law_of_its_list(id: str) -> None:
    """With as many requests as it took, and the settings in which it shows."""
    result = typed("faults", "probe", id, "--json", "--jobs", 1, "--requests", 30)
    (row,) = json.loads(result.stdout)["faults"]
    (found,) = row["detections"]
    assert (result.exit_code, row["caught"], found["searcher"]) == (0, True, "probe")
    assert found["law"] in row["laws"]
    assert 12 <= found["operations"] <= 42


def test_an_interrupt_of_the_shrinking_ends_the_hunt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no detection without a smaller program."""

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Shrinker, "_shows", interrupted)
    (fault,) = find_faults(["B273-server"], SERVERS)
    with pytest.raises(KeyboardInterrupt):
        hunt_by_probe(ProbePlan(requests=20, max_tokens=2), HuntTask(fault, HuntPlan(shrinks=1)))


def test_a_fault_that_does_not_show_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request behind the measurement crosses nothing: status 1, and how many were made."""
    monkeypatch.setattr(player, "REST_SECONDS", 0.3)
    result = typed("faults", "probe", "B143-server", "--jobs", 1, "--requests", 1)
    assert result.exit_code == 1
    assert "not caught in 13 requests; dense: nothing broke a law" in result.stdout


def test_faults_of_servers_and_of_classes_are_told_apart() -> None:
    """The list has both; the hunt for one refuses the other."""
    listed = typed("faults", "list", "B273-server", "B01").stdout
    assert [line.split()[0] for line in listed.splitlines()] == ["B273-server", "B01"]
    refused("faults", "hunt", "B273-server", words="is a fault of a server; pymllm faults probe plants it")
    refused("faults", "probe", "B01", words="no fault 'B01'")
