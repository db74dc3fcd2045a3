"""Memory."""

from __future__ import annotations

from pymllm.report.memory_section import make_memory_section
from pymllm.report.records import Curve
from tests.unit.report import samples
from tests.unit.report.looking import cells, figures, tables

MIB = 1 << 20


def curve(
    name: str, verdict: str | None = "flat", good: bool | None = True, limit: float | None = None
) -> Curve:
    return Curve(
        name, "bytes", "seconds", (0.0, 1.0, 2.0), (MIB, None, 3 * MIB), "soak", limit, verdict, good
    )


def test_curves_of_one_plot_are_drawn_together_with_their_verdict() -> None:
    """In one unit; what could not be read is a gap."""
    section = make_memory_section(
        [samples.run(curves=(curve("one"), curve("two", "grows", False, 2.0 * MIB)))]
    )
    (figure,) = figures(section)["plot-memory"].values()
    lines = {trace.name: list(trace.y) for trace in figure.data}
    assert lines == {"one": [1.0, None, 3.0], "two": [1.0, None, 3.0], "two: limit": [2.0, 2.0]}
    assert figure.layout.yaxis.title.text == "MiB"
    plot = "soak, 2026-11-21 15:03:11 UTC"
    assert tables(section)["Curves"] == [
        ["one", plot, "3", "1 MiB", "1 MiB", "3 MiB", "3 MiB", "none", "flat"],
        ["two", plot, "3", "1 MiB", "1 MiB", "3 MiB", "3 MiB", "2 MiB", "grows"],
    ]
    assert [cells(section, verdict)[0].tone for verdict in ("flat", "grows")] == ["good", "bad"]
    assert section is not None
    (block,) = (block for block in section.blocks if block.kind == "plot")
    assert block.choices[0].note == "Verdict: flat; grows."  # type: ignore[union-attr]


def test_a_curve_that_nobody_judged_says_so() -> None:
    """Also one without a single number."""
    blind = Curve("x", "slots", "epochs", (1.0,), (None,))
    section = make_memory_section([samples.run(curves=(blind,))])
    assert tables(section)["Curves"][0][3:] == ["unknown"] * 4 + ["none", "not judged"]


def test_a_log_of_tests_has_curves_limits_and_figures() -> None:
    """The limit is on top of what was in use before."""
    section = make_memory_section([samples.run(samples.gpu_memory())])
    (figure,) = figures(section)["plot-memory"].values()
    assert [list(trace.y) for trace in figure.data] == [[1.0, 2.0], [3.0, 3.0]]
    assert tables(section)["Tests that were watched"] == [
        ["tests/test_x.py::test_small", "Some GPU", "1 GiB", "unknown: no CUDA", "2 GiB", "2 GiB", "kept"]
    ]


def test_a_test_on_a_machine_without_a_device_says_why() -> None:
    """It has neither a curve nor a limit, and is listed all the same."""
    plain = samples.gpu_memory(limit=None)
    plain["nvml"] |= {"device": None, "reason": "no NVML", "curve": {"times": [], "used": []}}
    section = make_memory_section([samples.run(plain)])
    assert figures(section) == {}
    row = tables(section)["Tests that were watched"][0]
    assert (row[1], row[5], row[6]) == ("unknown: no NVML", "none", "no limit")


def test_a_limit_without_a_known_start_is_no_line() -> None:
    """Nobody knows where it would be; a test without a limit has none either."""
    plain = samples.gpu_memory()
    plain["nvml"] |= {"used_start": samples.reading(None, reason="lost")}
    runs = [samples.run(plain, samples.gpu_memory("b", limit=None))]
    pictures = figures(make_memory_section(runs))["plot-memory"]
    assert [len(figure.data) for figure in pictures.values()] == [1, 1]


def test_without_memory_there_is_no_section() -> None:
    """It would be empty."""
    assert make_memory_section([samples.run(samples.verify())]) is None
