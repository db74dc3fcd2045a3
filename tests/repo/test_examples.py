"""The example of another project's cache is short and examined from its own tests; its faults are caught."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pymllm.adapters import plugins
from pymllm.adapters.registry import adapters
from pymllm.cli import main
from pymllm.faults.plant import Edit, planted
from pymllm.search.cache_machine import check_adapter

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_project_of_its_own_examines_its_cache(tmp_path: Path) -> None:
    """All that its cache claims: its pytest finds the machine and the check, and both pass."""
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(settings), str(EXAMPLES)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_its_faults_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A1, R6, R8: faults from outside the package are planted and looked for like our own."""
    monkeypatch.syspath_prepend(EXAMPLES)
    arguments = ["faults", "hunt", "--jobs", "1", "--cabinet", "stranger_faults:TABLE"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "5 of 5 faults caught by a listed law" in result.stdout


@pytest.mark.parametrize("name", ["cache", "slots", "blocks"])
def test_what_is_examined_knows_nothing_of_us(name: str) -> None:
    """Less than a hundred lines, and no import of pymllm."""
    text = (EXAMPLES / f"stranger_{name}.py").read_text(encoding="utf-8")
    assert "import pymllm" not in text
    assert "from pymllm" not in text
    assert len(text.splitlines()) < 100


@pytest.mark.parametrize(("name", "limit"), [("", 50), ("slots_", 30), ("blocks_", 80)])
def test_an_adapter_is_short(name: str, limit: int) -> None:
    """The promise of the page: so few lines for a cache, for slots, for blocks, imports not counted."""
    text = (EXAMPLES / f"stranger_{name}adapter.py").read_text(encoding="utf-8")
    assert len(text.partition("\nclass ")[2].splitlines()) < limit


@pytest.mark.parametrize(
    ("adapter", "place", "edit", "law"),
    [
        ("slots_adapter:StrangerSlots", "slots:PageList.take", ["count > len", "count > 2 + len"], "A3"),
        ("slots_adapter:StrangerSlots", "slots:PageList.give_back", ["< len(pages)", "< 0"], "A5"),
        ("blocks_adapter:StrangerBlocks", "blocks:BlockStore.take", [" if at not in parents", ""], "C1"),
        ("blocks_adapter:StrangerBlocks", "blocks:BlockStore.publish", [" and is_below", ""], "C3"),
    ],
)
def test_the_shorter_adapters_show_what_is_wrong(
    adapter: str, place: str, edit: list[str], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hide nothing: what is broken behind them is found by its law."""
    monkeypatch.syspath_prepend(EXAMPLES)
    with planted([Edit(f"stranger_{place}", *edit)]), pytest.raises(AssertionError, match=f"breaks {law}"):
        check_adapter(f"stranger_{adapter}", examples=30, timeout=2)  # parents in a ring never end


def test_its_policy_is_compared_and_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """R5: an order that the judge does not know is held to all laws but that of the order."""
    monkeypatch.syspath_prepend(EXAMPLES)
    options = ["--requests", "30", "--capacity", "4k", "--jobs", "1", "--json"]
    policies = ["--eviction-policy", "lru", "--eviction-policy", "stranger_policy:Cheapest"]
    played = CliRunner().invoke(main, ["replay-serial", "chat", *options, *policies], catch_exceptions=False)
    assert played.exit_code == 0, played.output
    assert [run["config"]["eviction_policy"] for run in json.loads(played.stdout)["runs"]] == policies[1::2]
    examined = ["verify", "--adapter", "stranger_policy:CheapestRadix", "--examples", "5", "--jobs", "1"]
    result = CliRunner().invoke(main, examined, catch_exceptions=False)
    assert " 0 violated" in result.stdout
    (unclaimed,) = [line for line in result.stdout.splitlines() if line.startswith("not claimed: ")]
    assert ", R11, " in unclaimed


def test_a_model_generates_through_the_documented_classes() -> None:
    """E1: with its prefix cached it computes less, says the same, and no slot is lost."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "model_over_caches.py")], capture_output=True, text=True, check=True
    )
    first, warm, cold, slots = done.stdout.splitlines()
    assert first == "48 of 63 prompt tokens were cached, 22 computed"
    assert warm.removeprefix("warm ") == cold.removeprefix("cold ")
    assert slots == "424 slots free + 88 evictable = 512"


PACKAGE = EXAMPLES / "adapter_package"


@pytest.fixture
def bitmap_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Put the package of an adapter on the path, with the metadata that its pyproject.toml comes to."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    facts = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    facts.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (facts / "METADATA").write_text(head, encoding="utf-8")
    points = project["entry-points"][plugins.GROUP]
    lines = [f"[{plugins.GROUP}]", *(f"{name} = {value}" for name, value in points.items())]
    (facts / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    plugins._read_all.cache_clear()
    yield
    plugins._read_all.cache_clear()
    for name in [it for it in sys.modules if it.partition(".")[0] == "bitmap_slots"]:
        del sys.modules[name]


@pytest.mark.usefixtures("bitmap_package")
def test_its_package_brings_its_adapter() -> None:
    """By the name that it gives, in the list, alone and beside others; the list does not import it."""
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".toml", ".py")]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) < 70

    def typed(*words: str) -> str:
        result = CliRunner().invoke(main, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "bitmap-slots" in [entry.name for entry in adapters()]
    assert "bitmap_slots.adapter" not in sys.modules
    (row,) = [line for line in typed("adapters").splitlines() if line.startswith("bitmap-slots ")]
    assert row.endswith("slots as bits of a number")
    few = ["--examples", "5", "--jobs", "1"]
    assert " 0 violated" in typed("verify", "--adapter", "bitmap-slots", *few)
    compared = json.loads(typed("compare", "token-slots", "bitmap-slots", *few, "--json"))
    (row,) = [it for it in compared["matrix"] if it["id"] == "A2"]
    assert [cell["verdict"] for cell in row["cells"]] == ["holds", "holds"]
