"""Tests of words from foreign files, printed without markup, escape sequences or lines of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pymllm.cli import tables
from pymllm.cli.output import say
from pymllm.cli.results.report import FORMATS
from tests.unit.cli.typed import Terminal, typed
from tests.unit.report import samples

STRANGE = "\x1b]0;mine\x07\x1b[8m<img src=//host>`|\x9b2J\u202e @team\r\nR6  VIOLATED by me"
FORGED = "R6  VIOLATED by me"

DOCUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "verify": lambda: samples.verify(release=samples.release("1.0")),
    "faults": lambda: samples.faults(
        samples.fault("B1", samples.detection(0, "machine", 3)), samples.fault("B2")
    ),
    "soak": lambda: samples.soak(samples.soak_failure("P2"), samples.soak_failure(None)),
    "replay": lambda: samples.replay(samples.engine_run()),
    "peers": lambda: samples.peers(samples.scenario()),
}


def names_in(plain: Any) -> set[str]:
    """The fields of a document, and of all that is in it, that hold a string or some."""
    if isinstance(plain, list):
        return set().union(*map(names_in, plain))
    if not isinstance(plain, dict):
        return set()
    own = {name for name, value in plain.items() if _is_text(value)}
    return own.union(*map(names_in, plain.values()))


def _is_text(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and any(isinstance(it, str) for it in value))


def spoilt(plain: Any, name: str) -> Any:
    """Return a copy with strange words in each field of a name, at any depth."""
    if isinstance(plain, list):
        return [spoilt(it, name) for it in plain]
    if not isinstance(plain, dict):
        return plain
    found = {key: spoilt(value, name) for key, value in plain.items()}
    for key, value in plain.items():
        if key == name and _is_text(value):
            found[key] = STRANGE if isinstance(value, str) else [STRANGE for _ in value]
    return found


def strange_files(folder: Path, document: str) -> Iterator[Path]:
    """A file for each field, and one with all that are taken."""
    plain = DOCUMENTS[document]()
    for name in sorted(names_in(plain) - {"schema"}):
        yield samples.write(folder / f"{name}.json", spoilt(plain, name))


def printable(*words: object) -> str:
    result = typed(*words)
    assert result.exit_code in (0, 2), result.output
    told = [*result.stdout.split("\n"), *result.stderr.split("\n")]
    assert [line for line in told if not line.replace("\t", "").isprintable()] == []
    return result.stdout


def check_lines(*words: object) -> None:
    assert f"\n{FORGED}" not in f"\n{printable(*words)}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_feed_has_no_markup_and_no_control_characters(document: str, tmp_path: Path) -> None:
    """X1: whatever field of a document they are in; each feed is still what it is."""
    for file in strange_files(tmp_path, document):
        for form in FORMATS:
            if form != "html":
                text = printable("report", file, "--format", form)
                assert not text or CHECKS.get(form, json.loads)(text) is not None
        check_lines("report", file, "--trend", "")
        check_lines("diff", file, file)


def _check_summary(text: str) -> bool:
    assert "<img" not in text
    for line in text.splitlines():  # a mention or a link is none in code
        outside = "".join(part.partition("</code>")[2] for part in ("</code>" + line).split("<code>"))
        assert "@team" not in outside
    return True


CHECKS: dict[str, Callable[[str], object]] = {
    "summary": _check_summary,
    "openmetrics": lambda text: list(text_string_to_metric_families(text)),
    "junit": ElementTree.fromstring,
}


def test_a_judged_program_forges_no_line(tmp_path: Path) -> None:
    """X1: the name of an adapter and of a key of its configuration are a stranger's, too."""
    header = {
        "format": "pymllm-history",
        "schema": 1,
        "adapter": STRANGE,
        "kind": "rows",
        "config": {STRANGE: 1},
    }
    check_lines("judge", samples.write(tmp_path / "it.jsonl", header))


def test_only_what_is_drawn_has_styles(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: on a terminal, words of a file are no more styled than elsewhere; those that pymllm draws are."""
    monkeypatch.setattr(tables, "terminal_width", lambda: 100)
    monkeypatch.setenv("TERM", "xterm")
    table = tables.make_table("name", rows=[["\x1b[8mhidden\nR6"]])
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    say(tables.draw(table, ("\x1b[8mbold", "bold"), fits_terminal=True), styled=True)
    say("\x1b[8mhidden\ttab")
    shown = terminal.getvalue()
    assert "\x1b[8m" not in shown
    assert "\x1b[1m\\x1b[8mbold" in shown
    assert "\\x1b[8mhidden\\nR6" in shown
    assert "\\x1b[8mhidden\ttab\n" in shown
