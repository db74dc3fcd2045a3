"""What is read of searches arrives where it belongs."""

from __future__ import annotations

from pymllm.report.documents import read_document
from pymllm.report.search_documents import FaultsDocument, SituationsDocument, SoakDocument, VerifyDocument
from tests.unit.report import samples


def test_laws_and_violations_of_a_search_arrive() -> None:
    """With the configuration as it was."""
    verify = read_document(samples.verify())
    assert isinstance(verify, VerifyDocument)
    assert verify.adapters[0].violations[0].config == {"max_reqs": 1, "window": None}
    assert verify.adapters[1].laws[0].tests == 1234


def test_detections_of_faults_arrive() -> None:
    """One for each seed."""
    faults = read_document(samples.faults())
    assert isinstance(faults, FaultsDocument)
    assert [it.operations for it in faults.faults[0].detections] == [20, 200]


def test_failures_of_a_soak_arrive() -> None:
    """Without a law where the adapter could not be asked."""
    soak = read_document(samples.soak(samples.soak_failure(None)))
    assert isinstance(soak, SoakDocument)
    assert soak.adapters[0].failures[0].failure.law is None


def test_laws_of_situations_arrive() -> None:
    """By situation."""
    situations = read_document(samples.situations())
    assert isinstance(situations, SituationsDocument)
    assert situations.situations[0].laws == ("P2",)
