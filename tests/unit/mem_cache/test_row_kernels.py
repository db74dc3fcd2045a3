"""The Triton kernel: what it does, interpreted on the CPU, and what it is on a GPU, compiled without one."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def test_the_kernel_moves_what_torch_moves() -> None:
    """P3, P5, C7, E5: bit for bit, interpreted, in a process of its own."""
    tests = Path(__file__).with_name("interpreted_kernel.py")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=--import-mode=importlib",
            str(tests),
        ],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


def compile_for_a_gpu(cache: Path, rows: int, chunk: int, unit: int, clears: bool, ordered: bool) -> str:
    """Return the assembly (PTX) of the kernel for an H100; this needs none."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pymllm.mem_cache.kernels.row_kernels import move_rows

    word = {16: tl.int64, 2: tl.int16}[unit]
    constants = [unit, word, rows, chunk, unit, word, rows, chunk, clears, ordered]
    names = [parameter.name for parameter in move_rows.params]
    types = {
        parameter.name: "constexpr" if parameter.is_constexpr else parameter.annotation_type
        for parameter in move_rows.params
    }
    first = len(names) - len(constants)
    values: Any = {(first + number,): constant for number, constant in enumerate(constants)}
    source = ASTSource(fn=move_rows, signature=types, constexprs=values, attrs={})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    return str(compiled.asm["ptx"])


@pytest.fixture
def cold_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_thread_moves_16_bytes_at_once(cold_cache: Path) -> None:
    """The card's speed needs accesses of 128 bits, and addresses of 64."""
    ptx = compile_for_a_gpu(cold_cache, 4, 512, 16, clears=False, ordered=False)
    assert len(re.findall(r"ld\.global\.v2\.b64", ptx)) == len(re.findall(r"st\.global\.v2\.b64", ptx)) == 4
    assert not re.findall(r"st\.global\.(?!v2\.b64)", ptx)
    assert not re.findall(r"(ld|st)\.local", ptx)


def test_a_narrow_row_is_moved_in_its_own_words(cold_cache: Path) -> None:
    """P3: where a row is no multiple of 16 bytes, no access is either."""
    ptx = compile_for_a_gpu(cold_cache, 4, 512, 2, clears=False, ordered=False)
    assert re.findall(r"st\.global\.b16", ptx)
    assert not re.findall(r"st\.global\.(?!b16)", ptx)


@pytest.mark.parametrize(("rows", "chunk"), [(8, 512), (64, 64), (512, 8)])
def test_all_rows_are_read_before_one_is_written(cold_cache: Path, rows: int, chunk: int) -> None:
    """P5: in every thread's order, with all threads waiting in between."""
    ptx = compile_for_a_gpu(cold_cache, rows, chunk, 16, clears=False, ordered=True)
    acts = re.findall(r"(ld)\.global\.v2\.b64|(bar)\.sync|(st)\.global\.v2\.b64", ptx)
    order = ["".join(act) for act in acts]
    loads, stores = order.index("st") - 1, order.index("st")
    assert order[loads] == "bar"
    assert "ld" not in order[stores:]
    assert order.count("ld") == order.count("st") > 0
    assert not re.findall(r"(ld|st)\.local", ptx)


def test_zeros_come_from_nowhere(cold_cache: Path) -> None:
    """P5: a reset reads row numbers and no row."""
    ptx = compile_for_a_gpu(cold_cache, 1, 4096, 16, clears=True, ordered=False)
    assert "st.global.v2.b64" in ptx
    assert "ld.global.v2" not in ptx


def test_a_prepared_kernel_is_launched_without_being_looked_up(cold_cache: Path) -> None:
    """Compiled once, for 32 and 64 bits whatever the numbers are, on the device that it is for."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.unit.mem_cache.fake_driver"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (types,) = found["types"]
    wide = {"read", "write", "read_step", "write_step"}
    for part in ("a", "b"):
        wide |= {f"{part}_{end}{step}" for end in ("source", "target") for step in ("", "_layer", "_row")}
    assert {name for name, kind in types.items() if kind == "i64"} == wide
    assert sum(kind == "i32" for kind in types.values()) == 23 - len(wide)
    nothing = [1, 0, 1, *[0] * 6, *[1, *[0] * 6] * 2]
    assert [launch[3] for launch in found["launches"]] == [nothing, found["numbers"], [1, 0, 1, *[0] * 20]]
    assert [launch[:3] for launch in found["launches"]] == [
        [programs, 7, "function"] for programs in (1, 8, 2**20)
    ]
    assert {launch[4] for launch in found["launches"]} == {33}
    assert found["devices"] == ["cuda:0", "cuda:0"], (
        "entered to prepare it, and where another is the current one"
    )
