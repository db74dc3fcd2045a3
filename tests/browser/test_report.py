"""The page of ``pymllm report``, made by the commands and opened in a browser, offline."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pymllm.documents.searches import VerifyDocument
from pymllm.report.loading import load_runs
from pymllm.report.records import Curve, Figure, Histogram
from pymllm.report.store import make_header, write_run

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """A browser of this machine; ``PYMLLM_BROWSER`` names another."""
    return os.environ.get("PYMLLM_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed; tox -e report has it"
    )
    executable = find_browser()
    if executable is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path; PYMLLM_BROWSER may name one")
    with api.sync_playwright() as play:
        # Without the sandbox, which root may not use; the page is our own, and the browser is offline.
        opened = play.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield opened
        opened.close()


def pymllm(folder: Path, *arguments: str) -> str:
    """Run a command to an end that is a verdict."""
    command = [sys.executable, "-m", "pymllm", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of short real runs, and figures of two days and two versions of a benchmark."""
    folder = tmp_path_factory.mktemp("report")
    kept = ("--store", "store", "--jobs", "1")
    pymllm(folder, "verify", "--adapter", "rows", "--adapter", "faulty-dirty-rows", "--examples", "40", *kept)
    for adapter, release in (("faulty-guests", "router==1.0"), ("index-dict", "router==1.1")):
        pymllm(folder, "verify", "--adapter", adapter, "--examples", "40", "--release", release, *kept)
    pymllm(folder, "faults", "hunt", "faulty-slot-zero", "faulty-dirty-rows", *kept)
    pymllm(folder, "soak", "--adapter", "rows", "--operations", "2000", "--seed", "1", *kept)
    for capacity in ("2k", "4k"):
        pymllm(folder, "replay", "chat", "--requests", "20", "--capacity", capacity, "--store", "store")
    pymllm(folder, "doctor", "--store", "store")
    for value, code in ((10.0, "one"), (8.0, "one"), (3.0, "two"), (3.1, "two")):
        write_run(
            folder / "store",
            make_header("benchmark"),
            [
                *(
                    Figure(
                        f"match: {it}", value, "us", "smaller", value - 1, value + 1, code=code, plot="match"
                    )
                    for it in ("median", "p99")
                ),
                Figure("insert", value, "us", "smaller"),
                Histogram("match", "us", (1.0, 2.0, 4.0), (3, 5, 2)),
                Curve(
                    "device", "bytes", "seconds", (0.0, 1.0), (1 << 20, 3 << 20), verdict="flat", good=True
                ),
            ],
        )
    pymllm(folder, "report", "store", "-o", "report.html", "--title", "Nightly")
    return folder


@pytest.fixture(scope="module", params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Any, folder: Path) -> Iterator[Any]:
    """The page as a reader has it, with everything that went wrong while it was shown."""
    context = browser.new_context(
        color_scheme=request.param, offline=True, viewport={"width": 1280, "height": 800}
    )
    context.set_default_timeout(10_000)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.goto((folder / "report.html").as_uri())
    yield page
    context.close()
    assert wrong == []


def cell(page: Any, row: str, column: int) -> str:
    return str(page.locator(f"tr:has(th:text-is('{row}')) >> td").nth(column).inner_text())


def test_the_page_shows_the_numbers_of_its_runs(page: Any, folder: Path) -> None:
    """Laws, faults, soaks and hit rates, read off the page as a reader sees them."""
    assert page.locator("h1").inner_text() == "Nightly"
    (document,) = (
        it
        for run in load_runs([folder]).runs
        for it in run.documents
        if isinstance(it, VerifyDocument) and it.release is None
    )
    tested = {law.id: law.tests for law in document.adapters[0].laws}
    assert cell(page, "P3", 1) == f"✓ {tested['P3']:,}"
    assert cell(page, "P2", 2) == "✗ violated"
    tiles = page.locator(".tile").all_inner_texts()
    assert any(re.fullmatch(r"2 of 2\s+planted faults caught", tile) for tile in tiles)
    assert cell(page, "faulty-slot-zero", 2) == "✓ caught"
    rates = page.locator("#hit-rate tbody tr >> td:nth-of-type(3)").all_inner_texts()
    assert len(rates) == 2
    assert all(re.fullmatch(r"\d+\.\d %", rate) for rate in rates)


def test_a_violation_leads_to_its_program_and_the_program_can_be_saved(page: Any, folder: Path) -> None:
    """By the keyboard: focus on the cell, and Enter; then the file is what pymllm rerun takes."""
    page.locator("td.bad a").first.focus()
    page.keyboard.press("Enter")
    card = page.locator(".card:target")
    assert card.is_visible()
    assert card.locator("h3").inner_text().startswith("P2 VIOLATED by faulty-dirty-rows")
    with page.expect_download() as saved:
        card.get_by_text("Save the program").click()
    file = folder / "saved.jsonl"
    saved.value.save_as(file)
    assert "P2" in pymllm(folder, "rerun", str(file), "--adapter", "faulty-dirty-rows")


def test_every_picture_is_drawn_as_it_is_reached_and_fits(page: Any) -> None:
    """None is empty, and none is wider than the page."""
    for element in page.locator(".pictures").all():
        element.scroll_into_view_if_needed()
        element.locator(".cartesianlayer path").first.wait_for(state="attached")
        for picture in element.locator(":scope > div").all():
            box = picture.bounding_box()
            assert box["height"] >= 150
            assert box["x"] + box["width"] <= 1280
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_releases_stand_beside_each_other(page: Any) -> None:
    """In the picture and in the table: the newest is on the left, with nothing that was not searched."""
    section = page.locator("#releases")
    section.scroll_into_view_if_needed()
    picture = section.locator(".pictures")
    picture.locator(".cartesianlayer path").first.wait_for(state="attached")
    assert picture.locator(".xtick text").all_text_contents() == ["1.1", "1.0"]
    assert picture.locator(".ytick text").first.text_content() == "I1"
    head, *lines = section.locator("table tr").all_inner_texts()
    assert head.split("\t")[-2:] == ["1.1", "1.0"]
    assert lines[0].split("\t")[-2:] == ["not searched", "✗ violated"]


def test_a_choice_changes_the_pictures(page: Any) -> None:
    """Figures of one benchmark stand beside each other with short titles; two codes are two lines of each."""
    select = page.get_by_label("Figures", exact=True)
    plot = page.locator("#plot-trends")
    select.select_option(label="match")
    plot.get_by_text("p99: ").wait_for()
    titles = plot.locator(":scope > div > p").all_inner_texts()
    assert titles == [f"{it}: µs, smaller is better" for it in ("median", "p99")]
    names = plot.locator(":scope > div").first.locator(".legendtext")
    names.first.wait_for()
    assert sorted(text.rsplit(" ", 1)[1] for text in names.all_text_contents()) == ["one", "two"]
    other = page.evaluate(
        "[...document.querySelectorAll('#plot-trends-choice option')].map((it) => it.label)"
    )
    select.select_option(label=next(it for it in other if it != "match"))
    plot.get_by_text("p99: ").wait_for(state="detached")


def test_the_switch_wins_over_the_system(page: Any) -> None:
    """And pictures follow."""

    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    switch = page.get_by_label("Colours")
    switch.select_option("dark")
    assert background() == "rgb(15, 18, 22)"
    switch.select_option("light")
    assert background() == "rgb(255, 255, 255)"


def test_the_verdict_and_the_violation_come_first(page: Any) -> None:
    """The banner leads to the violation, which has its picture."""
    page.locator(".verdict a").click()
    card = page.locator("#laws .card").first
    assert card.bounding_box()["y"] < page.locator("#laws table").first.bounding_box()["y"]
    assert "violates P2" in card.locator("svg title").first.text_content()


def test_a_table_can_be_searched_and_cut_down(page: Any) -> None:
    """A search hides the rows that do not match, and the number of rows that are left is shown."""
    unfold(page)
    line = page.locator(".find").filter(visible=True).first
    rows = line.locator("xpath=following::table[1]").locator("tbody tr")
    words = rows.first.locator("th").inner_text()
    line.get_by_label("Find").fill(words)
    assert all(words in text for text in rows.filter(visible=True).all_inner_texts())
    assert re.fullmatch(r"\d+ of \d+ rows", line.locator("span").inner_text())
    line.get_by_label("Find").fill("")
    assert rows.filter(visible=True).count() == rows.count()


def test_a_hint_is_shown_by_keyboard_and_pointer(page: Any) -> None:
    """Focus shows it, arrows lead to the next one, Escape hides it."""
    hint = page.locator("#hint")
    first, second = page.locator("#laws table").first.locator("[data-hint]").all()[:2]
    first.focus()
    assert hint.inner_text() == first.get_attribute("data-hint")
    page.keyboard.press("ArrowRight")
    assert hint.inner_text() == second.get_attribute("data-hint")
    assert second.get_attribute("aria-describedby") == "hint"
    page.keyboard.press("Escape")
    assert hint.is_hidden()
    first.hover()
    assert hint.is_visible()
    page.keyboard.press("Escape")


def test_the_page_passes_an_accessibility_check(page: Any) -> None:
    """On a wide screen, light and dark."""
    assert_accessible(page)


def test_words_are_explained_behind_a_line_and_violations_say_since_when(page: Any) -> None:
    """The legend of a section opens by the keyboard; a card names the first run that broke the law."""
    words = page.locator("#laws details.words")
    words.evaluate("it => { it.open = false; }")
    words.locator("summary").focus()
    page.keyboard.press("Enter")
    assert words.get_by_text("The law applies, and no program tested it.").is_visible()
    since = page.locator("#laws .card dt", has_text="since").locator("xpath=following-sibling::dd[1]")
    assert "no run has tested the law since" in since.first.inner_text()


def test_changes_since_the_run_before_are_a_section(page: Any) -> None:
    """Of the newest two runs of a kind: here a benchmark's."""
    assert cell(page, "benchmark", 5) == "3"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 820])
def test_a_narrow_screen_shows_the_page_without_scrolling_sideways(
    browser: Any, folder: Path, width: int, scheme: str
) -> None:
    """Tables scroll by themselves; and the first stop of the keyboard leads past the head."""
    context = browser.new_context(
        viewport={"width": width, "height": 844}, is_mobile=width < 400, offline=True, color_scheme=scheme
    )
    context.set_default_timeout(10_000)
    page = context.new_page()
    page.goto((folder / "report.html").as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    unfold(page)
    for element in page.locator(".pictures").all():
        element.scroll_into_view_if_needed()
        element.locator("svg.main-svg").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert_accessible(page)
    context.close()


def unfold(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((it) => { it.open = true; })")


def assert_accessible(page: Any) -> None:
    """axe-core's rules of WCAG 2.1, levels A and AA, with everything unfolded."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="tox -e report brings axe")
    unfold(page)
    rules = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}
    found = axe.Axe().run(page, options=rules)
    assert found.violations_count == 0, found.generate_report()
