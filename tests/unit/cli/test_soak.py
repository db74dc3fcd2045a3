"""``pymllm soak``, ``resume``, ``repeat`` and ``merge``."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from jsonschema import Draft202012Validator
from msgspec import structs
from rich.console import Console

from pymllm.adapters.far import FAR, FAR_BYTES
from pymllm.adapters.registry import OWN
from pymllm.cli.schema import make_schema
from pymllm.cli.soak.soak_options import SoakOptions, rate, spell_out
from pymllm.cli.soak.soak_table import (
    describe_drifts,
    describe_progress,
    make_text,
    progress_table,
    soak_display,
)
from pymllm.documents.campaigns import Failure
from pymllm.errors import InvariantViolation
from pymllm.history.config_limits import check_config
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import AllocRows
from pymllm.history.outcomes import Outcome, Slots
from pymllm.machines.smoke import SmokeFailure
from pymllm.report.records import Curve, Document, Program
from pymllm.report.store import read_run
from pymllm.search.shrinker import Finding
from pymllm.soak import campaign
from pymllm.soak.campaign import SoakPlan
from pymllm.soak.drift import Drift, DriftVerdict
from pymllm.soak.ledger import FILE, Ledger
from pymllm.soak.merging import Conflict
from pymllm.soak.results import SoakReport
from pymllm.soak.schedule import seed_of
from pymllm.soak.totals import Totals
from pymllm.work.shards import Shard
from tests.unit.cli.typed import Terminal, refused, typed
from tests.unit.soak.test_ledger import HEADER, RECORD

SHORT = ("--adapter", "rows", "--operations", "400", "--longest", "200", "--seed", "3", "--jobs", "1")


soak = partial(typed, "soak")
resume = partial(typed, "resume")
merge = partial(typed, "merge")


def test_a_sound_adapter_ends_with_0_a_table_and_a_ledger(tmp_path: Path) -> None:
    """With the seed to play it again, the shares of the time, and the drift."""
    result = soak(*SHORT, "--output", tmp_path / "c")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "seed 3, 400 operations, audit 1/64" in result.stdout
    assert "rows" in result.stdout
    assert "too short to tell" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("holds: 40")
    assert (tmp_path / "c" / FILE).read_text("utf-8").startswith('{"format": "pymllm-soak"')


def test_ledger_and_document_keep_to_their_schemas(tmp_path: Path) -> None:
    """With runs that failed, too."""
    result = soak(*SHORT, "--adapter", "faulty-dirty-rows", "--json", "--output", tmp_path)
    document = json.loads(result.stdout)
    Draft202012Validator(make_schema("soak")).validate(document)
    assert (document["verdict"], document["exit_status"], result.exit_code) == ("violated", 1, 1)
    assert [it["name"] for it in document["adapters"] if it["failures"]] == ["faulty-dirty-rows"]
    validator = Draft202012Validator(make_schema("ledger"))
    for line in (tmp_path / FILE).read_text("utf-8").splitlines():
        validator.validate(json.loads(line))


def test_a_violation_ends_with_1_and_shows_how_to_see_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: the commands that are printed do what they promise."""
    monkeypatch.chdir(tmp_path)
    result = soak(*SHORT, "--adapter", "faulty-dirty-rows", "--operations", 1500, "--output", tmp_path / "c")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert any(line.startswith("P2  VIOLATED by faulty-dirty-rows in ") for line in lines)
    for label in ("again", "the run"):
        line = next(it for it in lines if it.startswith(f"    {label} "))
        for _ in range(2):
            shown = typed(*shlex.split(line.partition("pymllm ")[2]))
            assert (shown.exit_code, "P2" in shown.stdout) == (1, True), (line, shown.stderr)
    assert len([*(tmp_path / "runs").glob("soak-*-2")]) == 1
    assert "        run_program(" in lines


KNOWN = """
[dirty]
law = "P2"
adapter = "faulty-dirty-*"
reason = "its rows are not zeroed"
[gone]
law = "P1"
reason = "it was mended"
"""


def test_what_is_known_fails_no_campaign(tmp_path: Path) -> None:
    """Each run goes on behind it in another program, the same in each campaign; what is gone is told."""
    listed = tmp_path / "known.toml"
    listed.write_text(KNOWN, "utf-8")
    one, two = tmp_path / "one", tmp_path / "two"
    run = (*SHORT, "--adapter", "faulty-dirty-rows", "--operations", 4000, "--longest", 500)
    run = (*run, "--deviations", listed)
    result = soak(*run, "--output", one)
    assert (result.exit_code, "VIOLATED" in result.stdout) == (0, False)
    assert "known     dirty (P2, " in result.stdout
    assert "gone      no program met gone: fixed" in result.stdout
    lines = [json.loads(line) for line in (one / FILE).read_text("utf-8").splitlines()]
    records = [it for it in lines[1:] if it["adapter"] == "faulty-dirty-rows"]
    assert any(it.get("known", {}).get("dirty", 0) > 1 for it in records)  # programs of one run
    assert all(it["operations"] >= it["limit"] for it in records)
    assert all(".known-" in it["version"] for it in lines[1:])  # of all that have an entry in the list
    assert soak(*run, "--strict", "--json", "--output", two).exit_code == 1
    merged = merge(one, two, "--json")
    document = json.loads(merged.stdout)
    assert (merged.exit_code, document["conflicts"]) == (0, [])
    assert [it["status"] for it in document["deviations"]] == ["shows", "gone"]
    resumed = resume(one, "--deviations", listed)
    assert (resumed.exit_code, "No such option '--deviations'" in resumed.stderr) == (2, True)


def memory(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    """Let the machine have so many bytes to give."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=available))


def test_far_is_the_adapter_s_own_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside others that are spelled out; and only where the machine has the memory."""
    memory(monkeypatch, FAR_BYTES)
    assert spell_out(["rows"], [{"max_reqs": 1}]) == ({"max_reqs": 1},)
    assert spell_out(["kv-buffers"], ["far", {"size": 1}]) == (*FAR["kv-buffers"], {"size": 1})
    for config in (*FAR["kv-buffers"], *FAR["gdn-states"]):
        check_config(config)
    memory(monkeypatch, FAR_BYTES - 1)
    why = "a buffer of 4.5 GiB is needed, of which few pages will exist, and 4.5 GiB are available; take a"
    refused("soak", "--adapter", "gdn-states", "--config", "far", words=why)


@pytest.mark.parametrize("adapters", [[], ["radix"], ["kv-buffers", "gdn-states"]])
def test_far_is_for_an_adapter_that_has_such(adapters: list[str]) -> None:
    """One at a time, as every configuration is."""
    typing = [word for name in adapters for word in ("--adapter", name)]
    why = "--config far is for one adapter of kv-buffers, gdn-states; name it."
    refused("soak", *typing, "--config", "far", words=why)


def test_strict_fails_where_something_was_never_reached(tmp_path: Path) -> None:
    """And names it."""
    result = soak(*SHORT, "--operations", 20, "--strict", "--output", tmp_path)
    assert result.exit_code == 1
    assert "coverage goals NEVER REACHED: " in result.stdout
    assert "violated: " in result.stdout.splitlines()[-1]
    assert result.stdout.splitlines()[-1].endswith("coverage goals never reached")


def test_a_campaign_goes_on_and_campaigns_are_merged(tmp_path: Path) -> None:
    """A second campaign beside the first adds up with it; the page is the table."""
    one, two, both = (tmp_path / name for name in ("one", "two", "both"))
    assert soak(*SHORT, "--output", one).exit_code == 0
    lines = (one / FILE).read_text("utf-8").splitlines(keepends=True)
    (one / FILE).write_text("".join(lines[:-1]), encoding="utf-8")
    resumed = resume(one, "--jobs", "1")
    assert resumed.exit_code == 0
    assert len((one / FILE).read_text("utf-8").splitlines()) == len(lines)
    assert soak(*SHORT, "--seed", 4, "--output", two).exit_code == 0
    merged = merge(one, two, "--output", both, "--page", tmp_path / "page.md")
    assert (merged.exit_code, merged.stderr) == (0, "")
    page = (tmp_path / "page.md").read_text("utf-8")
    assert page.startswith("# Soak\n\n```text\n")
    shown = merged.stdout.strip().splitlines()
    assert [line for line in shown if line not in page.splitlines()] == [
        line for line in shown if "--verbose" in line
    ]
    assert len((both / FILE).read_text("utf-8").splitlines()) == 2 * len(lines)


def test_a_shard_is_a_part_of_a_campaign_and_its_command_may_be_typed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which part may be of the environment; what is typed wins."""
    monkeypatch.setenv("PYMLLM_SHARD", "2/2")
    amount = (*SHORT, "--operations", 900)
    one, two = tmp_path / "one", tmp_path / "two"
    assert soak(*amount, "--shard", "1/2", "--output", one).exit_code == 0
    second = soak(*amount, "--output", two)
    assert (second.exit_code, second.stderr) == (0, "pymllm: this is shard 2/2, as PYMLLM_SHARD says\n")
    headers = [json.loads((it / FILE).read_text("utf-8").splitlines()[0]) for it in (one, two)]
    assert [it["shard"] for it in headers] == [[1, 2], [2, 2]]
    before = (two / FILE).read_bytes()
    assert soak(*amount, "--output", two).exit_code == 0
    assert resume(two, "--jobs", 1).exit_code == 0
    assert (two / FILE).read_bytes() == before
    assert "another shard" in soak(*amount, "--output", one).stderr


@pytest.mark.parametrize(
    ("value", "words", "why"),
    [
        ("junk", ["--seed", 1], "PYMLLM_SHARD='junk' is no shard; write I/N"),
        ("env/3", ["--seed", 1], "PYMLLM_SHARD=env/3: none of SLURM_ARRAY_TASK_ID,"),
        ("1/2", [], "PYMLLM_SHARD=1/2: all shards are of one campaign; give each the same --seed"),
        ("1/2", ["--seed", 1, "--strict"], "the whole campaign, PYMLLM_SHARD=1/2 for a part; give it to"),
    ],
)
def test_a_refusal_names_the_variable_that_made_a_shard(
    value: str, words: list[object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody typed --shard."""
    monkeypatch.setenv("PYMLLM_SHARD", value)
    refused("soak", *words, words=why)


@pytest.mark.parametrize("value", ["junk", "1/2", "env"])
def test_a_merge_has_no_shards_whatever_the_variable_says(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for by verbs that have shards only."""
    assert soak(*SHORT, "--operations", 300, "--output", tmp_path / "c").exit_code == 0
    monkeypatch.setenv("PYMLLM_SHARD", value)
    merged = merge(tmp_path / "c")
    assert (merged.exit_code, merged.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--shard", "3/2", "--seed", 1], "--shard 3/2: 3 is no shard of 2"),
        (["--shard", "env", "--seed", 1], "--shard env: none of SLURM_ARRAY_TASK_ID,"),
        (["--shard", "env/3", "--seed", 1], "--shard env/3: none of SLURM_ARRAY_TASK_ID,"),
        (["--shard", "1/2"], "--shard 1/2: all shards are of one campaign; give each the same --seed"),
        (["--shard", "1/2", "--seed", 1, "--strict"], "--strict is for the whole campaign"),
    ],
)
def test_shards_that_make_no_sense_are_refused(words: list[object], why: str) -> None:
    """In one line."""
    refused("soak", *words, words=why)


def test_the_folder_of_a_shard_says_which_it_is() -> None:
    """So that shards of one machine do not meet."""
    plan, folder = replace(NONE, shard=Shard(2, 3), seed=7).settle()
    assert (plan.shard, folder) == (Shard(2, 3), Path("runs") / "soak-7-2-of-3")


def test_a_merge_of_some_shards_is_unknown_and_names_the_rest(tmp_path: Path) -> None:
    """Runs and shards; once all are there it holds."""
    amount = (*SHORT, "--operations", 900)
    for number in (1, 2, 3):
        assert soak(*amount, "--shard", f"{number}/3", "--output", tmp_path / f"{number}").exit_code == 0
    some = merge(tmp_path / "1", tmp_path / "3", "--json")
    document = json.loads(some.stdout)
    Draft202012Validator(make_schema("soak")).validate(document)
    (campaign,) = document["campaigns"]
    assert (some.exit_code, document["verdict"], campaign["shard"]) == (3, "unknown", None)
    assert campaign["missing_runs"] == sum(last - first + 1 for first, last in campaign["missing"]) > 0
    told = merge(tmp_path / "3", tmp_path / "1").stdout
    assert f"seed 3: {campaign['missing_runs']} of {campaign['runs']} runs are missing: 1" in told
    assert "\nseed 3: no ledger of 1 shard: 2/3\n" in told
    assert f"; {campaign['missing_runs']} run" in told.splitlines()[-1]
    whole = merge(*(tmp_path / f"{number}" for number in (3, 2, 1)))
    assert (whole.exit_code, "missing" in whole.stdout) == (0, False)


def test_a_shard_that_died_before_its_first_line_stops_no_merge(tmp_path: Path) -> None:
    """A merge names a folder without a ledger and tells the other runs; such folders alone are refused."""
    for number in (1, 2):
        shard = ("--operations", 900, "--shard", f"{number}/3", "--output", tmp_path / f"{number}")
        assert soak(*SHORT, *shard).exit_code == 0
    begun = (tmp_path / "1" / "ledger.jsonl").read_bytes()
    for name, content in (("empty", None), ("nothing", b""), ("torn", begun[:40])):
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "ledger.jsonl").write_bytes(content)
        folders = (tmp_path / "1", tmp_path / name, tmp_path / "2")
        merged = merge(*folders, "--store", tmp_path / f"store-{name}")
        assert merged.exit_code == 3
        assert f"\n{tmp_path / name}: no ledger; what it was to have counts as missing\n" in merged.stdout
        document = json.loads(merge(*folders, "--json").stdout)
        assert document["without_ledger"] == [str(tmp_path / name)]
        assert merge(tmp_path / name).exit_code == 2


def test_shards_of_two_versions_are_told_apart(tmp_path: Path) -> None:
    """Shards of two versions are two campaigns, and each lacks the other's runs."""
    for number in (1, 2):
        shard = ("--operations", 900, "--shard", f"{number}/2", "--output", tmp_path / f"{number}")
        assert soak(*SHORT, *shard).exit_code == 0
    ledger = tmp_path / "2" / "ledger.jsonl"
    version = json.loads(ledger.read_text("utf-8").partition("\n")[0])["version"]
    ledger.write_text(ledger.read_text("utf-8").replace(version, "0.9+older"), encoding="utf-8")
    told = merge(tmp_path / "1", tmp_path / "2").stdout
    assert f"seed 3 of {version}: " in told
    assert "seed 3 of 0.9+older: " in told


def test_a_merge_makes_small_what_shards_found_and_knows_a_baseline(tmp_path: Path) -> None:
    """P2: once; what was known then fails no later merge, and a corpus is played."""
    amount = (*SHORT, "--adapter", "faulty-dirty-rows", "--operations", 1500)
    parts = [tmp_path / "1", tmp_path / "2"]
    for number, part in enumerate(parts, 1):
        assert soak(*amount, "--shard", f"{number}/2", "--output", part).exit_code in (0, 1)
    corpus, old = tmp_path / "corpus", tmp_path / "old"
    words = ("--shrink", 1, "--corpus", corpus, "--jobs", 1, "--store", tmp_path / "store")
    first = merge(*parts, "--output", old, *words)
    assert (first.exit_code, "left out" in first.stderr) == (1, False)
    (kept,) = (it for it in read_run(*(tmp_path / "store").iterdir()).records if isinstance(it, Program))
    assert kept.file.startswith("programs/P2-")
    (small,) = (old / "programs").iterdir()
    lines = first.stdout.splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.startswith("P2  VIOLATED by faulty-dirty"))
    told = {line[4:15].strip(): line[15:] for line in reversed(lines[head + 1 : head + 10])}
    assert (told["expected"], told["observed"]) == ("0", "1")
    assert re.fullmatch(r"step \d+, in a program of \d+ steps \(.*\)", told["at"])
    assert told["again"] == f"pymllm rerun {small} --adapter faulty-dirty-rows"
    assert re.search(r"/[12]/programs/faulty-dirty-rows-P2-\d+\.jsonl --adapter", told["as played"])
    assert "        run_program(" in lines
    assert typed(*shlex.split(told["again"])[1:]).exit_code == 1
    again = merge(*parts, "--shrink", 1, "--baseline", old, "--jobs", 1)
    assert "    program\n" in again.stdout
    assert "    again " not in again.stdout  # where nobody wrote it
    assert again.exit_code == 0, again.stdout
    assert "known     P2 of faulty-dirty-rows, program of " in again.stdout
    assert again.stdout.splitlines()[-1].endswith("0 findings not in the baseline")
    (old / "findings.json").write_text('{"schema": "pymllm.findings", "version": 1, "findings": []}', "utf-8")
    news = merge(*parts, "--baseline", old / "findings.json", "--json")
    document = json.loads(news.stdout)
    Draft202012Validator(make_schema("soak")).validate(document)
    assert (news.exit_code, [it["new"] for it in document["findings"]]) == (1, [True])
    assert soak(*SHORT, "--corpus", corpus, "--output", tmp_path / "c").exit_code == 0
    assert json.loads((tmp_path / "c" / FILE).read_text("utf-8").splitlines()[0])["corpus"]


def test_ledgers_that_contradict_each_other_break_x3(tmp_path: Path) -> None:
    """It is counted and named in the summary, the table and the document; a baseline does not excuse it."""
    known = structs.replace(RECORD, failure=None)
    for name, digest in (("one", "abc"), ("two", "other")):
        with Ledger(tmp_path / name / FILE) as ledger:
            ledger.add(HEADER)
            ledger.add(structs.replace(known, digest=digest))
    words = ("merge", tmp_path / "one", tmp_path / "two")
    told = typed(*words)
    lines = told.stdout.splitlines()
    assert told.exit_code == 1
    assert re.fullmatch(r"violated: .* 1 broken; .*; 1 run that differed when repeated", lines[-1])
    assert "X3  VIOLATED by rows in 1 run: the same program gives the same outcomes" in lines
    assert "    expected   digest abc" in lines
    assert "    observed   digest other" in lines
    assert next(line.split() for line in lines if line.startswith("rows "))[-1] == "1"
    document = json.loads(typed(*words, "--json").stdout)
    Draft202012Validator(make_schema("soak")).validate(document)
    (failure,) = document["adapters"][0]["failures"]
    assert (failure["failure"]["law"], failure["runs"], len(document["conflicts"])) == ("X3", 1, 1)
    assert (document["verdict"], document["exit_status"]) == ("violated", 1)
    (tmp_path / "none.json").write_text(
        '{"schema": "pymllm.findings", "version": 1, "findings": []}', "utf-8"
    )
    assert typed(*words, "--baseline", tmp_path / "none.json").exit_code == 1
    assert merge(tmp_path / "one", tmp_path / "one").exit_code == 0


def test_a_merge_runs_no_adapter_that_a_ledger_alone_names(tmp_path: Path) -> None:
    """Only --shrink runs any."""
    strange = structs.replace(RECORD, adapter="my:Rows", failure=Failure("P2", "held"))
    with Ledger(tmp_path / FILE) as ledger:
        ledger.add(HEADER)
        ledger.add(strange)
    assert merge(tmp_path).exit_code == 1
    refused("merge", tmp_path, "--shrink", 1, words="names the adapter 'my:Rows', which may run any")


def test_merged_campaigns_are_kept_in_a_store(tmp_path: Path) -> None:
    """With the runs and the memory of all of them, and the program that one of them has."""
    sound, faulty, store = tmp_path / "sound", tmp_path / "faulty", tmp_path / "store"
    assert soak(*SHORT, "--output", sound).exit_code == 0
    failing = (*SHORT, "--adapter", "faulty-dirty-rows", "--operations", 1500, "--seed", 4)
    assert soak(*failing, "--output", faulty).exit_code == 1
    merged = merge(sound, faulty / FILE, "--store", store)
    assert (merged.exit_code, "kept in " in merged.stderr) == (1, True)
    (file,) = store.iterdir()
    records = read_run(file).records
    (document,) = (it.document for it in records if isinstance(it, Document))
    lines = [(folder / FILE).read_text("utf-8").splitlines() for folder in (sound, faulty)]
    assert document["runs"] == sum(map(len, lines)) - 2
    assert sum(isinstance(it, Curve) for it in records) == 2  # of the process of each campaign
    assert any(isinstance(it, Program) for it in records)


def test_files_that_cannot_be_read_or_written_are_bad_input(tmp_path: Path) -> None:
    """One line says which."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / FILE).write_text("no ledger\n", encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments in (
        ["soak", *SHORT, "--output", tmp_path / "file" / "c"],
        ["resume", tmp_path / "bad", "--jobs", "1"],
        ["merge", tmp_path / "bad"],
        ["merge", empty],
    ):
        result = typed(*arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert soak(*SHORT, "--output", empty).exit_code == 0
    assert "there is a ledger already" in merge(empty, "--output", empty).stderr


def test_a_page_is_not_written_over_a_campaign(tmp_path: Path) -> None:
    """Neither over a ledger that is there or will be, nor over a program."""
    assert soak(*SHORT, "--output", tmp_path / "c").exit_code == 0
    ledger = tmp_path / "c" / FILE
    (tmp_path / "link").symlink_to(ledger)
    (tmp_path / "twin").hardlink_to(ledger)
    (tmp_path / "new").mkdir()
    before = ledger.read_bytes()
    for page in (ledger, tmp_path / "link", tmp_path / "twin", tmp_path / "new" / FILE):
        for arguments in (["merge", tmp_path / "c"], ["resume", tmp_path / "c"], ["soak", *SHORT]):
            result = typed(*arguments, "--page", page)
            assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
            assert "name another file" in result.stderr
    assert ledger.read_bytes() == before


def test_a_campaign_that_goes_on_writes_nothing_through_links(tmp_path: Path) -> None:
    """A campaign that goes on does not write through links, though its program names can be foreseen."""
    folder, mine = tmp_path / "c", tmp_path / "mine"
    failing = (*SHORT, "--adapter", "faulty-dirty-rows", "--operations", 1500)
    assert soak(*failing, "--output", folder).exit_code == 1
    header, *_ = (folder / FILE).read_text("utf-8").splitlines()
    (folder / FILE).write_text(f"{header}\n", encoding="utf-8")
    mine.write_text("mine", encoding="utf-8")
    programs = sorted((folder / "programs").iterdir())
    for path in programs:
        path.unlink()
        path.symlink_to(mine)
    assert resume(folder, "--jobs", 1).exit_code == 1
    assert mine.read_text(encoding="utf-8") == "mine"
    assert all(path.is_symlink() for path in programs)
    (folder / FILE).rename(tmp_path / FILE)
    (folder / FILE).symlink_to(tmp_path / FILE)
    before = (tmp_path / FILE).read_bytes()
    result = resume(folder, "--jobs", 1)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "ledger.jsonl is a link to a file elsewhere" in result.stderr
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "nokind"}, "kind is 'nokind'; it must be one of slots, rows"),
        ({"kind": "slots"}, "a machine is 'RowMachine'; it must be one of SlotMachine"),
        ({"machine": "os"}, "a machine is 'os'; it must be one of RowMachine"),
        ({"size": "huge"}, "a size is 'huge'; it must be one of tiny"),
    ],
)
def test_a_ledger_with_a_place_that_there_is_not_does_not_go_on(
    tmp_path: Path, changes: dict[str, str], why: str
) -> None:
    """In one line."""
    assert soak(*SHORT, "--output", tmp_path).exit_code == 0
    header, *runs = (tmp_path / FILE).read_text("utf-8").splitlines()
    plain = json.loads(header)
    plain["places"] = [place | changes for place in plain["places"]]
    (tmp_path / FILE).write_text("\n".join([json.dumps(plain), *runs]) + "\n", encoding="utf-8")
    refused("resume", tmp_path, "--jobs", 1, words=why)
    plain["longest"] = 0
    plain["places"] = []
    (tmp_path / FILE).write_text(json.dumps(plain) + "\n", encoding="utf-8")
    assert "longest is 0; a run has 1 operation or more" in resume(tmp_path).stderr


def test_a_class_of_this_folder_is_found_again_when_its_campaign_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every run that is left would be written down as a problem of its adapter."""
    text = "from pymllm.adapters.own_pools import Rows\n\n\nclass MyRows(Rows):\n    pass\n"
    (tmp_path / "rows_here.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    result = soak(*SHORT[2:], "--adapter", "rows_here:MyRows", "--output", tmp_path / "c")
    ledger = tmp_path / "c" / FILE
    lines = ledger.read_text("utf-8").splitlines(keepends=True)
    ledger.write_text("".join(lines[:-1]), encoding="utf-8")
    sys.path.remove(str(tmp_path))
    assert "rows_here" not in sys.modules  # it was loaded in another process
    refused = resume("c", "--jobs", "1")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "c/ledger.jsonl: names the adapter 'rows_here:MyRows', which may run any code" in refused.stderr
    assert "rows_here" not in sys.modules
    resumed = resume("c", "--jobs", "1", "--adapter", "rows_here:MyRows")
    assert (result.exit_code, resumed.exit_code) == (0, 0), resumed.output
    assert len(ledger.read_text("utf-8").splitlines()) == len(lines)


def test_a_ledger_that_names_a_command_starts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_program: Callable[..., str]
) -> None:
    """Its digest is of files that its author chose, too; the user names the command, or none runs."""
    monkeypatch.chdir(tmp_path)
    assert soak(*SHORT, "--output", "c").exit_code == 0
    ledger = Path("c") / FILE
    header = json.loads(ledger.read_text("utf-8").splitlines()[0])
    header["places"] = [{**place, "adapter": "command:touch ran"} for place in header["places"]]
    ledger.write_text(json.dumps(header) + "\n", encoding="utf-8")
    refused = resume("c", "--jobs", 1)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "add --command 'touch ran'" in refused.stderr
    assert not Path("ran").exists()
    named = soak("--command", tiny_program("hello", "kill"), "--operations", 60, "--seed", 3, "--jobs", 1)
    said = f"command:{tiny_program('hello', 'kill')} could not be"
    assert (named.exit_code, said in named.stdout) == (3, True)


@pytest.mark.usefixtures("work_here")
def test_an_interrupted_campaign_of_a_stranger_names_its_adapter_again(
    tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted campaign tells its runs so far, and its line to continue can be typed."""
    plays = iter([True, False])
    play = campaign.play_run

    def interrupted(task: object) -> object:
        if not next(plays):
            raise KeyboardInterrupt
        return play(task)  # type: ignore[arg-type]  # a task

    monkeypatch.setattr(campaign, "play_run", interrupted)
    folder = tmp_path / "my runs"
    result = soak(*SHORT, "--adapter", f"{tiny}:KeepsEntries", "--output", folder)
    assert (result.exit_code, "in 1 runs" in result.stdout) == (130, True)
    said = next(line for line in result.stderr.splitlines() if "continue with" in line)
    assert said == f"pymllm: continue with: pymllm resume '{folder}' --adapter {tiny}:KeepsEntries"
    monkeypatch.setattr(campaign, "play_run", play)
    resumed = typed(*shlex.split(said.partition("with: pymllm ")[2]), "--jobs", 1)
    assert resumed.exit_code == 1, resumed.stderr


def test_planted_faults_are_looked_for_by_campaigns(tiny: str) -> None:
    """P2: each gets its own operations; no ledger is left."""
    amount = ("--operations", "3000", "--longest", "300", "--seed", "3", "--jobs", "1")
    result = typed("faults", "soak", "--cabinet", "tiny_cabinet:TABLE", "dirty", *amount, "--json")
    document = json.loads(result.stdout)
    Draft202012Validator(make_schema("faults")).validate(document)
    (row,) = document["faults"]
    assert (result.exit_code, row["caught"]) == (0, True)
    assert (row["detections"][0]["law"], row["detections"][0]["searcher"]) == ("P2", "campaign")


@pytest.fixture
def totals() -> Totals:
    """One run, which failed."""
    made = Totals([HEADER])
    made.add(RECORD)
    return made


def test_a_line_has_everything(totals: Totals) -> None:
    """Time, operations, rate, laws, coverage goals, memory, failures."""
    line = describe_progress(totals, 3725.0)
    for part in (
        "1:02:05",
        "101 operations",
        "0/s",
        "1 laws",
        "coverage goals 0 of ",
        "0.0 MiB",
        "1 failure",
    ):
        assert part in line
    assert "  -  " in describe_progress(totals, 0.0)


def drift(measure: str, verdict: DriftVerdict) -> Drift:
    """Make a verdict."""
    return Drift(measure, "bytes", None, None, None, 1.0, 9, 1, verdict)


def test_a_line_says_how_memory_goes(totals: Totals) -> None:
    """Measure by measure where they differ, and once where they do not."""
    flat = [drift(name, DriftVerdict.FLAT) for name in ("blocks", "malloc")]
    assert describe_drifts(flat) == "flat"
    words = describe_drifts([*flat, drift("uss", DriftVerdict.GROWS)])
    assert words == "blocks flat, malloc flat, uss grows"
    assert f"memory 0.0 MiB ({words})  1 failure" in describe_progress(totals, 1.0, words)


def test_the_table_has_a_row_for_each_adapter(totals: Totals) -> None:
    """The row of an adapter has its laws and coverage goals, out of all of them."""
    console = Console(file=io.StringIO(), width=140)
    with console.capture() as captured:
        console.print(progress_table(totals, 1.0))
    row = next(line for line in captured.get().splitlines() if line.startswith("rows"))
    assert row.split()[:4] == ["rows", "1", "101", "81"]


def test_a_terminal_gets_a_table_now_and_then(totals: Totals, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread draws, and not every run does."""
    now = [0.0]
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with soak_display("auto", lambda: now[0]) as show:
        assert show is not None
        show(totals)
        assert "rows" not in terminal.getvalue()
        now[0] = 1.0
        show(totals)
        assert "rows" in terminal.getvalue()


def test_elsewhere_there_are_lines(totals: Totals, monkeypatch: pytest.MonkeyPatch) -> None:
    """One every ten seconds."""
    now = [0.0]
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    with soak_display("auto", lambda: now[0]) as show:
        assert show is not None
        for at in (1.0, 11.0, 12.0, 22.0):
            now[0] = at
            show(totals)
    assert [line.split()[:2] for line in pipe.getvalue().splitlines()] == [
        ["pymllm:", "0:00:11"],
        ["pymllm:", "0:00:22"],
    ]


def test_nothing_is_shown_where_nothing_is_wanted_or_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed standard error stays closed."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with soak_display("off") as show:
        assert show is None
    monkeypatch.setattr(sys, "stderr", None)
    with soak_display("on") as show:
        assert show is None


def test_everything_that_can_come_out_keeps_to_the_schema() -> None:
    """And is there; so does an empty report, of a campaign that had no time."""
    document = json.loads(json.dumps(SoakReport((HEADER,), Totals(), ()).document().plain()))
    Draft202012Validator(make_schema("soak")).validate(document)
    assert (document["folder"], document["verdict"]) == (None, "unknown")
    totals = Totals([HEADER])
    totals.add(RECORD)
    drifts = (
        Drift("uss", "bytes", 2.55, 1.0, 3.0, 9.0, 40, 1, DriftVerdict.FLAT),
        Drift("blocks", "blocks", None, None, None, 9.0, 3, 1, DriftVerdict.TOO_SHORT),
    )
    conflicts = (Conflict(RECORD, structs.replace(RECORD, digest="other")),)
    refused = (SmokeFailure("gone", None, "why"),)
    report = SoakReport((HEADER,), totals, drifts, 1.23456, 2, Path("c"), {}, refused, conflicts)
    document = json.loads(json.dumps(report.document(strict=True).plain()))
    Draft202012Validator(make_schema("soak")).validate(document)
    assert (document["verdict"], document["exit_status"], document["strict"]) == ("violated", 1, True)
    assert document["campaigns"][0]["source"] == "1+a"
    assert document["adapters"][0]["failures"][0]["failure"]["step"] == 44
    assert [it["verdict"] for it in document["drifts"]] == ["flat", "too short to tell"]
    assert document["drifts"][0]["slope"] == 2.5
    assert document["drifts"][1]["slope"] is None
    assert (document["refused"], len(document["conflicts"])) == ({"gone": "why"}, 1)


NONE = SoakOptions((), timeout=30.0, jobs=2)


def test_a_rate_is_operations_between_two_walks() -> None:
    """A rate is read as operations between two walks, 0 is none, and another text is refused."""
    assert [rate(text) for text in ("every", "off", "1/64", "1/1", " 1/1000 ")] == [1, 0, 64, 1, 1000]
    for text in ("", "64", "1/0", "2/64", "1/x", "always", "1/-4"):
        with pytest.raises(click.BadParameter, match="write every, off, or 1/64"):
            rate(text)


def test_defaults_are_ten_minutes_over_everything_from_a_drawn_seed() -> None:
    """A campaign of a number of operations has no clock, unless both are given."""
    plan, folder = NONE.settle()
    assert (plan.adapters, plan.seconds, plan.operations) == (OWN, 600.0, None)
    assert (plan.longest, plan.audit) == (SoakPlan(OWN).longest, SoakPlan(OWN).audit)
    assert folder == Path("runs") / f"soak-{plan.seed}"
    assert NONE.settle()[0].seed != plan.seed
    assert replace(NONE, operations=5).settle()[0].seconds is None
    both = replace(NONE, operations=5, minutes=0.5, audit=0).settle()[0]
    assert (both.seconds, both.operations, both.audit) == (30.0, 5, 0)


def test_one_run_has_no_clock_and_a_folder_of_its_own() -> None:
    """It is named by its seed."""
    plan, folder = replace(NONE, adapters=("rows", "rows"), configs=({},), run=77).settle()
    assert (plan.run, plan.seconds, len(plan.adapters)) == (77, None, 1)
    assert folder == Path("runs") / "soak-77"


def test_a_campaign_is_not_written_over(tmp_path: Path) -> None:
    """It can go on, or another folder be chosen."""
    (tmp_path / FILE).touch()
    with pytest.raises(click.UsageError, match="pymllm resume it"):
        replace(NONE, output=tmp_path).settle()
    resumed = replace(NONE, resume=tmp_path)
    resumed.check()
    assert resumed.settle()[1] == tmp_path
    assert resumed.settle()[0].seconds == 600.0
    assert resumed.settle(5_000)[0].seconds is None


def test_a_ledger_alone_makes_no_code_run(tmp_path: Path) -> None:
    """Our adapters may go on by a ledger alone, and a module or a command is named again."""
    resumed = replace(NONE, resume=tmp_path)
    resumed.check_resumed(["rows", "faulty-dirty-rows", "rows"])
    replace(resumed, adapters=("rows",)).check_resumed(["rows", "radix"])
    replace(resumed, adapters=("my:Rows",)).check_resumed(["rows", "my:Rows"])
    for names, adapters, why in (
        (["rows", "my:Rows"], (), "ledger.jsonl: names the adapter 'my:Rows', .* add --adapter my:Rows "),
        (["command:./x y"], ("rows",), "--adapter rows: the campaign in .* runs command:./x y; leave it out"),
        (
            ["command:./x y", "my:Rows"],
            ("my:Rows",),
            "names the adapter 'command:./x y', .* --command './x y'",
        ),
        (["old-rows"], (), "no adapter 'old-rows'"),
        ([], ("rows",), "runs no adapter"),
    ):
        with pytest.raises(click.UsageError, match=why):
            replace(resumed, adapters=tuple(adapters)).check_resumed(names)


MIB = 1 << 20


@pytest.fixture
def report() -> SoakReport:
    """Everything that can come out of a campaign."""
    totals = Totals([HEADER])
    kept = structs.replace(RECORD, file="programs/x.jsonl", short="programs/x-short.jsonl")
    totals.add(kept)
    totals.add(structs.replace(RECORD, seed=10, failure=Failure(None, "it went\naway")))
    history = History(Header("rows", "rows"), [Step(1, AllocRows(1), Outcome(Slots((1,))))])
    finding = Finding(InvariantViolation("P2", "row 2", expected="0", observed="7"), history, True, True)
    drifts = (
        Drift("uss", "bytes", 2.5 * MIB, 2.0 * MIB, 3.0 * MIB, MIB, 40, 1, DriftVerdict.GROWS),
        Drift("blocks", "blocks", None, None, None, 50_000.0, 3, 1, DriftVerdict.TOO_SHORT),
    )
    return SoakReport(
        (HEADER,),
        totals,
        drifts,
        61.0,
        2,
        Path("folder"),
        {("rows", "P2"): finding},
        (SmokeFailure("gone:Rows", None, "cannot import gone"),),
        (Conflict(RECORD, structs.replace(RECORD, digest="other")),),
        differing=1,
        given_up={"2/3": "gone"},
    )


def test_the_text_says_everything(report: SoakReport) -> None:
    """Runs, speed, shares of time, memory, failures, and the command that repeats one."""
    text = make_text(report)
    lines = text.splitlines()
    assert "--verbose explains the words of these tables" in lines
    explanation = "judge                      Share in the oracle."
    assert explanation not in lines
    assert explanation in make_text(report, verbose=True).splitlines()
    assert lines[0] == "python 3"
    assert lines[1] == "source 1+a, seed 7, 1,000 operations, audit 1/64"
    assert lines[2] == "0:01:01 in 2 processes, ledger in folder"
    played, times = (line.split() for line in lines if line.startswith("rows   "))
    assert played[:6] == ["rows", "1", "of", "1", "2", "202"]
    shares = "40.0 %  20.0 %  0.0 %  0.0 %  0.0 %"
    assert times == ["rows", "81", *shares.split()]
    uss = next(line for line in lines if line.startswith("uss")).split("  ")
    assert "|".join(part.strip() for part in uss if part) == "uss|2.5 MiB|2 MiB|3 MiB|1 MiB|40|grows"
    assert "50,000 blocks" in text
    assert "P2  VIOLATED by rows in 1 run: " in text
    assert "observed   7" in text
    assert "found      1+a, " in text
    assert "seed 9, step 44" in text
    assert "the run    pymllm repeat 9 --adapter " in text
    assert " --operations 100 --machine RowMachine --audit 1/64" in text
    assert "again      pymllm rerun folder/programs/x-short.jsonl --adapter rows" in text
    assert "as played  pymllm rerun folder/programs/x.jsonl --adapter rows" in text
    assert "rows  ended with an error in 1 run" in text
    assert "it went\\naway" in text
    assert "gone:Rows could not be examined: cannot import gone\n" in text
    assert "the same run gave other results (X3): 1 run\n    seed 9 of rows" in text
    assert "given up: 1 shard, whose runs are missing\n    2/3        gone" in text
    missing = f"rows: {len(report.missing['rows'])} coverage goals not reached"
    assert f"\n{missing}; --verbose names them\n" in text
    assert f"\n{missing}: {'; '.join(report.missing['rows'])}\n" in make_text(report, verbose=True)
    assert "coverage goals NEVER REACHED: " in make_text(report, strict=True)
    assert text.index("P2  VIOLATED") < text.index("implementation  places")


def test_a_failure_of_another_session_has_its_message(report: SoakReport) -> None:
    """A ledger has no finding; paths are as the ledger has them."""
    text = make_text(replace(report, findings=None, folder=None, seconds=0.0))
    assert "looked at  row 1" in text
    assert f"at         step 44, in a program of {RECORD.operations} steps (" in text
    assert "rerun programs/x.jsonl" in text
    assert "processes" not in text


def test_a_program_that_was_not_made_smaller_to_the_end_says_so(report: SoakReport) -> None:
    """And one that is too long to be printed as a whole says how much of it is missing."""
    assert "    program\n" in make_text(report)
    (key,) = report.findings or {}
    steps = [Step(number, AllocRows(1), Outcome(Slots((number,)))) for number in range(1, 101)]
    finding = replace(
        (report.findings or {})[key], history=History(Header("rows", "rows"), steps), is_unfinished=True
    )
    text = make_text(replace(report, findings={key: finding}))
    assert "    program    perhaps not the smallest: time was up (pymllm shrink continues from it)\n" in text
    assert text.count(" AllocRows(1)") == 33
    assert "        ... and 69 lines more\n" in text


def test_programs_of_merged_campaigns_are_named_where_they_are(report: SoakReport, tmp_path: Path) -> None:
    """In the folder of their campaign, wherever the ledgers were put together."""
    (tmp_path / "two" / "programs").mkdir(parents=True)
    (tmp_path / "two" / "programs" / "x.jsonl").write_text("", encoding="utf-8")
    parts = (tmp_path / "one", tmp_path / "two")
    for folder in (None, tmp_path / "all"):
        text = make_text(replace(report, findings=None, folder=folder, parts=parts))
        assert f"as played  pymllm rerun {tmp_path}/two/programs/x.jsonl --adapter rows" in text


def test_a_run_of_merged_campaigns_is_walked_as_in_its_own(report: SoakReport) -> None:
    """A fault that only walks show does not show where they come later, or not at all."""
    other, own = structs.replace(HEADER, seed=8, audit=0), structs.replace(HEADER, seed=9, audit=1)
    record = structs.replace(RECORD, seed=seed_of(own, RECORD.number))
    totals = Totals([other, own])
    totals.add(record)
    text = make_text(replace(report, headers=(other, own), totals=totals, findings=None))
    assert f"pymllm repeat {record.seed} --adapter" in text
    assert " --operations 100 --machine RowMachine --audit every" in text


def last_of(report: SoakReport, *, strict: bool = False) -> str:
    return make_text(report, strict=strict).splitlines()[-1]


def test_the_last_line_sums_up(report: SoakReport) -> None:
    """The verdict first; a campaign that played nothing has one, too."""
    assert last_of(report).startswith("violated: 202 operations in 2 runs; 0:00:02 of CPU time; ")
    assert last_of(report).endswith(
        "2 errors of adapters; 1 shard given up; 1 run that differed when repeated"
    )
    nothing = last_of(SoakReport((), Totals(), ()))
    assert nothing.startswith("unknown: 0 operations in 0 runs; ")
    assert nothing.endswith("0 of 0 coverage goals reached, counted for each adapter")


def test_the_last_line_says_what_only_a_strict_campaign_fails_for(report: SoakReport) -> None:
    """Coverage goals at zero, and the measures that grow; neither where nobody was strict."""
    assert "--strict" not in last_of(report)
    missing = len(report.missing["rows"])
    assert last_of(report, strict=True).endswith(
        f"; failed by --strict: {missing} coverage goals never reached"
        "; failed by --strict: memory grows (uss)"
    )
    assert "--strict" not in last_of(replace(report, totals=Totals(), drifts=()), strict=True)


def test_a_ledger_of_a_stranger_forges_no_line(report: SoakReport) -> None:
    """Its words stand in one line each, and what may be typed is quoted."""
    name = "evil\nholds: all is well\x1b[2J"
    bad = structs.replace(
        RECORD, adapter=name, machine="$(touch x)", version="1\n2", failure=Failure("ZZ99", "row")
    )
    totals = Totals([structs.replace(HEADER, version="9\n\x1b[31m", versions={"a\n": "b"})])
    totals.add(bad)
    text = make_text(replace(report, headers=(HEADER,), totals=totals, findings=None))
    assert not any(line.startswith("holds: ") for line in text.splitlines())
    assert "\x1b" not in text
    assert (
        "ZZ99  VIOLATED by evil\\nholds: all is well\\x1b[2J in 1 run: a law that this version does not know"
        in text
    )
    assert "--machine '$(touch x)' --audit" in text
    headed = make_text(replace(report, headers=(structs.replace(HEADER, version="9\nX"),)))
    assert "source 9\\nX, seed 7" in headed
