"""``pymllm soak --executor``."""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import make_schema
from pymllm.cli.soak import soak_spread
from pymllm.cli.spread import describe_spread, spread_display
from pymllm.cli.tables import BETWEEN_LINES
from pymllm.soak import findings
from pymllm.soak.spread_plan import FILE, STOP, read_plan
from pymllm.work.spread import shard_task, spread
from pymllm.work.spread.shard_task import PlayedShard, ShardTask
from pymllm.work.spread.spread import Progress
from tests.unit.cli.typed import Terminal, refused, typed

ENGINE = f"{__name__}:engine"
LONG = ("--operations", "8000", "--longest", "1000", "--seed", "3")
SHORT = ("--adapter", "rows", "--operations", "900", "--longest", "150", "--seed", "3")

soak = partial(typed, "soak")
resume = partial(typed, "resume")


class Engine(Executor):
    """An executor that plays each shard at once, in this process, after a test's own answer."""

    _max_workers = 2
    before: Callable[[ShardTask], PlayedShard | None] = lambda task: None
    asked: list[ShardTask] = []  # noqa: RUF012  # of the class, as the test begins it anew
    closed: list[bool] = []  # noqa: RUF012

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            (task,) = args
            Engine.asked.append(task)
            future.set_result(Engine.before(task) or play_here(task))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        Engine.closed.append(wait)


def engine() -> Engine:
    return Engine()


def play_here(task: ShardTask) -> PlayedShard:
    """Type the shard's command in this process."""
    folder = shard_task._home(task.campaign) / task.name
    folder.mkdir()
    words = shard_task._command(task, folder)[3:]
    result = typed(*words)
    programs = [(it.name, zlib.compress(it.read_bytes())) for it in (folder / "programs").glob("*")]
    ledger, document = (folder / "ledger.jsonl").read_bytes(), result.stdout.encode()
    return PlayedShard(
        *(task.number, result.exit_code, result.stderr, "here", 0, 1.0),
        *(zlib.compress(ledger), zlib.compress(document), tuple(programs)),
    )


@pytest.fixture(autouse=True)
def begin_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, work_here: None) -> None:
    monkeypatch.setattr(Engine, "before", staticmethod(lambda task: None))
    monkeypatch.setattr(Engine, "asked", [])
    monkeypatch.setattr(Engine, "closed", [])
    monkeypatch.setattr(spread, "_PAUSE", 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()


def first(number: int, *outcomes: PlayedShard | BaseException) -> Callable[[ShardTask], PlayedShard | None]:
    """Return a function that gives the outcomes of the first attempts of a shard."""
    left = list(outcomes)

    def say(task: ShardTask) -> PlayedShard | None:
        if task.number != number or not left:
            return None
        outcome = left.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return say


def merged(*folders: Path, to: Path) -> bytes:
    """Return the one ledger of a campaign, whoever played it."""
    assert typed("merge", *folders, "--output", to).exit_code == 0
    return (to / "ledger.jsonl").read_bytes()


def played_halves(folder: Path) -> list[Any]:
    """Return the number and the digest of each run, in the order of the ledger's lines."""
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text("utf-8").splitlines()]
    return [(it["number"], it["digest"]) for it in lines if "number" in it]


def test_the_shards_of_a_campaign_are_the_campaign(tmp_path: Path) -> None:
    """The shards of a campaign play the runs of the campaign, in any number and by any process."""
    alone, several = tmp_path / "alone", tmp_path / "several"
    assert soak(*SHORT, "--jobs", "1", "--output", alone).exit_code == 0
    result = soak(*SHORT, "--executor", f"{ENGINE},shards=3", "--output", several)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith("holds: 9")
    assert (several / "ledger.jsonl").read_bytes() == merged(alone, to=tmp_path / "merged")
    assert [(it.number, it.count) for it in Engine.asked] == [(1, 3), (2, 3), (3, 3)]
    assert {word for it in Engine.asked for word in it.words} >= {"--jobs", "1"}  # though there are more here
    assert sorted(path.name for path in several.iterdir()) == [
        *("engine.log", "findings.json", "ledger.jsonl", "measured.jsonl", "shards", "shards.json")
    ]


def test_real_processes_play_shards(tmp_path: Path) -> None:
    """A campaign with an executor of Python plays its counted shards in real processes."""
    name = "concurrent.futures:ThreadPoolExecutor"
    words = ("--adapter", "rows", "--operations", "300", "--longest", "150", "--seed", "3", "--json")
    result = soak(*words, "--executor", f"{name},shards=2", "--output", tmp_path / "c")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert (document["verdict"], document["refused"], document["jobs"]) == ("holds", {}, 2)
    assert document["operations"] >= 300
    assert [*(tmp_path / "node").iterdir()] == []


def test_an_executor_that_answers_something_else_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shards are given up, and the command ends with 3."""
    garbage: Any = lambda task: "garbage"  # noqa: E731
    monkeypatch.setattr(Engine, "before", staticmethod(garbage))
    words = ("--executor", f"{ENGINE},shards=2,retries=1", "--output", tmp_path / "c", "--json")
    result = soak(*SHORT, *words)
    assert (result.exit_code, json.loads(result.stdout)["verdict"]) == (3, "unknown")
    assert "the last: shard 2-of-2: the executor gave str instead of a shard's answer" in result.stderr


def raises() -> Executor:
    raise ValueError("no cluster today")


def test_a_campaign_has_a_few_shards_for_each_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more than runs, and with minutes one for each."""

    def refuse(task: ShardTask) -> None:
        raise OSError("not now")

    monkeypatch.setattr(Engine, "before", staticmethod(refuse))
    never = f"{ENGINE},retries=0"
    soak(*SHORT, "--executor", never, "--output", tmp_path / "runs")  # at least 900 / 150
    soak(*SHORT, "--longest", "10", "--executor", never, "--output", tmp_path / "workers")
    minutes = ("--adapter", "rows", "--minutes", "0", "--seed", "3", "--executor", never)
    soak(*minutes, "--output", tmp_path / "minutes")
    monkeypatch.setattr(Engine, "_max_workers", None)
    soak(*SHORT, "--longest", "10", "--executor", never, "--output", tmp_path / "silent")
    counts = {it.name: read_plan(it).shards for it in tmp_path.iterdir() if (it / FILE).exists()}
    assert counts == {"runs": 6, "workers": 8, "minutes": 2, "silent": 16}


def test_what_is_lost_is_tried_again_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict is that of the campaign."""
    monkeypatch.setattr(Engine, "before", staticmethod(first(2, OSError("node is gone"))))
    result = soak(*SHORT, "--executor", f"{ENGINE},shards=3", "--output", tmp_path / "c")
    assert result.exit_code == 0
    assert result.stderr == (
        "pymllm: tried again after a loss: 1 attempt of shard 2; "
        "the last: shard 2-of-3: OSError: node is gone\n"
    )
    assert [it.number for it in Engine.asked] == [1, 2, 3, 2]


@pytest.mark.parametrize(
    ("count", "words"), [(3, "4 attempts of shards 1, 2, 3"), (11, "12 attempts of 11 shards")]
)
def test_shards_that_were_lost_are_named_where_they_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, words: str
) -> None:
    """Each once, however often it was lost."""
    left = [*range(1, count + 1), 2]

    def lose(task: ShardTask) -> None:
        if task.number in left:
            left.remove(task.number)
            raise OSError("gone")

    monkeypatch.setattr(Engine, "before", staticmethod(lose))
    one = ("--longest", "50", "--executor", f"{ENGINE},shards={count}")
    result = soak(*SHORT, *one, "--output", tmp_path / "c")
    assert result.exit_code == 0
    assert (
        f"tried again after a loss: {words}; the last: shard 2-of-{count}: OSError: gone\n" in result.stderr
    )


def test_a_shard_that_is_given_up_makes_the_verdict_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its reason, and how to go on; then it is played, and it alone."""
    gone = [OSError("node is gone")] * 2
    monkeypatch.setattr(Engine, "before", staticmethod(first(2, *gone)))
    folder = tmp_path / "c"
    words = ("--executor", f"{ENGINE},shards=3,retries=1")
    result = soak(*SHORT, *words, "--output", folder, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["verdict"], document["exit_status"]) == (3, "unknown", 3)
    Draft202012Validator(make_schema("soak")).validate(document)
    assert (document["refused"], document["given_up"]) == (
        {},
        {"2/3": "given up after 2 attempts; the last one: OSError: node is gone"},
    )
    assert result.stderr.splitlines()[-1] == (
        f"pymllm: continue with: pymllm resume {folder} --executor {ENGINE}"
    )
    Engine.asked.clear()
    again = resume(folder, "--executor", ENGINE)
    assert (again.exit_code, again.stderr) == (0, "")
    assert [it.number for it in Engine.asked] == [2]
    assert len(played_halves(folder)) == len({number for number, _ in played_halves(folder)}) >= 6


def test_nothing_that_came_back_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every shard was given up there is no ledger, and no traceback."""
    monkeypatch.setattr(Engine, "before", staticmethod(first(1, OSError("gone"))))
    words = ("--executor", f"{ENGINE},shards=1,retries=0", "--output", tmp_path / "c")
    result = soak(*SHORT, *words)
    assert result.exit_code == 3
    why = "    1/1        given up after 1 attempt; the last one: OSError: gone\n"
    assert f"given up: 1 shard, whose runs are missing\n{why}" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("; 1 shard given up")
    assert not (tmp_path / "c" / "ledger.jsonl").exists()


def test_a_violation_is_a_violation_although_a_shard_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program came along."""
    monkeypatch.setattr(Engine, "before", staticmethod(first(2, OSError("gone"))))
    words = ("--adapter", "faulty-dirty-rows", "--executor", f"{ENGINE},shards=2,retries=0")
    result = soak(*words, *LONG, "--output", tmp_path / "c")
    assert result.exit_code == 1
    assert "P2  VIOLATED by faulty-dirty-rows" in result.stdout
    (command,) = set(re.findall(r"as played +(pymllm rerun .*)", result.stdout))
    file = command.split()[2]
    assert Path(file).is_file()
    assert Path(file).is_relative_to(tmp_path / "c")


def test_a_failure_stops_the_campaign_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that have not begun are not played, and none of them is missed."""
    monkeypatch.setattr(Engine, "_max_workers", 1)
    words = ("--adapter", "faulty-dirty-rows", "--stop-on-failure", "--executor", f"{ENGINE},shards=4")
    result = soak(*words, *LONG, "--output", tmp_path / "c")
    assert result.exit_code == 1
    assert [it.number for it in Engine.asked] == [1]
    assert "--stop-on-failure" in Engine.asked[0].words
    assert "could not be examined" not in result.stdout


def test_shards_that_fail_alike_have_one_program_made_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: two are played when the first comes back; no other begins, and what both met is made small once."""
    small: list[str] = []

    def count(task: tuple[Any, str, str]) -> Any:
        small.append(task[2])
        return make_small(task)

    make_small = findings._make_small
    monkeypatch.setattr(findings, "_make_small", count)
    words = ("--adapter", "faulty-dirty-rows", "--stop-on-failure", "--executor", f"{ENGINE},shards=4")
    folder = tmp_path / "c"
    result = soak(*words, *LONG, "--output", folder, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["exit_status"], document["given_up"]) == (1, 1, {})
    assert [it.number for it in Engine.asked] == [1, 2]
    failed = [
        {json.loads(line).get("failure", {}).get("law") for line in ledger.read_text().splitlines()}
        for ledger in sorted((folder / "shards").glob("*/ledger.jsonl"))
    ]
    assert [sorted(map(str, laws)) for laws in failed] == [["None", "P2"]] * 2
    (row,) = document["adapters"][0]["failures"]
    assert (row["failure"]["law"], row["runs"], small) == ("P2", 2, ["P2"])
    assert [row["short"]] == [f"programs/{path.name}" for path in (folder / "programs").iterdir()]
    again = typed("rerun", folder / row["short"])
    assert (again.exit_code, "P2" in again.stdout) == (1, True)
    (found,) = [it for it in json.loads((folder / "findings.json").read_text())["findings"] if it["program"]]
    assert (found["law"], found["adapters"]) == ("P2", ["faulty-dirty-rows"])


def test_an_interrupt_keeps_what_came_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is let go of at once, and shards that see the folder are told to stop."""

    def interrupt(task: ShardTask) -> None:
        if task.number == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "_max_workers", 1)
    monkeypatch.setattr(Engine, "before", staticmethod(interrupt))
    folder = tmp_path / "c"
    words = ("--executor", f"{ENGINE},shards=3", "--output", folder)
    result = soak(*SHORT, *words)
    assert result.exit_code == 130
    assert f"continue with: pymllm resume {folder} --executor {ENGINE}" in result.stderr
    assert 0 < len(played_halves(folder)) < 6
    assert (folder / STOP).exists()
    assert Engine.closed[0] is False
    monkeypatch.setattr(Engine, "before", staticmethod(lambda task: None))
    assert resume(folder, "--executor", ENGINE).exit_code == 0
    assert not (folder / STOP).exists()
    assert [it.number for it in Engine.asked] == [1, 2, 2, 3]


def test_an_adapter_of_somebody_is_named_again_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: str
) -> None:
    """A campaign of a foreign adapter goes on only if the adapter is named again."""
    monkeypatch.setattr(Engine, "before", staticmethod(first(1, OSError("gone"))))
    name, folder = f"{tiny}:TinyRows", tmp_path / "c"
    words = (
        "--operations",
        "300",
        "--longest",
        "150",
        "--seed",
        "3",
        "--executor",
        f"{ENGINE},shards=1,retries=0",
    )
    result = soak("--adapter", name, *words, "--output", folder)
    assert result.stderr.endswith(f"--executor {ENGINE} --adapter {name}\n")
    refused("resume", folder, "--executor", ENGINE, words=f"add --adapter {name}")
    result = resume(folder, "--executor", ENGINE, "--adapter", name)
    assert (result.exit_code, result.stderr) == (0, "")


def test_deviations_travel_as_text(tmp_path: Path) -> None:
    """The file need not be on the node."""
    known = tmp_path / "known.toml"
    known.write_text(
        '[dirty]\nlaw = "P2"\nadapter = "faulty-dirty-rows"\nkind = "defect"\nreason = "a test"\n'
    )
    words = ("--adapter", "faulty-dirty-rows", "--deviations", known, "--executor", f"{ENGINE},shards=2")
    result = soak(*words, *SHORT[2:], "--output", tmp_path / "c")
    assert (result.exit_code, result.stderr) == (0, "")
    assert {it.known for it in Engine.asked} == {known.read_text()}
    assert read_plan(tmp_path / "c").known == known.read_text()


def test_a_corpus_travels_as_text_and_is_played_as_by_one_process(tmp_path: Path) -> None:
    """Its runs are dealt out with the others; the folder need not be on the node."""
    corpus, several = tmp_path / "corpus", tmp_path / "several"
    assert soak(*SHORT, "--jobs", "1", "--output", tmp_path / "before").exit_code == 0
    assert typed("merge", tmp_path / "before", "--corpus", corpus).exit_code == 0
    text = (corpus / "corpus.jsonl").read_text()
    new = (*SHORT[:-1], "4", "--corpus", corpus)
    assert soak(*new, "--jobs", "1", "--output", tmp_path / "alone").exit_code == 0
    result = soak(*new, "--executor", f"{ENGINE},shards=3,retries=0", "--output", several)
    said = f"pymllm: --corpus {corpus}: runs in it that fit here, and came first: 5 of 5\n"
    assert (result.exit_code, result.stderr) == (0, said)
    assert (several / "ledger.jsonl").read_bytes() == merged(tmp_path / "alone", to=tmp_path / "merged")
    header, *runs = map(json.loads, (several / "ledger.jsonl").read_text().splitlines())
    kept = [it["seed"] for it in header["corpus"]]
    assert len(kept) == text.count("\n") - 1 > 1
    assert [it["seed"] for it in runs[: len(kept)]] == kept
    shards = [(several / "shards" / f"{it}-of-3" / "ledger.jsonl").read_text() for it in (1, 2, 3)]
    assert sum(any(f'"number": {it},' in shard for it in range(len(kept))) for shard in shards) > 1
    assert {it.corpus for it in Engine.asked} == {text} == {read_plan(several).corpus}


def test_a_corpus_that_cannot_travel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is opened; one that is not there yet is empty."""
    words = ("--executor", f"{ENGINE},shards=1", "--output", tmp_path / "c", "--corpus", tmp_path)
    (tmp_path / "corpus.jsonl").write_text("nothing\n")
    refused("soak", *SHORT, *words, words="corpus.jsonl:1: not JSON")
    monkeypatch.setattr(soak_spread, "_CORPUS_LIMIT", 7)
    why = "corpus.jsonl has 8 bytes, and goes out with each shard; with --executor it may have 7."
    refused("soak", *SHORT, *words, words=why)
    assert (Engine.asked, Engine.closed, (tmp_path / "c").exists()) == ([], [], False)
    (tmp_path / "corpus.jsonl").unlink()
    assert soak(*SHORT, *words).exit_code == 0
    assert [it.corpus for it in Engine.asked] == [None]


@pytest.mark.parametrize(
    ("typing", "words"),
    [
        (
            ("--executor", f"{ENGINE},shard=3"),
            "'shard=3' is no setting here, which are shards, retries.",
        ),
        (("--executor", f"{ENGINE},shards=2,shards=3"), "shards is given twice; give it once."),
        (
            ("--executor", ENGINE, "--shard", "1/2"),
            "--shard: a shard plays alone, and --executor makes the shards itself; leave one of them out.",
        ),
        (("--executor", f"{ENGINE},shards=0"), "shards: 0 is not in the range 1<=x<=100000."),
        (("--executor", f"{__name__}:raises"), f"{__name__}:raises: ValueError: no cluster today"),
        (("--executor", "spark"), "--executor 'spark'; it must be one of ray, ray:ADDRESS,"),
        (("--executor", ENGINE, "--adapter", "rowz"), "rowz"),
    ],
)
def test_what_does_not_fit_is_refused(typing: tuple[str, ...], words: str, tmp_path: Path) -> None:
    """Before anything is written or opened."""
    refused("soak", *typing, "--output", tmp_path / "c", words=words)
    assert not (tmp_path / "c").exists()
    assert Engine.asked == []


def test_a_folder_with_a_campaign_is_refused(tmp_path: Path) -> None:
    """It goes on with `pymllm resume`, which takes the number of shards from it."""
    soak(*SHORT, "--executor", f"{ENGINE},shards=2", "--output", tmp_path)
    refused("soak", *SHORT, "--executor", ENGINE, "--output", tmp_path, words="there is a campaign already")
    typing = (tmp_path, "--executor", f"{ENGINE},shards=2")
    refused("resume", *typing, words="'shards=2' is no setting here, which are retries.")
    refused("resume", tmp_path / "no", "--executor", ENGINE, words="there is no shards.json in it")


@pytest.mark.parametrize("name", ["engine.log", "jobs", "measured.jsonl", "findings.json", "shards"])
def test_a_campaign_that_goes_on_writes_through_no_link(name: str, tmp_path: Path) -> None:
    """A campaign that is resumed refuses a file or folder of its own that is a link to another place."""
    folder, mine = tmp_path / "c", tmp_path / "mine"
    soak(*SHORT, "--executor", f"{ENGINE},shards=1", "--output", folder)
    played = len(Engine.asked)
    if (folder / name).exists():
        (folder / name).rename(mine)
    (folder / name).symlink_to(mine)
    words = f"{name} is a link to a place elsewhere; put that in its place"
    refused("resume", folder, "--executor", ENGINE, words=words)
    assert len(Engine.asked) == played


PROGRESS = Progress(
    12, done=3, running=4, retried=2, amount=90_000, failures=1, workers=4, lost={7: "gone"}, trouble="x"
)


def test_one_line_tells_of_all_nodes() -> None:
    """With units, and what went wrong last."""
    assert describe_spread(PROGRESS, 60.0) == (
        "0:01:00  3 of 12 shards done, 4 running, 4 waiting, 2 retried, 1 given up  90,000 operations  "
        "1,500/s  1 failures  4 workers  last trouble: x"
    )
    assert describe_spread(Progress(1), 0.0).endswith("0 operations  -  0 failures")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_progress_is_lines_or_a_bar(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    """Progress is a line every ten seconds or a bar on a terminal, and nothing where it is off."""
    monkeypatch.setattr("sys.stderr", stream)
    now = 0.0
    with spread_display("on", lambda: now) as show:
        show(PROGRESS)
        now = BETWEEN_LINES
        show(PROGRESS)
    text = stream.getvalue()
    assert text.count("3 of 12 shards done") == (1 if not stream.isatty() else text.count("0:00:10"))
    assert ("shards go out" in text) == (not stream.isatty())
    assert "0:00:10" in text
    with spread_display("off") as show:
        show(PROGRESS)
    assert stream.getvalue() == text


def test_help_names_the_engines() -> None:
    """And needs none of them."""
    text = " ".join(soak("--help").stdout.split())
    assert "ray[:ADDRESS], dask:ADDRESS, slurm[:PARTITION], or module:factory" in text
