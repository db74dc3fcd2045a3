"""A verdict on an object that names its methods as our documented interface does, before any adapter.

It is `pymllm.check`: the search of ``pymllm verify``, in this process, with the same text and files.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import lend_adapter
from pymllm.cli.search.search_files import earlier_notes, save_programs
from pymllm.cli.tables import draw_document, progress_bar
from pymllm.documents.searches import LawRow, VerifyDocument
from pymllm.errors import AdapterError, UsageError
from pymllm.history.claims import CLAIMS
from pymllm.history.config_limits import CONFIG_KEYS
from pymllm.history.files import Config
from pymllm.machines.registry import CI
from pymllm.oracle.verdicts import Verdict
from pymllm.search.results import VerifyReport
from pymllm.search.runner import verify
from pymllm.search.tasks import VerifyPlan
from pymllm.text_file import cut, shown
from pymllm.torch_extra import why_no_torch


@dataclass(frozen=True, slots=True, repr=False)
class CheckResult:
    """The result of `check`; printed, it is the text of ``pymllm verify``."""

    document: VerifyDocument  # what ``pymllm verify --json`` prints
    text: str  # what it prints without

    @property
    def verdict(self) -> Verdict:
        """The heaviest verdict among those of all laws."""
        return self.document.verdict

    @property
    def laws(self) -> tuple[LawRow, ...]:
        """A row for each law of the kind, with its verdict and the number of its tests."""
        return self.document.laws

    @property
    def programs(self) -> tuple[str, ...]:
        """The files of the programs that break a law, or that met a problem."""
        (adapter,) = self.document.adapters
        files = [*(it.file for it in adapter.violations), *(it.file for it in adapter.problems)]
        return tuple(file for file in files if file is not None)

    def __repr__(self) -> str:
        return self.text


def check(
    given: Any,
    *,
    claims: Collection[str] = (),
    config: Mapping[str, int | str | bool | None] | None = None,
    seed: int = 0,
    examples: int | None = None,
    output: str | Path = "runs",
    raises: bool = True,
    timeout: float = 30.0,
    progress: str = "auto",
    verbose: bool = False,
) -> CheckResult:
    """Search an object with documented method names for programs that break a law.

    Kind, sizes and claims are told from its methods and attributes. Random programs call it, and an oracle
    that shares no code with it judges each step, as ``pymllm verify`` does (docs/verify.md).

    Parameters
    ----------
    given : callable or object
        A function without arguments that makes a new object in each call, such as ``lambda: MyPool(64)``; a
        class; or an object that nobody has used yet, of which each program gets a deep copy. Small ones run
        full more often: 12 slots find more than 4,096.
    claims : collection of str, optional
        What it promises beyond what its methods show, such as ``{"refusals"}``; ``pymllm goals`` and the
        specification's table of claims have the words.
    config : mapping, optional
        Keys of its configuration that its attributes do not tell, such as ``{"retains": False}`` for a cache
        that keeps nothing.
    seed : int, optional
        Of every choice: equal arguments give equal programs.
    examples : int, optional
        Programs per state machine; by default as many as ``pymllm verify`` promises, some seconds.
    output : str or Path, optional
        The folder for programs that break a law; made when there is one.
    raises : bool, optional
        Whether a verdict other than ``holds`` raises; otherwise it is in the result.
    timeout : float, optional
        Most seconds for one call of the object, in the main thread; 0 for no limit.
    progress : str, optional
        ``auto``, ``on`` or ``off``, as ``--progress``.
    verbose : bool, optional
        Whether the text also lists the coverage goals and the laws that are not claimed, and explains its
        words.

    Returns
    -------
    CheckResult
        Verdict, laws, files; printed, the text of ``pymllm verify``.

    Raises
    ------
    InvariantViolation
        A law is broken. The text, the smallest program in it, is a note of the error.
    AdapterError
        The object could not be examined, answers in another form than documented, or no program tested some
        law. A law that needs a method which is not there is not claimed.
    UsageError
        Methods, sizes or a cache's pool are missing, a method takes other arguments, the function makes the
        same object or pool again, the object cannot be copied, a word is no claim, a key is none of the
        kind's configurations, or ``seed`` or ``examples`` is no number.
    ModuleNotFoundError
        torch is missing.
    """
    _refuse_arguments(claims, config, seed, examples)
    reason = why_no_torch()
    if reason is not None:
        raise ModuleNotFoundError(f"pymllm.check {reason}")
    from pymllm.adapters.documented import SMALL, adapter_of, demand_new, is_documented, maker_of

    makes = inspect.isclass(given) or (callable(given) and not is_documented(type(given)))
    make = maker_of(given) if makes else _copier_of(given)
    sample = make(SMALL)
    facts: Config = dict(config or {})
    if claims:
        facts["claims"] = " ".join(sorted(claims))
    name = _name_of(given, sample)
    adapter_class = adapter_of(sample, make, facts)
    demand_new(sample, make(SMALL))
    _refuse_keys(config or {}, adapter_class.KIND)
    plan = VerifyPlan((AdapterEntry(name, name, ""),), (), CI, seed, examples, 0, timeout)
    with lend_adapter(name, adapter_class):
        report = verify(plan, partial(progress_bar, progress, unit=""))
        files = save_programs(report, Path(output))
    document = report.document(files).without_doubts()
    notes = earlier_notes(files.earlier)
    text = draw_document(document, *notes, verbose=verbose, fits_terminal=False)
    text = text.replace("--verbose", "verbose=True")  # as a caller spells it
    if report.interruption is not None:
        raise report.interruption
    result = CheckResult(document, text)
    if raises:
        _raise_for(result, report)
    return result


def _refuse_arguments(claims: object, config: object, seed: object, examples: object) -> None:
    """Refuse arguments that are of no use to any kind of object; `UsageError` names value and way out."""
    if isinstance(claims, str):
        raise UsageError(f"claims is {claims!r}; it must be a set, such as {{{claims!r}}}")
    if not isinstance(claims, Collection):
        raise UsageError(f"claims is {shown(claims)}; it must be a set, such as {{'refusals'}}")
    for word in claims:
        if not isinstance(word, str) or word not in CLAIMS:
            raise UsageError(
                f"claims has {shown(word)}, which is no claim{_did_you_mean(word, CLAIMS)}; the table of"
                " claims in docs/specification/configurations.md has all"
            )
    if config is not None and not isinstance(config, Mapping):
        raise UsageError(f"config is {shown(config)}; it must be a dict, such as {{'retains': False}}")
    if type(seed) is not int:
        raise UsageError(f"seed is {shown(seed)}; it must be an integer, such as 0")
    if examples is not None and (type(examples) is not int or examples < 1):
        raise UsageError(f"examples is {shown(examples)}; it must be an integer from 1 on, or None")


def _refuse_keys(config: Mapping[str, object], kind: str) -> None:
    """Refuse a key that no configuration of a kind has: it would say nothing, and nobody would know."""
    keys = [
        key for line in CONFIG_KEYS[kind].split("\n") for key in re.findall(r"`(\w+)`", line.split(" | ")[0])
    ]
    for key in config:
        if key not in keys:
            raise UsageError(
                f"config has {shown(key)}, which is no key of the kind {kind}{_did_you_mean(key, keys)};"
                f" there are {', '.join(keys)}"
            )


def _did_you_mean(word: object, words: Collection[str]) -> str:
    near = difflib.get_close_matches(str(word), words, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _copier_of(given: Any) -> Callable[[Config], Any]:
    """Return the function that copies an object as it is now; `UsageError` where it cannot be copied."""
    name = type(given).__name__
    from pymllm.adapters.documented import kind_of

    kind_of(given)  # what is no such object at all is told first
    try:
        pristine = copy.deepcopy(given)
    except Exception as error:  # a stranger's class may raise anything
        raise UsageError(
            f"{name} cannot be copied ({type(error).__name__}: {cut(str(error))}), and each program needs a"
            f" new one; pass a function that makes one: pymllm.check(lambda: {name}(...))"
        ) from error
    return lambda config: copy.deepcopy(pristine)


def _name_of(given: Any, sample: Any) -> str:
    """Return ``module:NAME`` of the class or function that makes an object, or of the object's class."""
    named = given if inspect.isclass(given) or inspect.isfunction(given) else type(sample)
    if "<" in named.__qualname__:  # a lambda, or what a function defines
        named = type(sample)
    module = named.__module__
    if module == "__main__":
        module = Path(getattr(sys.modules[module], "__file__", None) or module).stem
    return f"{module}:{named.__qualname__}"


def _raise_for(result: CheckResult, report: VerifyReport) -> None:
    """Raise the error of a verdict, with the text as its note."""
    (adapter,) = report.adapters
    error: Exception
    if adapter.findings:
        error = adapter.findings[0].violation
    elif adapter.problems:
        error = AdapterError(adapter.name, adapter.problems[0].message)
    elif unknown := [row.id for row in adapter.laws if row.verdict is Verdict.UNKNOWN and not row.limits]:
        error = AdapterError(adapter.name, f"no program tested {', '.join(unknown)}; give more examples")
    else:
        return
    error.add_note(result.text)
    raise error
