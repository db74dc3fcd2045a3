"""Every page: its links lead somewhere, its commands could be typed, and the site has it."""

from __future__ import annotations

import doctest
import re
import shlex
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pymllm.cli import main
from pymllm.cli.results.report import FORMATS
from pymllm.cli.search.faults_page import print_anew, rows_of
from pymllm.faults.table import BUGS, PLANTED, SERVERS, own_cabinet
from pymllm.history.operations import KINDS
from pymllm.machines.registry import PROFILES
from pymllm.oracle.coverage import GOALS
from pymllm.oracle.laws import LAWS
from pymllm.oracle.laws.goal import Condition, make_goals
from pymllm.oracle.verdicts import Verdict
from pymllm.report.loading import LoadedRuns
from pymllm.report.records import RECORDS
from pymllm.report.sections import make_sections
from tests.repo.tutorial import Reader
from tests.unit.report.test_page import everything

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("peers/**/*.md"), *DOCS.rglob("*.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
BUILDER = DOCS / "builder"

# Pages of the site that no file has, and the folders whose pages are made.
MADE = {
    *("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("commands.md", "coverage-goals.md", "laws.md", "schemas.md"),
}
MADE_IN = ("api/", "examples/", "peers/", "vectors/")

BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
CODE = re.compile(r"``.+?``")  # such as calls[0](argument), which leads nowhere

PROMPTS = {"sh": "", "console": r"\$ "}


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that a link to a place inside of a page may name."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    named = re.findall(r'<a id="([\w-]+)"></a>', text)
    return {*named, *(re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles)}


def links_of(page: Path) -> list[str]:
    text = CODE.sub("", BLOCK.sub("", page.read_text(encoding="utf-8")))
    return re.findall(r"\]\((?!https?:)([^)\s]+)\)", text)


def broken_links(page: Path) -> list[str]:
    """Links of a page to files that are not there, or to places that a page does not have."""
    broken = []
    for link in links_of(page):
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            broken.append(link)
    return broken


def is_made(file: Path) -> bool:
    """Whether the site makes this page of ``docs``."""
    if not file.is_relative_to(DOCS):
        return False
    place = file.relative_to(DOCS).as_posix()
    return place in MADE or place.startswith(MADE_IN)


def commands_of(page: Path) -> list[list[str]]:
    """The commands of pymllm in blocks for a shell, as words, without what stands behind a pipe."""
    commands = []
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language not in PROMPTS:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            typed = re.match(PROMPTS[language] + r"(?:.*[|&] *)?pymllm (.*)$", line)
            if typed:
                words = shlex.split(typed[1], comments=True)
                ends = [words.index(word) for word in ("|", ">", "&&", ">>") if word in words]
                commands.append(words[: min(ends, default=len(words))])
    return commands


def what_is_wrong(words: list[str]) -> str | None:
    """Read a command as the program would, up to the values of its options, and say why it cannot be."""
    command: click.Command = main
    context = click.Context(main, info_name="pymllm")
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words[0]]
        context, words = click.Context(command, info_name=command.name, parent=context), words[1:]
    if command is main and not words[0].startswith("-"):
        return f"no command {words[0]}"
    try:
        command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        return error.format_message()
    return None


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    """In the repository, without a site."""
    assert broken_links(page) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    """The test above can fail, for a file and for a place in it."""
    page = tmp_path / "page.md"
    links = "[a](#a-title-here) [b](#b) [c](gone.md) [d](https://host/) `` e[0](f) ``"
    page.write_text(f"# A Title, `here`\n\n{links}\n", encoding="utf-8")
    assert broken_links(page) == ["#b", "gone.md"]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_commands_of_a_page_can_be_typed(page: Path) -> None:
    """Commands and options that are told exist."""
    assert [wrong for words in commands_of(page) if (wrong := what_is_wrong(words))] == []


def test_a_command_that_does_not_exist_is_noticed(tmp_path: Path) -> None:
    """The test above can fail, for a command and for an option; and it sees more than a few."""
    page = tmp_path / "page.md"
    page.write_text("```sh\nzcat x | pymllm verfy\npymllm verify --sed 7 > x\n```\n", encoding="utf-8")
    no_command, no_option = commands_of(page)
    assert what_is_wrong(no_command) == "no command verfy"
    assert "No such option" in str(what_is_wrong(no_option))
    assert sum(len(commands_of(page)) for page in PAGES) > 80


def test_every_page_that_the_site_names_is_there() -> None:
    """Every page that mkdocs.yml names exists; the builder lists the pages without a name in the file."""
    named = re.findall(
        r"^ +- (?:\w+: )?([\w/-]+\.md)\b", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.M
    )
    assert len(named) > 20
    assert [name for name in named if not (DOCS / name).exists() and not is_made(DOCS / name)] == []


@pytest.mark.usefixtures("builder")
def test_the_page_of_laws_has_each_law_with_what_breaks_it() -> None:
    """Its text, the ways it is checked, and the tables of other pages: wrong implementations, findings."""
    from laws_page import make_laws_page

    text = make_laws_page()
    assert re.findall(r"^### (\w+)$", text, flags=re.MULTILINE) == [law.id for law in LAWS]
    (entry,) = re.findall(r"^### R6\n(.*?)^#", text, flags=re.MULTILINE | re.DOTALL)
    for words in (
        "[full text](specification/prefixes.md#r6)",
        "- checked from inside, by outcomes (",
        "- faults: B01 (a match hands back the root as the matched node), B13 (",
        "- wrong implementations: `faulty-",
    ):
        assert words in entry
    assert "- coverage goals: " in text
    assert "- findings: [" in text


PAGED = Condition("pages of several tokens", lambda config: config.get("page_size") != 1)


@pytest.mark.usefixtures("builder")
def test_the_page_of_goals_has_a_table_for_each_kind_and_its_engine() -> None:
    """A row has laws, bugs and needs; what is missing leaves its cell empty."""
    from goals_page import make_goals_page

    titles = [line for line in make_goals_page(GOALS).splitlines() if line.startswith("## ")]
    assert len(titles) == len(KINDS) + 2
    assert titles[0] == "## Slot allocators"
    assert {"## Prefix caches in an engine", "## Whole requests in an engine"} <= set(titles)
    plain = make_goals("slots", ("pages wait", "A4"))
    full = make_goals("slots", ("pages merge", "A4 X4", "B95 B97"), needs="merges groups", when=(PAGED,))
    page = make_goals_page([*plain, *full])
    assert "| pages wait | A4 |  |  |\n" in page
    assert "| pages merge | A4, X4 | B95, B97 | `groups`, `merges`, pages of several tokens |\n" in page
    assert "2 coverage\ngoals." in page


@pytest.mark.usefixtures("builder")
def test_the_page_of_commands_has_every_command_and_option() -> None:
    """Those of groups, too."""
    from commands_page import make_commands_page

    text = make_commands_page()
    for name, command in main.commands.items():
        assert f"\n## pymllm {name}\n" in text
        assert all(option in text for one in command.params for option in one.opts if option.startswith("--"))
    assert "\n### pymllm faults hunt\n" in text
    assert "\n|    141 | whoever read the output closed it" in text


@pytest.mark.usefixtures("builder")
def test_each_public_module_has_a_page() -> None:
    """With the module's own first sentence where it is listed."""
    from api_pages import make_api_pages

    pages = make_api_pages()
    modules = [
        path for path in (ROOT / "src" / "pymllm").rglob("*.py") if not path.name.startswith("__main__")
    ]
    assert len(pages) == len(modules)
    assert "::: pymllm.mem_cache.radix_cache\n" in pages["api/mem_cache/radix_cache.md"]
    listed = (
        "[`radix_cache`](radix_cache.md) | The radix tree prefix cache, plain and with sliding windows. |"
    )
    assert listed in pages["api/mem_cache/index.md"]


@pytest.mark.usefixtures("builder")
def test_links_out_of_the_pages_lead_to_pages_of_the_site() -> None:
    """Examples, and what stands at the root of the repository."""
    from repository_pages import make_repository_pages, with_site_links

    pages = make_repository_pages()
    assert {"CHANGELOG.md", "examples/index.md", "examples/protocol/page_cache.c.md"} <= pages.keys()
    runners = {path.relative_to(ROOT).as_posix() for path in (ROOT / "vectors" / "runners").glob("*/run_*")}
    assert len(runners) == 4
    assert {f"{path}.md" for path in runners} | {"vectors/runners/index.md"} <= pages.keys()
    assert "{ .go linenums=1 }" in pages["vectors/runners/go/run_vectors.go.md"]
    assert "{ .cpp linenums=1 }" in pages["vectors/runners/cpp/example_cache.hpp.md"]
    assert with_site_links("[a](../vectors/runners/cpp/run_vectors.cpp)", "vectors.md") == (
        "[a](vectors/runners/cpp/run_vectors.cpp.md)"
    )
    links = (
        "[a](../../examples/stranger_cache.py) [b](../verify.md) [c](../../README.md#x) [d](gone.md) "
        "[e](../../src/pymllm/oracle/__init__.py)"
    )
    assert with_site_links(links, "tutorials/soak.md") == (
        "[a](../examples/stranger_cache.py.md) [b](../verify.md) [c](../index.md#x) [d](gone.md) "
        "[e](../api/oracle/index.md)"
    )
    assert with_site_links("[a](docs/verify.md) [b](examples)", "CONTRIBUTING.md") == (
        "[a](verify.md) [b](examples/index.md)"
    )
    assert with_site_links("[a](../docs/faults.md)", "peers/README.md") == "[a](../faults.md)"
    findings, known = "peers/findings/README.md", "peers/findings/known.toml"
    assert {findings, known} <= pages.keys()
    assert with_site_links(f"[a](../{known})", "compare.md") == f"[a]({known})"
    assert with_site_links("[a](../README.md) [b](../../docs/faults.md)", findings) == (
        "[a](../README.md) [b](../../faults.md)"
    )
    assert with_site_links("[a](a/test_x.py)", "peers/integrations/README.md") == "[a](a/test_x.py.md)"


@pytest.mark.usefixtures("builder")
def test_names_of_what_only_the_site_has_become_links_there() -> None:
    """Commands that print the same, and a page; not inside of another link or of longer code."""
    from repository_pages import with_site_links

    assert with_site_links("`pymllm schema gpu-memory`, `pymllm goals`", "gpu.md") == (
        "[`pymllm schema gpu-memory`](schemas/gpu-memory.schema.json), [`pymllm goals`](coverage-goals.md)"
    )
    assert with_site_links("`laws.md`", "tutorials/soak.md") == "[`laws.md`](../laws.md)"
    for text in (
        "`pymllm schema NAME`",
        "`pymllm schema --help`",
        "[`pymllm goals`](a.md)",
        "``pymllm goals``",
        "`pymllm goals -h`",
    ):
        assert with_site_links(text, "a.md") == text


@pytest.mark.usefixtures("builder")
def test_ids_in_the_text_of_a_page_become_links() -> None:
    """Where they are no code, no heading, no link already, and no part of another word."""
    from ids import with_ids

    html = "<h2>R6</h2><p>(R6), <code>R6</code>, R66, <a href='x'>R6</a>, B01</p>"
    assert with_ids(html, "api/errors.html") == (
        '<h2>R6</h2><p>(<a class="id" href="../laws.html#r6">R6</a>), <code>R6</code>, R66, '
        '<a href=\'x\'>R6</a>, <a class="id" href="../faults.html#b01">B01</a></p>'
    )
    assert with_ids("<td>B79-requests</td>", "faults.html") == (
        '<td><a class="id" href="#b79-requests">B79-requests</a></td>'
    )


# -- what single pages say -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["docs/report.md", "docs/instruments.md"])
def test_the_examples_of_a_page_run_as_shown(page: str) -> None:
    """A reader who copies the examples of a page sees the same answers."""
    found = doctest.testfile(str(ROOT / page), module_relative=False, encoding="utf-8")
    assert found.attempted > 10
    assert found.failed == 0


def test_the_readme_says_what_happens(tmp_path: Path) -> None:
    """A reader who copies the README's adapter and command finds the bug that the README shows."""
    folder = tmp_path / "folder"
    folder.mkdir()
    assert Reader(folder, tmp_path / "programs").play(ROOT / "README.md") == 1


def words_of(picture: str) -> list[str]:
    """Return the words of a picture, without its shapes and colours."""
    return [
        unescape(text).replace("\xa0", " ") for text in re.findall(r"<t(?:ext|itle)[^>]*>([^<]+)<", picture)
    ]


@pytest.mark.usefixtures("builder")
@pytest.mark.parametrize("name", ["session.svg", "held-page.svg", "capacities.svg", "finding.svg"])
def test_a_picture_says_what_the_program_prints(name: str, tmp_path: Path) -> None:
    """Where it does not, python docs/builder/pictures.py makes it anew; it loads nothing from elsewhere."""
    from pictures import PICTURES

    kept = (DOCS / "assets" / name).read_text(encoding="utf-8")
    assert words_of(PICTURES[name](tmp_path)) == words_of(kept)
    assert len(words_of(kept)) > 10
    assert not re.findall(rf"https?://(?!www\.w3\.org/2000/svg)|/tmp|{Path.home()}", kept)


@pytest.mark.usefixtures("builder")
def test_no_picture_is_left_over() -> None:
    """Each is made, and shown on a page."""
    from pictures import PICTURES

    assert {path.name for path in (DOCS / "assets").glob("*.svg")} == set(PICTURES)
    tour = (DOCS / "tour.md").read_text(encoding="utf-8")
    assert all(f"(assets/{name})" in tour for name in PICTURES if name != "finding.svg")
    findings = (ROOT / "peers/findings/README.md").read_text(encoding="utf-8")
    assert "(../../docs/assets/finding.svg)" in findings
    assert "(docs/assets/held-page.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_read_in_minutes() -> None:
    """The README has at most 700 words, since longer explanations have pages."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700


def test_the_layout_names_every_room() -> None:
    """The table in CONTRIBUTING.md has a row for each folder of code, tests and pages."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = [
        *(ROOT / "src" / "pymllm").iterdir(),
        *(ROOT / "tests").iterdir(),
        ROOT / "benchmarks",
        ROOT / "docs",
    ]
    for folder in folders:
        if folder.is_dir() and not folder.name.startswith("__"):
            assert f"`{folder.relative_to(ROOT)}/`" in text


FAULTS = (DOCS / "faults.md").read_text(encoding="utf-8")


def test_the_page_of_faults_has_every_fault_and_what_caught_it() -> None:
    """After a change of the cabinet: pymllm faults hunt, or probe, ID... --full --page docs/faults.md."""
    found = rows_of(FAULTS)
    cabinet = {fault.id: fault for fault in (*own_cabinet(), *SERVERS)}
    assert list(found) == list(cabinet)
    for id, fault in cabinet.items():
        laws, searchers = found[id][:2]
        assert set(laws.split(", ")) <= set(fault.laws)
        assert searchers


def test_the_texts_of_the_page_of_faults_are_those_of_the_source() -> None:
    """After a change of a bug or of a plant: python docs/builder/faults_page.py."""
    assert print_anew(FAULTS) == FAULTS


def test_every_bug_has_a_place_to_link_to() -> None:
    """Each system that it is planted in, too."""
    suffixed = [it.id for it in (*PLANTED, *SERVERS) if it.entry in BUGS and it.id != it.entry]
    places = [*(f"### {id}\n" for id in BUGS), *(f'<a id="{id.lower()}"></a>' for id in suffixed)]
    assert [place for place in places if place not in FAULTS] == []


VERIFY = (DOCS / "verify.md").read_text(encoding="utf-8")
TABLE = """
class RowTable:
    def __init__(self, rows, columns):
        self.size, self.free = rows, list(range(1, rows + 1))
        self.cells = [[0] * columns for _ in range(rows + 1)]

    def take(self, count):
        if count > len(self.free):
            return None
        return [self.free.pop(0) for _ in range(count)]

    def give_back(self, row):
        self.cells[row] = [0] * len(self.cells[row])
        self.free.append(row)
"""


@pytest.mark.parametrize(
    ("change", "status"), [(("", ""), 0), (("self.cells[row] = [0] * len(self.cells[row])", "pass"), 1)]
)
def test_the_adapter_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], status: int
) -> None:
    """The adapter of the page runs as it is pasted, and finds the error of a wrong table."""
    (example,) = (it for it in re.findall(r"```python\n(.*?)```", VERIFY, flags=re.DOTALL) if "MyRows" in it)
    name = f"page_adapter_{status}"
    (tmp_path / f"{name}.py").write_text(example.replace("my_rows", f"{name}_rows"), encoding="utf-8")
    (tmp_path / f"{name}_rows.py").write_text(TABLE.replace(*change), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["verify", "--adapter", f"{name}:MyRows", "--examples", "40", "--jobs", "1"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == status, result.output


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (("", ""), 0, "laws: 0 violated"),
        ((" if not self.held[prefix]", ""), 1, "VIOLATED  1 of"),
        (
            ("self.gave_back(self.cache.evict(tokens))", "len(self.cache.evict(tokens))"),
            3,
            "call self.gave_back",
        ),
    ],
    ids=["as it stands", "without its check of holds", "without effects"],
)
def test_the_first_cache_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], status: int, words: str
) -> None:
    """It holds, is caught where it is broken, and its adapter is named where that is."""
    blocks = re.findall(r'```python title="(my_\w+)\.py"\n(.*?)```', VERIFY, flags=re.DOTALL)
    for name, text in blocks:
        renamed = text.replace(*change).replace("my_cache", f"my_cache_{status}")
        (tmp_path / f"{name}_{status}.py").write_text(renamed, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    place = f"my_adapter_{status}:MyCache"
    result = CliRunner().invoke(main, ["verify", "--adapter", place, "--profile", "dev", "--jobs", "1"])
    assert result.exit_code == status, result.output
    assert words in result.output


def test_a_free_list_is_compared_as_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first cache of the page, with an eviction that returns only a number."""
    blocks = dict(re.findall(r'```python title="(my_\w+)\.py"\n(.*?)```', VERIFY, flags=re.DOTALL))
    (shown,) = re.findall(r"```python\n(    def evict\(.*?)```", VERIFY, flags=re.DOTALL)
    cache = blocks["my_cache"].replace("        return gone\n", "        return len(gone)\n")
    adapter = re.sub(r"    def evict\(.*?\n\n", lambda _: f"{shown}\n", blocks["my_adapter"], flags=re.DOTALL)
    adapter = adapter.replace("self.gave_back(self.cache.evict(", "(self.evict(").replace(
        "my_cache", "counting"
    )
    (tmp_path / "counting.py").write_text(cache, encoding="utf-8")
    (tmp_path / "counting_adapter.py").write_text(adapter, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["verify", "--adapter", "counting_adapter:MyCache", "--profile", "dev", "--jobs", "1"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_the_page_has_each_profile_with_its_length() -> None:
    """Acts and seed."""
    for profile in PROFILES.values():
        (row,) = re.findall(rf"^\| `{profile.name}`.*$", VERIFY, flags=re.MULTILINE)
        _, _, acts, _, seed, _ = (cell.strip() for cell in row.split("|"))
        assert acts == str(profile.steps)
        assert seed == ("drawn, and printed" if profile.seed is None else str(profile.seed))


def test_the_page_has_each_verdict_with_its_status() -> None:
    """Four verdicts, three statuses."""
    for verdict in Verdict:
        assert re.search(rf"^\| `{verdict.value}` \|", VERIFY, flags=re.MULTILINE | re.IGNORECASE)
        assert re.search(rf"^\| {verdict.exit_status} \|", VERIFY, flags=re.MULTILINE)


REPORT = (DOCS / "report.md").read_text(encoding="utf-8")


def first_cells(head: str) -> list[str]:
    """Return the cells in the first column of the table with this head."""
    table = REPORT.split(head, 1)[1].split("\n\n", 1)[0]
    return [line.split("|")[1].strip().strip("`") for line in table.splitlines()[2:]]


def test_the_page_has_each_section_of_a_report() -> None:
    """In its order, but for the list of the runs, which is told in words."""
    titles = [section.title.lower() for section in make_sections(LoadedRuns(everything()))]
    assert [title.lower() for title in first_cells("| section | content")] == titles[:-1]


def test_the_page_has_each_kind_of_record_and_each_feed() -> None:
    """And none that there is not."""
    assert first_cells("| record | content") == list(RECORDS)
    assert ["html", *first_cells("| `--format` | content")] == list(FORMATS)


def test_the_page_names_each_command_that_keeps_its_result() -> None:
    """And every command that it shows has the options that it is shown with."""
    keeping = {name for name, verb in verbs_of(main) if any(it.name == "store" for it in verb.params)}
    (told,) = re.findall(
        r"These commands write a run with `--store FOLDER`: (.*?)\.", REPORT, flags=re.DOTALL
    )
    assert set(re.findall(r"`([\w -]+)`", told)) == keeping
    for line in re.findall(r"^pymllm (.*?)(?: +#.*)?$", REPORT, flags=re.MULTILINE):
        assert what_is_wrong(line.split()) is None


def verbs_of(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Each verb with its words, those of groups, too."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from verbs_of(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command
