"""The page: what it is made of, and one file, whole, and safe with whatever the runs have in them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from pymllm.report.blocks import Card, Cell, Choice, Panel, Part, Plot, Table, Text, anchor_of
from pymllm.report.documents import DOCUMENTS
from pymllm.report.loading import LoadedRuns, Run
from pymllm.report.page import make_page
from pymllm.report.quantities import (
    log_ticks,
    machine_name,
    scale_of,
    show,
    show_count,
    show_share,
    show_time,
)
from pymllm.report.sections import SECTIONS, TEXTS, make_sections
from tests.unit.report import samples
from tests.unit.report.test_sections_of_figures import CURVE, HISTOGRAM
from tests.unit.report.test_trends import FIGURE, OTHER

# -- quantities ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "unknown"),
        (1.25e-5, "s", "12.5 µs"),
        (0.9999999, "s", "1 s"),
        (0.99996, "s", "1 s"),
        (3, "ms", "3 ms"),
        (2000, "us", "2 ms"),
        (0, "us", "0 ns"),
        (0.4, "ns", "0.4 ns"),
        (250 << 20, "bytes", "250 MiB"),
        (10, "bytes", "10 bytes"),
        (3 << 29, "bytes", "1.5 GiB"),
        (-(1 << 20), "bytes", "-1 MiB"),
        (0.1234, "share", "12.3 %"),
        (1234, "tokens", "1,234 tokens"),
        (7, "", "7"),
        (0.25, "", "0.25"),
    ],
)
def test_a_number_is_shown_in_the_unit_that_people_read(value: float | None, unit: str, text: str) -> None:
    """Three digits."""
    assert show(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (200, "200"), (229.97, "230"), (1234567, "1,234,567"), (1234.5, "1,234"), (100.4, "100"),
        (1.5, "1.5"), (0.001234, "0.00123"), (-2.5, "-2.5"), (1e-20, "0"),
    ],
)  # fmt: skip
def test_zeros_that_belong_to_a_number_stay(value: float, text: str) -> None:
    """230 is not 23."""
    assert show_count(value) == text


def test_machines_shares_and_times_are_short() -> None:
    """A machine's own name, or its processor's, with the GPU that it is about; per cent, and seconds."""
    assert show_share(0.5) == "50.0 %"
    assert show_time("2026-11-21T15:03:11.123Z") == show_time("2026-11-21T15:03:11Z") == "2026-11-21 15:03:11"
    assert machine_name(samples.MACHINE) == f"rack 3, Some GPU ({samples.MACHINE.fingerprint})"
    assert machine_name(OTHER) == f"Another Processor ({OTHER.fingerprint})"
    assert machine_name(None) == "machine not recorded"


@pytest.mark.parametrize(
    ("values", "unit", "shown", "unit_shown"),
    [
        ([0.001, 0.02], "s", 20.0, "ms"),
        ([1 << 30], "bytes", 1.0, "GiB"),
        ([0.5], "share", 50.0, "%"),
        ([3.0], "steps/s", 3.0, "steps/s"),
        ([], "s", None, "ns"),
    ],
)
def test_an_axis_has_the_unit_of_its_largest_number(
    values: list[float], unit: str, shown: float | None, unit_shown: str
) -> None:
    """One for all of its numbers."""
    scale, name = scale_of(values, unit)
    assert name == unit_shown
    if shown is not None:
        assert max(values) * scale == pytest.approx(shown)


def test_a_logarithmic_axis_has_texts_with_units() -> None:
    """Plotly's own are the digits 2 and 5 without any."""
    fine = log_ticks([15, 80], "us")
    assert fine["ticktext"] == ["10 µs", "20 µs", "50 µs", "100 µs", "200 µs", "500 µs"]
    assert fine["tickvals"][1] == 20
    ones = "1 10 100 1,000 10,000 100,000 1,000,000"
    assert " ".join(log_ticks([1, 1e6], "")["ticktext"]) == ones
    assert log_ticks([0, -1], "us") == {}
    assert log_ticks([3 << 30, 20 << 30], "bytes")["ticktext"] == [
        "2 GiB",
        "4 GiB",
        "8 GiB",
        "16 GiB",
        "32 GiB",
    ]
    assert len(log_ticks([1, 1 << 40], "bytes")["tickvals"]) == 9


# -- blocks ----------------------------------------------------------------------------------------------


def test_an_anchor_is_an_id_and_different_words_have_different_ones() -> None:
    """Names of adapters may be whole commands."""
    names = ["radix", "my_package:My Cache", "command:./x --flag", "command:./x -flag", "größe"]
    anchors = [anchor_of("violation", name, "R6") for name in names]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", anchor) for anchor in anchors)
    assert len(set(anchors)) == len(names)


@pytest.mark.parametrize("values", [(1.0,), (3.0, 3.0), (1.0, 2.0, 0.5)])
def test_a_spark_stays_in_its_picture(values: tuple[float, ...]) -> None:
    """Also where nothing changes."""
    points = [tuple(map(float, point.split(","))) for point in Cell("", spark=values).spark_points.split()]
    assert len(points) == len(values)
    assert all(0 <= x <= 100 and 0 <= y <= 24 for x, y in points)


def test_each_block_names_its_template() -> None:
    """The page looks them up by it."""
    plot = Plot("p", "t", "l", (Choice("one", [Panel(({"x": [1]},), {"height": 3}, "a")], "note"),))
    blocks = [Table("c", (), ()), plot, Text("t"), Card("i", "t", "bad", (), lines=("a", "b"))]
    assert [block.kind for block in blocks] == ["table", "plot", "text", "card"]  # type: ignore[attr-defined]
    drawn = {"title": "a", "data": [{"x": [1]}], "layout": {"height": 3}}
    assert plot.plain == [{"note": "note", "panels": [drawn]}]
    assert Card("i", "t", "bad", (), lines=("a", "b")).contents == "a\nb\n"


# -- page ------------------------------------------------------------------------------------------------


VOID = {"meta", "link", "br", "polyline", "input"}


class Page(HTMLParser):
    """A page taken apart: elements by id, links, and whether every element ends where it should."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: list[str] = []
        self.links: list[tuple[str, str | None]] = []
        self.loaded: list[str] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "a":
            self.links.append((str(given.get("href")), given.get("download")))
        if tag in ("script", "img", "iframe") and "src" in given:
            self.loaded.append(str(given["src"]))
        if tag == "link":
            self.loaded.append(str(given["href"]))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.text.append(data.strip())


def everything() -> tuple[Run, ...]:
    """A run with something for every section, and one before it that some of it can be compared with."""
    program = {"runs/faulty-x-P2-0.jsonl": samples.PROGRAM}
    plains = (
        samples.verify(release=samples.release("2.0")), samples.faults(),
        samples.soak(samples.soak_failure("R6")), samples.replay(), samples.curve(), samples.doctor(),
        samples.gpu_memory(), samples.peers(), samples.gpu_benchmarks(), samples.vectors(), samples.watch(),
        samples.served(),
        samples.probe(),
    )  # fmt: skip
    before = samples.run(
        samples.verify(
            samples.adapter("faulty-x", "rows", [samples.law("P2", "holds")]), release=samples.release("1.9")
        ),
        samples.replay(samples.engine_run(4096)),
        time="2026-11-20T15:03:11Z",
        figures=(replace(FIGURE, value=8.0, low=7.0, high=9.0),),
    )
    figures = (replace(FIGURE, value=20.0, low=19.0, high=21.0),)
    records = {"curves": (CURVE,), "histograms": (HISTOGRAM,), "figures": figures, "programs": program}
    return before, samples.run(*plains, **records)


@pytest.fixture(scope="module")
def text() -> str:
    return make_page(LoadedRuns(everything()), "nightly <1>", datetime(2026, 11, 21, 15, 3, tzinfo=UTC))


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_every_kind_of_document_is_on_the_page_somewhere() -> None:
    """The run above has each but the two that are shown with others."""
    kinds = {type(it) for it in everything()[1].documents}
    assert {*DOCUMENTS.values()} - kinds == {DOCUMENTS["pymllm.situations"], DOCUMENTS["pymllm.compare"]}


@pytest.mark.parametrize("make", SECTIONS.values(), ids=SECTIONS)
def test_a_section_that_would_be_empty_is_not_there(make: Callable[[list[Run]], Iterable[Part]]) -> None:
    """Nor one of documents that have nothing in them."""
    assert list(make([])) == []
    nothing = samples.gpu_benchmarks(results=[]), {**samples.peers(), "scenarios": []}
    assert list(make([samples.run(*nothing, machine=None)])) == []


def test_a_page_has_every_section(page: Page) -> None:
    """And leads to each of them."""
    ids = [section.id for section in make_sections(LoadedRuns(everything()))]
    assert ids == [*SECTIONS, "runs"]
    assert {*TEXTS} == {*ids, "verify", "words"}
    assert {f"#{id}" for id in ids} <= {href for href, _ in page.links}
    assert set(ids) <= set(page.ids)


def test_every_word_of_a_table_or_tile_is_explained_once() -> None:
    """Every word of a table or tile is explained once, but for plain words, implementations, releases."""
    sections = make_sections(LoadedRuns(everything()))
    explained = [word for section in sections for word in section.words]
    assert sorted(explained) == sorted(set(explained))
    tables = [it for section in sections for it in section.blocks if isinstance(it, Table)]
    heads = {column.name for table in tables for column in table.columns}
    assert heads - {*explained, "rows", "faulty-x", "1.9", "2.0"} - SAY_IT_THEMSELVES == set()
    tiles = {it.name.removesuffix(" since the run before") for section in sections for it in section.tiles}
    assert tiles - {*explained} == set()


SAY_IT_THEMSELVES = {
    *("law", "demands that", "verdict", "tests of the law", "kind", "implementation", "contender"),
    *("before", "after", "ended (UTC)"),
    *("trace and server", "why", "prompt", "request", "median", "p90"),
    *("laws fixed", "figures changed", "finding", "looked at", "faults caught", "operations, median"),
    *(
        "time, median",
        "what is wrong",
        "laws that may catch it",
        "caught",
        "coverage goal",
        "newest",
        "fault",
    ),
    *("scenario", "ours", "package", "why not", "case", "sizes and types", "times, median", "workload"),
    *("capacity, slots", "hit rate", "p50", "p95", "longest", "replay", "curve", "of", "first", "lowest"),
    *("highest", "test", "device", "processor", "processors usable", "memory", "system", "GPUs", "platform"),
    *("Python", "torch", "NVML", "packages", "file", "section", "what", "what brings it", "why", "cache"),
    *("insert", "evict", "lock", "capacity", "peak memory of the process", "from", "to"),
    *("over time", "last", "requests", "requests with", "hit rate, lfu"),
}


def test_no_picture_has_bars_on_a_logarithmic_axis() -> None:
    """A bar begins at zero, which such an axis has not."""
    for section in make_sections(LoadedRuns(everything())):
        plots = [it for it in section.blocks if isinstance(it, Plot)]
        for panel in (panel for it in plots for choice in it.choices for panel in choice.panels):
            axes = [panel.layout.get(axis, {}).get("type") for axis in ("xaxis", "yaxis")]
            assert "log" not in axes or all(trace["type"] != "bar" for trace in panel.traces)


def test_every_link_within_the_page_leads_somewhere(page: Page) -> None:
    """Ids are there once each, so that the cell of a violation finds its program."""
    inner = {href.removeprefix("#") for href, _ in page.links if href.startswith("#")}
    assert inner <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert any(id.startswith("violation-faulty-x") for id in inner)


def test_a_page_opens_offline(page: Page, text: str) -> None:
    """Nothing is loaded from anywhere: what it needs is in it."""
    assert all(source.startswith("data:") for source in page.loaded)
    assert not re.search(r"@import|url\(\s*['\"]?https?:", text.split("<script", 1)[0])
    assert len(text) > 1_000_000
    assert "Plotly" in text


def test_the_program_of_a_violation_can_be_saved(page: Page) -> None:
    """Byte for byte what pymllm rerun takes."""
    (href,) = (href for href, name in page.links if name == "faulty-x-P2-0.jsonl")
    head, _, contents = href.partition(",")
    assert head == "data:application/jsonl;charset=utf-8"
    assert unquote(contents) == "".join(f"{line}\n" for line in samples.PROGRAM)


def test_whatever_runs_have_in_them_stays_text() -> None:
    """Names of adapters and messages come from outside."""
    bad = "</script><script>alert(1)</script><!--"
    violations = [samples.violation("P2", message=bad)]
    plain = samples.verify(
        samples.adapter(bad, "rows", [samples.law("P2", "violated")], violations=violations)
    )
    replayed = samples.replay(workload={"name": bad, "kind": "trace", "requests": 1, "seed": 0})
    page = make_page(LoadedRuns((samples.run(plain, replayed),)), bad)
    assert "<script>alert" not in page
    opened = Page(page)
    assert any(bad in part for part in opened.text)


def test_the_pictures_are_json_that_the_script_reads(text: str) -> None:
    """Each has its element."""
    found = re.search(r'<script type="application/json" id="plots">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    plots = json.loads(found[1])
    assert set(plots) == {
        "plot-faults", "plot-trends", "plot-peers", "plot-hit-rate", "plot-latency", "plot-replay-latency",
        "plot-memory", "plot-releases-tree", "plot-capacity", "plot-probes",
    }  # fmt: skip
    assert all(f'id="{id}"' in text for id in plots)


def test_the_head_says_what_the_page_is_of(page: Page) -> None:
    """Title, when, of how much; machines that nobody wrote down are not counted."""
    assert "nightly <1>" in page.text
    (made,) = (part for part in page.text if part.startswith("Made "))
    assert made.startswith("Made 2026-11-21 15:03 UTC by pymllm")
    assert "from 2 runs on 1 recorded machine" in made
    one = Page(make_page(LoadedRuns(everything()[:1])))
    assert any("from 1 run on 1 recorded machine" in part for part in one.text)
    none = Page(make_page(LoadedRuns((samples.run(samples.verify(), machine=None),))))
    assert any(part.endswith("from 1 run.") for part in none.text)


def test_the_verdict_comes_before_everything_else() -> None:
    """As the worst of what ran; a page of runs that judge nothing claims nothing."""
    for plain, tone in ((samples.verify(), "bad"), (samples.soak(), "good"), (samples.doctor(), None)):
        text = make_page(LoadedRuns((samples.run(plain),)))
        found = re.findall(r'<p class="verdict (\w+)"><a href="#(\w+)">(.*?)</a>', text)
        assert [it[0] for it in found] == ([] if tone is None else [tone])
        assert all(text.index("verdict ") < text.index('class="tiles"') for _ in found)


def test_a_page_of_runs_that_show_nothing_says_what_would(text: str) -> None:
    """A store that has only a word of a machine."""
    empty = Page(make_page(LoadedRuns((samples.run(machine=None),))))
    assert "Not in this report" in empty.text
    assert "pymllm faults hunt --store FOLDER" in empty.text


def test_a_page_can_be_read_without_a_mouse_and_without_eyes(text: str) -> None:
    """Tables take the focus, pictures have a sentence, lists have labels, and a link leads past the head."""
    assert text.count('class="scroll" tabindex="0" role="region" aria-label="') == text.count(
        'class="scroll"'
    )
    pictures = re.findall(r'<div class="pictures"[^>]*>', text)
    assert pictures
    assert all('role="group"' in picture and 'aria-label="' in picture for picture in pictures)
    selects = re.findall(r'<select id="([^"]+)"', text)
    assert all(f'<label for="{id}"' in text for id in selects)
    assert '<a class="skip" href="#main">' in text
    assert '<html lang="en">' in text


def test_light_and_dark_have_the_same_colours() -> None:
    """A name that one of them lacks would be the other's, and unreadable."""
    style = (
        Path(sys.modules["pymllm.report.page"].__file__ or "").parent / "templates" / "page.css"
    ).read_text("utf-8")
    light, system_dark, dark = (set(re.findall(r"--[\w-]+(?=:)", block)) for block in rules(style))
    assert light == system_dark == dark
    assert set(re.findall(r"var\((--[\w-]+)\)", style)) <= light


def rules(style: str) -> Iterator[str]:
    for start in (":root {", ':root:not([data-theme="light"]) {', ':root[data-theme="dark"] {'):
        yield style.split(start, 1)[1].split("}", 1)[0]
