"""The specification's pages: every law printed as it is, its programs judged, every reference followed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pymllm.faults.table import PLANTED
from pymllm.history.files import History, load_histories
from pymllm.oracle.judge import judge_steps
from pymllm.oracle.laws import LAWS, SPECIFICATION, Law
from pymllm.oracle.runs import find_contradiction
from pymllm.search.program import rerun_history

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "specification"
PAGES = sorted(FOLDER.glob("*.md"))
PROGRAMS = {name: it for path in FOLDER.glob("programs/*.jsonl") for name, it in load_histories(path).items()}

UNCOUNTED = {
    "P4": "a shape is compared in each look, which counts once something was written",
    "M3": "a split that leaves states in place counts where the lower half had one and the upper has none",
}
"""Laws whose kept program does not count as a test of them, although the same step breaks them otherwise."""

each_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)
STEPWISE = tuple(law for law in LAWS if not law.is_of_runs)
each_stepwise_law = pytest.mark.parametrize("law", STEPWISE, ids=lambda law: law.id)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def program(law: Law, verb: str) -> History:
    """One of a law's two programs: keeps or breaks."""
    return PROGRAMS[f"{law.id}-{verb}"]


@each_page
@pytest.mark.usefixtures("builder")
def test_a_page_has_its_laws_as_they_are(page: Path) -> None:
    """After a change of laws, faults or programs: python docs/builder/specification.py."""
    from specification import make_page

    text = page.read_text(encoding="utf-8")
    assert text == make_page(text)


@each_law
def test_every_law_is_printed_once_on_its_page(law: Law) -> None:
    """Where `Law.source` says that it is."""
    assert [page.stem for page in PAGES if f"\n### {law.id}\n" in page.read_text(encoding="utf-8")] == [
        law.page
    ]


def test_the_programs_of_a_page_are_in_its_file() -> None:
    """By their names, in the order of the laws; and there are no others."""
    for path in FOLDER.glob("programs/*.jsonl"):
        laws = [law.id for law in STEPWISE if law.page == path.stem]
        assert list(load_histories(path)) == [f"{id}-{verb}" for id in laws for verb in ("keeps", "breaks")]
    assert len(PROGRAMS) == 2 * len(STEPWISE)


@each_stepwise_law
def test_one_program_keeps_a_law_and_the_same_operations_break_it(law: Law) -> None:
    """Judged by their outcomes alone; a program whose law takes two runs (X3) is played again."""
    kept, broken = program(law, "keeps"), program(law, "breaks")
    assert [step.operation for step in kept.steps] == [step.operation for step in broken.steps]
    evidence, violation = judge_steps(kept.header, kept.steps)
    assert violation is None
    _, violation = judge_steps(broken.header, broken.steps)
    if violation is None:
        again = rerun_history(broken, broken.header.adapter).violation
        assert again is not None
        assert (law.id, again.law) == ("X3", "X3")
    else:
        assert violation[1].law == law.id
        assert bool(evidence.exercised[law.id]) == (law.id not in UNCOUNTED)


@each_stepwise_law
def test_the_program_that_keeps_a_law_is_what_our_class_does(law: Law) -> None:
    """Played again it has the same outcomes; so does the other one on the class that is wrong, but for X3."""
    for verb in ("keeps", "breaks") if law.id != "X3" else ("keeps",):
        history = program(law, verb)
        again = rerun_history(history, history.header.adapter)
        assert again.differences == ()


@pytest.mark.usefixtures("builder")
def test_a_run_of_a_law_is_counted_as_our_engine_does() -> None:
    """E6: played again it has the same counters, sound or with its fault, which the judge tells apart."""
    from specification import count_run, run_of_law

    for law in set(LAWS) - set(STEPWISE):
        run = run_of_law(law)
        fault = next(it for it in PLANTED if it.id == run["fault"])
        assert (count_run(run), count_run(run, fault.edits)) == (run["keeps"], run["breaks"])
        assert law.id in fault.laws
        assert find_contradiction(run["keeps"]) is None
        assert find_contradiction(run["breaks"]) is not None


def test_the_version_is_told_where_people_look_for_it() -> None:
    """The page's and the package's are the same."""
    assert f"Version {SPECIFICATION}." in (FOLDER / "index.md").read_text(encoding="utf-8")


REFERRED = re.compile(r"\b(docs/[\w/-]+(?:\.\w+)*\.(?:md|jsonl|py))(?:#([\w-]+))?")
# Each is written so that it does not match its own line.
ELSEWHERE = re.compile(r"\b[Tt]he contrac[t]\b|\b[Cc]ontrac[t], section|\b[Tt]he catalogu[e]\b")
FOLDERS = ("src", "tests", "docs", "examples", "benchmarks")
TEXTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(file for it in FOLDERS for file in (ROOT / it).rglob("*"))]
    if path.suffix in (".py", ".md")
)


def places_of(page: Path) -> set[str]:
    """Headings of a page, as links name them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_nothing_refers_to_a_text_that_is_not_here() -> None:
    """Every text that a sentence cites is in the repository, or is linked."""
    found = [
        (str(path), hit[0]) for path in TEXTS if (hit := ELSEWHERE.search(path.read_text(encoding="utf-8")))
    ]
    assert found == []
    assert ELSEWHERE.search("as the contrac" + "t says")


def test_every_page_that_a_source_names_is_there() -> None:
    """Docstrings, comments and messages: the file, and the place in it."""
    missing = []
    for path in TEXTS:
        if path.suffix == ".py":
            for name, place in REFERRED.findall(path.read_text(encoding="utf-8")):
                page = ROOT / name
                if not page.is_file() or (place and place not in places_of(page)):
                    missing.append((str(path.relative_to(ROOT)), name, place))
    assert missing == []


@each_law
def test_the_source_of_a_law_is_a_place_that_there_is(law: Law) -> None:
    """A reader of a law's source in a document finds the text."""
    name, _, place = law.source.partition("#")
    assert place in places_of(ROOT / name)


@each_page
def test_every_law_that_a_page_names_is_one(page: Path) -> None:
    """Every id in a text is the id of an existing law."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"`[^`]*`|```.*?```", "", text, flags=re.DOTALL)
    assert set(re.findall(r"\b([XAPKHRSMCEI]\d{1,2})\b", prose)) <= {law.id for law in LAWS}


@pytest.mark.usefixtures("builder")
def test_the_page_of_servers_has_their_laws_as_they_are() -> None:
    """After a change of these laws: python docs/builder/servers_page.py."""
    from servers_page import PAGE, make_servers_page

    text = PAGE.read_text(encoding="utf-8")
    assert text == make_servers_page()
    assert re.findall(r"^## (\w+)$", text, flags=re.MULTILINE) == [
        f"{letter}{number}" for letter, last in (("V", 7), ("W", 8)) for number in range(1, last + 1)
    ]
