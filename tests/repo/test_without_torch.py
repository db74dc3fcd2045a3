"""The judge of a program in another language needs no torch, as an environment without torch shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.bare_packages import needed_by, show_packages

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "pymllm"
EXAMPLES = ROOT / "examples" / "protocol"
WAY_OUT = "which are not installed; pip install 'pymllm[torch]' brings them"

# What stands on our own pools and caches, and what runs them: all of a room, or some modules of one.
OF_TORCH = re.compile(
    r"pymllm\.(torch_needed$|(mem_cache|core|invariants|workloads|serving)(\.|$)|traces\.(?!(lines|order)$)\w+$"
    r"|adapters\.((own(?!_index)|faulty)_\w+|(sglang|vllm|mllm)\.(?!package|blocks)\w+|(lmcache|megatron|minisgl)\.\w+)$"
    r"|adapters\.(documented|exact_forward|failing_calls|kept_events|key_forms)$"
    r"|(machines\.(driven_cache|driven_context|lifecycle|block_lifecycle)|search\.sweep|faults\.(detection|hunt|servers)|vectors\.(make|page|programs|shares)"
    r"|replay\.(replays|cells|grid|recorded|curves?|state_curve|serial|sampling|served|prediction))$)"
)
# What needs a package of its own, which somebody has who names it: pymllm soak --executor. And Triton.
OF_ENGINES = {
    "pymllm.work.spread.ray_executor",
    "pymllm.work.spread.slurm_executor",
    "pymllm.instrument.smoke_kernel",
}
REFUSE = """
import sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refusing())
"""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = [name_of(path) for path in sorted(PACKAGE.rglob("*.py")) if path.stem != "__main__"]


def imported_without_torch(modules: list[str]) -> dict[str, str | None]:
    """Import each module where no import finds torch or NumPy, and return the error of each, if any."""
    code = f"""{REFUSE}
import importlib, json
said = dict.fromkeys(sys.argv[1:])
for name in said:
    try:
        importlib.import_module(name)
    except ImportError as error:
        said[name] = f"{{type(error).__name__}} {{error.name}}: {{error}}"
print(json.dumps(said))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *modules], capture_output=True, text=True, check=True, timeout=100
    )
    said: dict[str, str | None] = json.loads(done.stdout)
    return said


def test_every_module_that_needs_no_torch_is_imported_without_it() -> None:
    """The oracle, the conversation with programs, the search, the report and the command line."""
    light = [name for name in MODULES if not OF_TORCH.match(name) and name not in OF_ENGINES]
    assert {"pymllm.machines.prefix", "pymllm.machines.blocks"} < set(light)
    assert {name: said for name, said in imported_without_torch(light).items() if said} == {}


def test_the_list_above_names_nothing_that_needs_no_torch() -> None:
    """A module that learns to do without it leaves the list."""
    said = imported_without_torch([name for name in MODULES if OF_TORCH.match(name)])
    assert {name for name, error in said.items() if error is None} == set()


@pytest.mark.parametrize("room", ["mem_cache", "core.inference.contexts", "invariants", "workloads.engine"])
def test_the_classes_say_what_they_need(room: str) -> None:
    """An ImportError with the way out, the same sentence everywhere."""
    said = imported_without_torch([f"pymllm.{room}"])[f"pymllm.{room}"]
    assert said == f"ModuleNotFoundError torch: this part of pymllm needs torch and numpy, {WAY_OUT}"


# -- an environment ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what it requires, made without a network."""
    folder = tmp_path_factory.mktemp("light")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    make = [sys.executable, "-m", "venv", "--without-pip", folder / "venv"]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)
        (metadata,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        required = re.findall(
            r"^Requires-Dist: ([\w.-]+)(?!.*extra ==)", files.read(metadata).decode(), re.MULTILINE
        )
    names: set[str] = set()
    for name in required:
        needed_by(name, names)
    show_packages(names, site)
    return folder / "venv" / "bin" / "python"


def run(python: Path, folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of pymllm in that environment and no other."""
    left_out = ("PYTHON", "PYTEST", "COV")
    return subprocess.run(
        [python, "-m", "pymllm", *map(str, words)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith(left_out)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_environment_has_no_torch(python: Path, tmp_path: Path) -> None:
    """The environment of the next tests has no torch, and doctor reports its absence there."""
    code = "import importlib.util as u; print([it for it in ('torch', 'numpy', 'pymllm') if u.find_spec(it)])"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['pymllm']\n"
    done = run(python, tmp_path, "doctor", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["torch"]["version"]) == (0, None)
    assert document["packages"]["hypothesis"] == version("hypothesis")
    assert document["packages"]["torch"] is None


def test_a_foreign_program_is_judged_from_search_to_report(python: Path, tmp_path: Path) -> None:
    """verify, judge, rerun, shrink, compare, soak and report, each with its status."""
    broken, strict = (f"{python} {EXAMPLES / name}" for name in ("broken_cache.py", "strict_cache.py"))

    def check(status: int, *words: str | Path) -> str:
        done = run(python, tmp_path, *words)
        assert done.returncode == status, f"{words}: {done.stdout[-2_000:]}{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout

    check(0, "check-protocol", broken)
    few = ("--law", "R6", "--examples", "30", "--jobs", "2", "--store", "store")
    assert "R6  VIOLATED" in check(1, "verify", *few, "--command", broken)
    (program,) = (tmp_path / "runs").glob("*-R6-*.jsonl")
    assert "R6" in check(1, "judge", program)
    check(1, "rerun", program, "--adapter", f"command:{broken}")
    check(0, "rerun", program, "--adapter", f"command:{strict}")
    check(1, "shrink", program, "--adapter", f"command:{broken}", "--output", "small.jsonl")
    assert "violated" in check(1, "compare", *few, "--command", broken, "--command", strict)
    soaked = ("soak", "--operations", "300", "--jobs", "1", "--adapter", f"command:{strict}")
    check(0, *soaked, "--machine", "PrefixMachine", "--output", "soak", "--store", "store")
    assert "LifecycleMachine needs torch" in check(3, *soaked, "--output", "longer")
    assert '"schemaVersion": 1' in check(0, "report", "store", "--format", "badge")
    assert "<testsuites" in check(0, "report", "store", "--format", "junit")
    assert "prefix" in check(0, "goals")
    assert "pymllm[torch]" in check(0, "adapters", "--verbose")
    check(0, "schema", "protocol")
    assert "I1 " in check(0, "verify", "--adapter", "index-dict", "--profile", "dev", "--jobs", "1")


def test_what_only_an_engine_tests_is_unknown_and_says_why(python: Path, tmp_path: Path) -> None:
    """A law that was not tested is not said to hold: the engine is made of our own pools."""
    words = ("verify", "--law", "E4", "--law", "R6", "--examples", "5", "--jobs", "1")
    done = run(python, tmp_path, *words, "--command", f"{python} {EXAMPLES / 'page_cache.py'}")
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"because    LifecycleMachine needs torch and numpy, {WAY_OUT}" in done.stdout
    assert "laws: 0 violated, 1 unknown, 1 hold" in done.stdout
    done = run(
        python, tmp_path, *words[:1], "--law", "E4", "--command", f"{python} {EXAMPLES / 'page_cache.py'}"
    )
    assert done.returncode == 2
    assert "none of the adapters can test E4; LifecycleMachine needs torch" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "verify",
        "verify --adapter radix",
        "verify --adapter faulty-row-zero",
        "compare radix chunk",
        "soak --minutes 0",
        "soak --adapter blocks --minutes 0",
        "faults hunt B01",
        "replay chat --requests 5",
        "curve chat --requests 5",
        "adapters radix",
        "adapters pymllm.adapters.own_caches:Radix",
    ],
)
def test_what_needs_our_classes_ends_with_one_line(python: Path, tmp_path: Path, words: str) -> None:
    """Bad usage, status 2, and the way out, before anything is played or written."""
    done = run(python, tmp_path, *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"torch and numpy, {WAY_OUT}" in line
    assert list(tmp_path.iterdir()) == []
