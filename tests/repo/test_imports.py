"""The arrows between the rooms, and what importing a room loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "pymllm"
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The name under which a file of the package is imported."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


KNOWN = {name_of(path) for path in MODULES}

# Room -> what its modules may import: other rooms, and what is neither ours nor the standard library's.
# A new room gets a line here.
ROOMS: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "text_file": ({"errors"}, set()),
    "signals": (set(), set()),
    # Whether torch is there; asking loads it not. The second is imported by rooms that cannot do without.
    "torch_extra": (set(), set()),
    "torch_needed": ({"torch_extra"}, set()),
    # Triton only once a pool on a GPU, or a test, asks for a kernel.
    "mem_cache": ({"errors", "torch_needed"}, {"numpy", "torch", "triton"}),
    # From the caches, core takes how arguments are read, bits are viewed and tokens hashed.
    "core": ({"errors", "torch_needed", "mem_cache"}, {"numpy", "torch"}),
    "invariants": ({"errors", "torch_needed", "mem_cache", "core"}, {"numpy", "torch"}),
    "workloads": (
        {"errors", "torch_needed", "mem_cache", "core", "invariants"},
        {"numpy", "torch", "psutil"},
    ),
    "traces": ({"errors", "text_file", "workloads"}, {"numpy", "msgspec"}),
    # The language between all rooms.
    "history": ({"errors", "text_file"}, {"msgspec"}),
    # The judge shares nothing with what it judges: that independence is what it is for. It judges no files.
    "oracle": ({"errors", "text_file", "history"}, {"msgspec"}),
    # msgspec reads and writes the lines of programs in other languages.
    "adapters": (
        {"errors", "text_file", "torch_extra", "mem_cache", "core", "invariants", "history", "oracle"},
        {
            "numpy",
            "torch",
            "msgspec",
            "psutil",
        },  # the last where rows lie so far apart that memory is asked for
    ),
    # Each package only where it is used: torch and pynvml are never loaded by importing an instrument.
    "instrument": (
        {"errors", "text_file", "torch_extra", "history", "adapters"},
        {"pynvml", "msgspec", "psutil", "prometheus_client", "triton"},
    ),
    "pytest_plugin": ({"history", "instrument"}, {"pytest", "torch"}),
    # Workers, shards and files of work know nothing of searches and campaigns, which use them. Engines
    # only where somebody names one.
    "work": (
        {"errors", "text_file", "history", "adapters", "instrument"},
        {"msgspec", "ray", "distributed", "submitit"},
    ),
    # Records, and nothing that makes them: whoever reads a store loads no more than this.
    "documents": ({"errors", "history", "oracle", "instrument", "traces"}, {"msgspec"}),
    # What callers do, and one adapter beside its judge.
    "machines": (
        {
            *("errors", "text_file", "torch_extra", "history", "oracle", "adapters", "work"),
            *("mem_cache", "workloads"),  # the engine, and the tokens that it hashes
        },
        {"numpy", "torch", "hypothesis"},
    ),
    "search": (
        {"errors", "text_file", "history", "oracle", "adapters", "documents", "machines", "work"},
        {"hypothesis", "packaging", "msgspec"},
    ),
    "soak": (
        {
            *("errors", "text_file", "torch_extra", "history", "oracle", "adapters", "instrument"),
            *("documents", "machines", "search", "work"),
        },
        {"msgspec", "psutil"},
    ),
    # What is made wrong is named by its import path. A campaign looks for it, too, and a probe of a server.
    "faults": (
        {
            *("errors", "history", "oracle", "adapters", "documents", "machines", "search", "soak", "work"),
            *("probing", "serving"),
        },
        {"msgspec"},
    ),
    "vectors": (
        {"errors", "text_file", "history", "oracle", "adapters", "faults", "machines", "work"},
        {"msgspec"},
    ),
    # The embedded server: the engine with a model.
    "serving": (
        {"errors", "torch_needed", "mem_cache", "workloads"},
        {"numpy", "torch", "msgspec", "prometheus_client", "starlette", "uvicorn", "zmq"},
    ),
    # Judges servers by what they answer; shares with the embedded one nothing.
    "probing": ({"errors", "text_file", "oracle", "watching"}, {"httpx", "msgspec"}),
    # Judges streams of events by themselves.
    "watching": ({"errors", "text_file", "history", "oracle"}, {"msgspec", "zmq"}),
    "replay": (
        {
            *(
                "errors",
                "text_file",
                "torch_extra",
                "mem_cache",
                "workloads",
                "traces",
                "oracle",
                "documents",
            ),
            *("search", "work", "probing"),
        },
        {"numpy", "torch", "msgspec", "httpx"},
    ),
    # jinja2 and Plotly where a page is made, packaging where releases are in order, msgspec where a run is
    # read: what writes one loads none of them.
    "report": (
        {"errors", "text_file", "history", "oracle", "instrument", "documents", "soak"},
        {"jinja2", "plotly", "packaging", "msgspec"},
    ),
    "cli": (
        {
            *("errors", "signals", "text_file", "torch_extra", "workloads", "traces", "history", "oracle"),
            *("adapters", "instrument", "work", "documents", "machines", "search", "soak", "faults"),
            *("vectors", "replay", "report", "serving", "probing", "watching"),
        },
        {"msgspec", "click", "rich", "httpx", "torch", "uvicorn"},
    ),
}
# The files that belong to no room.
ROOMS["__init__"] = ({"checking"}, set())
ROOMS["checking"] = (
    {
        *("errors", "text_file", "torch_extra", "history", "oracle", "adapters", "machines", "search"),
        *("documents", "cli"),
    },
    set(),
)
ROOMS["__main__"] = ({"cli", "signals"}, set())

HEAVY = ["torch", "numpy", "hypothesis", "pynvml", "pytest"]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(path: Path) -> set[str]:
    """Full names that the module imports, wherever in it the import stands, and by name as well.

    Those of ``import_module("...")``, and of entries in a table, ``"module:Class"``.
    """
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: imports are absolute here"
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= parts & KNOWN
            if node.module != "pymllm" and not parts <= KNOWN:
                names.add(str(node.module))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names |= {it.value for it in node.args if isinstance(it, ast.Constant) and it.value in KNOWN}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            place = re.fullmatch(r"(pymllm(?:\.\w+)+):\w+", node.value)
            names |= {place[1]} if place else set()
    return names


def forbidden_imports(path: Path) -> list[str]:
    """Return the imports of a module that no line of ``ROOMS`` allows."""
    rooms, packages = ROOMS[room_of(path)]
    ours = {*rooms, room_of(path)}
    forbidden = []
    for name in sorted(imported_names(path)):
        top, _, rest = name.partition(".")
        allowed = rest.split(".")[0] in ours if top == "pymllm" else top in packages | sys.stdlib_module_names
        if not allowed:
            forbidden.append(f"{path.relative_to(PACKAGE)} imports {name}")
    return forbidden


def test_a_room_imports_only_what_its_line_allows() -> None:
    """An import between rooms that no line allows is a change of design."""
    assert [line for path in MODULES for line in forbidden_imports(path)] == []


def test_an_adapter_knows_of_the_judge_nothing_but_which_laws_there_are() -> None:
    """An adapter imports only the laws of the oracle, and predicts, compares and blames nothing."""
    for path in (PACKAGE / "adapters").rglob("*.py"):
        judging = {name for name in imported_names(path) if name.startswith("pymllm.oracle")}
        assert judging <= {"pymllm.oracle.laws"}, path.name


def test_the_page_of_the_rooms_has_the_same_arrows() -> None:
    """docs/ARCHITECTURE.md leaves out single files, and says of the command line what it may not import."""
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    page = (PACKAGE.parents[1] / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    told = {
        room: set(re.findall(r"`(\w+)`", arrows))
        for room, arrows in re.findall(r"^\| `(\w+)` \| .* \| ?([^|]*)\|$", page, flags=re.MULTILINE)
        if room in rooms
    }
    told["cli"] = rooms - told["cli"] - {"cli"}
    assert told == {room: ROOMS[room][0] & rooms for room in rooms}


def test_a_forbidden_arrow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at the arrows can fail: without its line, the caches may not import torch."""
    monkeypatch.setitem(ROOMS, "mem_cache", (set(), set()))
    lines = forbidden_imports(PACKAGE / "mem_cache" / "base_prefix_cache.py")
    assert "mem_cache/base_prefix_cache.py imports torch" in lines


# What knows another project by name is in peers/, a folder for each; laws and faults tell their history.
ROOT = PACKAGE.parents[1]
OTHERS = "|".join(path.parent.name for path in (ROOT / "peers" / "pymllm_peers").glob("*/__init__.py"))
NAMED = re.compile(
    rf"^ *(?:from|import) (?:{OTHERS})\b|[\"'](?:{OTHERS})(?!\.(?:jsonl?|request|agentic_mooncake)\b)[.:]\w",
    flags=re.MULTILINE,
)
OUTSIDE = [
    path
    for folder in ("src", "tests", "benchmarks", "examples", "docs/builder", "vectors", ".ci")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".toml")
]


def test_only_peers_import_classes_of_other_projects() -> None:
    """Neither by a statement nor by a name in quotes, such as the place of a class."""
    assert len(OUTSIDE) > len(MODULES)
    found = [path for path in OUTSIDE if NAMED.search(path.read_text(encoding="utf-8"))]
    assert [str(path.relative_to(ROOT)) for path in found] == []


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("    from sglang.srt import mem_cache", True),
        ("import vllm", True),
        ("load('megatron." + "core')", True),
        ('place = "mllm' + ':RadixCache"', True),
        ("from pymllm.traces import dynamo", False),
        ('engine = "sglang"', False),
        ('read("dynamo.jsonl")', False),
    ],
)
def test_a_class_of_another_project_is_noticed(line: str, named: bool) -> None:
    """The test above can fail, and lets pass what a project is told of or a trace is called."""
    assert bool(NAMED.search(line)) == named


# Folder of mem_cache -> what of mem_cache its modules may import beside their own folder.
BELOW_THE_CACHES = {
    "tree": {"arguments", "uploads", "ownership", "page_owners", "base_prefix_cache", "cache_events"},
    "slots": {"arguments", "uploads", "ownership", "page_owners"},
    "pools": {"arguments", "uploads", "ownership", "kernels"},
    "kernels": {"arguments", "uploads"},
}


def test_the_folders_of_the_caches_keep_their_arrows() -> None:
    """Each folder of the caches imports only its allowed folders: a tree no pool, and a pool no tree."""
    folders = {path.parent.name for path in (PACKAGE / "mem_cache").glob("*/__init__.py")}
    assert folders == BELOW_THE_CACHES.keys()
    for folder, allowed in BELOW_THE_CACHES.items():
        for path in (PACKAGE / "mem_cache" / folder).rglob("*.py"):
            names = [name.split(".") for name in imported_names(path)]
            ours = {name[2] for name in names if name[:2] == ["pymllm", "mem_cache"]}
            assert ours <= {*allowed, folder}, path


def circles(modules: dict[str, set[str]]) -> list[str]:
    """Names of modules that import themselves, by way of others or not."""
    reach = {name: set(imports) for name, imports in modules.items()}
    for middle in modules:
        for found in reach.values():
            if middle in found:
                found |= reach[middle]
    return [name for name, found in reach.items() if name in found]


def test_no_two_modules_import_each_other() -> None:
    """The imports of the modules form no circle, so that no import has to be late or by name."""
    assert circles({name_of(path): imported_names(path) & KNOWN - {name_of(path)} for path in MODULES}) == []


def test_no_two_rooms_import_each_other() -> None:
    """A room imports only the rooms below it, so that no two rooms import each other."""
    rooms: dict[str, set[str]] = {}
    for path in MODULES:
        ours = {name.split(".")[1] for name in imported_names(path) & KNOWN if "." in name}
        rooms.setdefault(room_of(path), set()).update(ours - {room_of(path)})
    assert circles(rooms) == []


def test_a_circle_is_noticed() -> None:
    """The look for circles can fail."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c"]


def test_an_import_by_name_counts(tmp_path: Path) -> None:
    """An import by name counts: of a function, and of an entry in a table that another module imports."""
    module = tmp_path / "module.py"
    by_name = ["import_module('pymllm.faults.table')", "a = 'pymllm.machines.rows:Rows'", "b = 'pymllm.soak'"]
    module.write_text("\n".join(by_name))
    assert imported_names(module) == {"pymllm.faults.table", "pymllm.machines.rows"}


def loaded_by(module: str, *watched: str) -> set[str]:
    """Which of ``watched`` a fresh interpreter has loaded after importing ``module``."""
    code = f"import sys, {module}; print(*[name for name in sys.argv[1:] if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code, *watched], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


INSTRUMENTS = sorted(path.stem for path in (PACKAGE / "instrument").glob("[!_]*.py"))
INSTRUMENTS.remove("smoke_kernel")  # a kernel of Triton, which a GPU alone has imported
WRITERS = ("records", "machine", "store")


@pytest.mark.parametrize(
    ("modules", "watched"),
    [
        # Somebody who wants the version or an error class does not pay for torch.
        ("pymllm", HEAVY),
        ("pymllm.errors", HEAVY),
        # A watched program does not pay for torch or pynvml until an instrument is used.
        (", ".join(f"pymllm.instrument.{name}" for name in INSTRUMENTS), HEAVY),
        # A machine that has pytest and no more than pymllm itself needs can write a run.
        *(
            (f"pymllm.report.{name}", [*HEAVY, "click", "rich", "psutil", "jinja2", "plotly"])
            for name in WRITERS
        ),
        # A server that takes the caches gets neither the checks nor the test libraries. Not pynvml: torch
        # loads that itself where it is installed.
        (
            "pymllm.mem_cache",
            ["hypothesis", "pytest", "triton", "pymllm.invariants", "pymllm.workloads", "pymllm.cli"],
        ),
    ],
)
def test_an_import_loads_no_more_than_it_needs(modules: str, watched: list[str]) -> None:
    """An import loads only the packages that it needs."""
    assert loaded_by(modules, *watched) == set()


def test_the_oracle_runs_without_what_it_judges() -> None:
    """Judging a cache in another language needs neither torch nor our classes."""
    modules = [
        name_of(path) for room in ("history", "oracle") for path in sorted((PACKAGE / room).rglob("*.py"))
    ]
    watched = [*HEAVY, "pymllm.mem_cache", "pymllm.invariants", "pymllm.workloads", "pymllm.adapters"]
    assert len(modules) > 40
    assert loaded_by(", ".join(modules), *watched) == set()


def test_the_look_at_loaded_modules_sees_a_loaded_one() -> None:
    """The two tests above can fail."""
    assert loaded_by("json", "json", "torch") == {"json"}
