"""Functions with which another project's tests examine an adapter of its own.

::

    TestMyCache = cache_machine(MyAdapter).TestCase  # pytest collects it, Hypothesis plays and shrinks it

    def test_my_cache_keeps_its_laws():
        check_adapter("my_package.my_adapter:MyAdapter")

Both run the adapter in the process of the tests, where patches, a debugger and coverage see it. One that ends
its process ends the tests with it: ``pymllm verify`` runs adapters in processes of their own, and says so.
"""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, settings

from pymllm.adapters.base import Adapter, AdapterClass
from pymllm.adapters.registry import find_adapter, load_adapter, make_adapter
from pymllm.errors import UsageError
from pymllm.history.files import Config
from pymllm.machines.acting import ActingMachine, make_machine
from pymllm.machines.registry import CI, load_machine, machines_for
from pymllm.oracle.verdicts import Verdict
from pymllm.search.doubts import find_doubt
from pymllm.search.program import write_program
from pymllm.search.results import AdapterResult
from pymllm.search.runner import verify
from pymllm.search.tasks import VerifyPlan


def cache_machine(
    adapter: str | AdapterClass, config: Config | None = None, *, driven: bool = False
) -> type[ActingMachine]:
    """Return a Hypothesis state machine that examines an adapter.

    Parameters
    ----------
    adapter : str or type
        A registry name, ``module:Class``, or an adapter's class; one that a module has at its top can be
        run again from a file.
    config : dict, optional
        What to build; the first of the class's `CONFIGURATIONS` by default.
    driven : bool
        Let the simulated engine drive a prefix cache, instead of calling it directly.

    Returns
    -------
    type of ActingMachine
        A `RuleBasedStateMachine` under a name of its own, so that Hypothesis files its examples apart; its
        ``TestCase`` is what pytest collects. It takes its length from the Hypothesis profile, whose phase
        ``explain`` it leaves out; its ``settings`` can be replaced.

    Raises
    ------
    UsageError
        There is no such adapter, or no machine of the wanted sort can run on it.
    AdapterError
        It cannot be loaded.

    Notes
    -----
    The adapter runs in the process of the tests.

    Once a program fails, Hypothesis shrinks it for five minutes at most, most often for some seconds. To
    explain it, it would trace every line of a few hundred more, and name lines of the judge: without, a cache
    that evicts what is held took 9 and 5 s of processor time (two seeds), and not 23 and 7.
    """
    adapter_class = load_adapter(find_adapter(adapter)) if isinstance(adapter, str) else adapter
    name = adapter if isinstance(adapter, str) else _place_of(adapter)
    chosen = dict(adapter_class.CONFIGURATIONS[0] if config is None else config)
    made = make_adapter(name, chosen) if isinstance(adapter, str) else adapter_class(name, chosen)
    made.close()
    able = [entry for entry in machines_for(made.kind, made.capabilities) if bool(entry.needs) == driven]
    if not able:
        raise UsageError(f"no engine can drive {name}; it is of kind {made.kind} and does not claim engine")
    machine = make_machine(load_machine(able[0]), name, chosen)
    if not isinstance(adapter, str):

        def make(cls: type[ActingMachine]) -> Adapter:
            return adapter_class(name, dict(chosen))

        machine.make_adapter = classmethod(make)  # type: ignore[assignment,method-assign]
    case: Any = machine.TestCase
    phases = tuple(phase for phase in case.settings.phases if phase is not Phase.explain)
    case.settings = settings(case.settings, phases=phases)
    return machine


def _place_of(adapter_class: AdapterClass) -> str:
    return f"{getattr(adapter_class, '__module__', '')}:{getattr(adapter_class, '__qualname__', '')}"


def check_adapter(
    adapter: str, *, examples: int = 60, seed: int = 0, jobs: int = 0, timeout: float = 30.0
) -> None:
    """Search every configuration of an adapter with every machine that can run, as ``pymllm verify`` does.

    Parameters
    ----------
    adapter : str
        A registry name or ``module:Class``.
    examples : int
        Programs per machine and configuration.
    seed : int
        Of every choice: equal arguments give equal programs everywhere.
    jobs : int
        Processes that run the adapter; by default it runs in this one, as this module's first lines have it.
    timeout : float
        Seconds for one call of the adapter; one that takes longer counts as hung. 0 for no limit, and in this
        process there is none outside of the main thread.

    Raises
    ------
    AssertionError
        A law is broken, with the smallest program that was found, or something is unknown: a law that no
        program tested, or an adapter that could not be examined.
    UsageError
        There is no such adapter.
    """
    report = verify(VerifyPlan((find_adapter(adapter),), (), CI, seed, examples, jobs, timeout))
    (result,) = report.adapters
    if result.verdict is not Verdict.HOLDS:
        raise AssertionError("\n".join(_complaints(result)))


def _complaints(result: AdapterResult) -> list[str]:
    lines = [f"{result.name} could not be examined to the end: {it.message}" for it in result.problems]
    broken = {finding.law for finding in result.findings}
    for finding in result.findings:
        doubt = find_doubt(finding.history, finding.violation, broken)
        lines.append(f"{result.name} breaks {finding.violation}{doubt and f', or the adapter {doubt}'}")
        lines.append(write_program(finding.history))
    unknown = [row.id for row in result.laws if row.verdict is Verdict.UNKNOWN]
    if unknown:
        lines.append(f"{result.name}: no program tested {', '.join(unknown)}; give more examples")
    return lines
