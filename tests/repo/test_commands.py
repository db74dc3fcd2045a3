"""The commands that people are told to type exist, and say the same wherever they are written."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tox_ini() -> ConfigParser:
    parser = ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini", encoding="utf-8")
    return parser


def words_of_tox() -> set[str]:
    """Environments that carry one word; the cells of the matrix go by their labels."""
    sections = [name.removeprefix("testenv:") for name in tox_ini().sections() if ":" in name]
    return {name for name in sections if "{" not in name and not name.startswith(".")}


def labels_of_tox() -> set[str]:
    return {line.split("=")[0].strip() for line in tox_ini()["tox"]["labels"].strip().splitlines()}


def noxfile_constant(name: str) -> set[str]:
    """The value given to ``name`` at the top of noxfile.py, read without importing nox."""
    for node in ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return set(ast.literal_eval(node.value))
    raise AssertionError(f"noxfile.py sets no {name}")


def readme_commands() -> list[str]:
    """The commands of the README's first section of commands, one for each fenced block."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Two commands")[1].split("\n## ")[0]
    return [block.strip() for block in re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)]


def test_tox_and_nox_offer_the_same_words() -> None:
    """Tox and nox offer the same words and the same labels."""
    assert noxfile_constant("WORDS") == words_of_tox()
    assert noxfile_constant("LABELS") == labels_of_tox()


def test_tox_hands_on_what_names_caches_and_devices() -> None:
    """A19: a runner keeps Triton's kernels, and torch's, where its variables say."""
    passed = set(tox_ini()["testenv"]["pass_env"].split())
    assert {"CUDA_*", "PYTORCH_*", "TORCH_*", "TRITON_*", "XDG_CACHE_HOME"} <= passed


def test_tox_and_nox_have_the_same_cells() -> None:
    """Each cell of Python, torch and device is a word, which takes the shard of a runner."""
    (cells,) = [name for name in tox_ini().sections() if name.startswith("testenv:py3{")]
    told = [set(words.split(",")) for words in re.findall(r"{(.*?)}", cells)]
    assert told == [noxfile_constant(name) for name in ("PYTHONS", "TORCHES", "DEVICES")]


def test_tox_and_nox_run_the_same_words_by_default() -> None:
    """Plain tox and plain nox are one gate."""
    default = {word.strip() for word in tox_ini()["tox"]["env_list"].split(",")}
    assert noxfile_constant("nox.options.sessions") == default


def test_the_readme_has_two_commands_and_ci_runs_both() -> None:
    """The commands that the README gives a newcomer are, letter by letter, the commands that CI runs."""
    commands = readme_commands()
    assert len(commands) == 2
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in script if line in commands] == commands


def test_the_ci_script_is_executable_and_valid() -> None:
    """A runner starts .ci/run as a program."""
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    bash = shutil.which("bash")
    assert bash is not None
    assert subprocess.run([bash, "-n", script], check=False).returncode == 0


def test_every_tool_that_the_project_installs_has_one_exact_version() -> None:
    """Two machines that install with constraints.txt run the same versions."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    wanted = [
        *project["dependencies"],
        *(line for lines in project.get("optional-dependencies", {}).values() for line in lines),
        *(
            line
            for lines in pyproject["dependency-groups"].values()
            for line in lines
            if isinstance(line, str)
        ),
        *pyproject["build-system"]["requires"],
    ]
    common = (ROOT / "constraints" / "common.txt").read_text(encoding="utf-8")
    whole = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {name.lower() for name in re.findall(r"^([\w.-]+)==", common + whole, flags=re.MULTILINE)}
    assert {re.split(r"[<>=]", line)[0].lower() for line in wanted} <= pinned
    assert "-c constraints/common.txt" in whole
    assert not re.search(r"^torch\b", common, flags=re.MULTILINE), "the matrix could not replace it"


@pytest.mark.parametrize("arguments", [["list", "-m", "matrix"], ["list"]])
def test_tox_lists_its_environments(arguments: list[str]) -> None:
    """tox understands its own file, and the matrix has its 16 cells."""
    done = subprocess.run(
        [sys.executable, "-m", "tox", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert len(re.findall(r"^py3\d+-torch21[13]-(?:cpu|cuda)\b", done.stdout, flags=re.MULTILINE)) == 16
