"""The hunt for server faults: each is planted in the embedded server, which is then probed.

What is found follows from the seed only as far as requests arrive in the same order: a burst, or a dropped
stream, meets the server wherever it is.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from pymllm.documents.faults import PROBE, Detection
from pymllm.errors import PymllmError
from pymllm.faults.detection import FaultResult, HuntPlan, HuntTask, Miss
from pymllm.faults.fault import Fault
from pymllm.faults.plant import StaleEditError, planted
from pymllm.history.files import Config
from pymllm.probing.clients import connect, make_http
from pymllm.probing.heard import Heard
from pymllm.probing.search import ProbePlan, Servers, probe, shrink
from pymllm.serving.background import serving
from pymllm.serving.publisher import EventPublisher
from pymllm.serving.service import ServerConfig, Service

_ANYWHERE = "tcp://127.0.0.1:*"
_ANSWER_SECONDS = 60.0
_SHRINK_SECONDS = 60.0


def hunt_by_probe(plan: ProbePlan, task: HuntTask) -> FaultResult:
    """Plant a fault in the embedded server, probe it from each seed of the task, and remove the fault.

    A fault's adapters are architectures, and its settings are sizes of `ServerConfig` and what a probe needs
    to see the fault: ``requests`` and ``max_tokens``, in place of those of ``plan``, and ``events``.
    """
    start = time.monotonic()
    fault = task.fault
    detections: list[Detection] = []
    problems: list[str] = []
    missed = 0
    try:
        with planted(fault.edits):
            for seed in task.plan.seeds:
                seen = _probe_from(fault, replace(plan, seed=seed), task.plan)
                if isinstance(seen, Miss):
                    problems.append(seen.message)
                    missed += seen.operations
                else:
                    detections.append(seen)
    except StaleEditError as error:
        problems.append(f"cannot be planted: {error}")
    except PymllmError as error:
        problems.append(f"cannot be examined: {error}")
    return FaultResult(fault, tuple(detections), tuple(problems), time.monotonic() - start, missed)


def _probe_from(fault: Fault, plan: ProbePlan, hunt: HuntPlan) -> Detection | Miss:
    """Probe one model architecture after another, until one breaks a law."""
    made, ends = 0, list[str]()
    for architecture in fault.adapters:
        begun = time.monotonic()
        with ExitStack() as stack:
            config, asked = _settled(architecture, fault.settings, plan)
            publisher, heard = None, None
            if fault.settings.get("events"):
                publisher = stack.enter_context(closing(EventPublisher(_ANYWHERE, window=config.window)))
                heard = stack.enter_context(closing(Heard(publisher.address)))
            url = stack.enter_context(serving(Service(config, publisher)))
            http = stack.enter_context(make_http(url, _ANSWER_SECONDS))
            servers = Servers(connect(http, "auto"), heard=heard)
            done = probe(servers, asked)
            seconds, made = time.monotonic() - begun, made + done.requests
            violation, program = done.judgement.violation, None
            if violation is None:
                unknown = "".join(f", {law}: {why}" for law, why in done.judgement.reasons.items())
                ends.append(f"{architecture}: {done.failure or 'nothing broke a law'}{unknown}")
                continue
            if hunt.shrinks and asked.seed == hunt.seeds[0]:
                shrink(servers, done, _SHRINK_SECONDS)
                program = None if done.smallest is None else len(done.smallest.steps)
                if done.interruption is not None:
                    raise done.interruption
        return Detection(
            asked.seed,
            violation.law,
            f"{violation.message}; expected {violation.expected}, observed {violation.observed}",
            PROBE,
            architecture,
            fault.settings,
            made,
            seconds,
            program,
        )
    return Miss(f"seed {plan.seed}: not caught in {made} requests; {'; '.join(ends)}", made)


def _settled(architecture: str, settings: Config, plan: ProbePlan) -> tuple[ServerConfig, ProbePlan]:
    """Divide the settings of a fault between the server and its probe."""
    asked: dict[str, Any] = {name: settings[name] for name in ("requests", "max_tokens") if name in settings}
    sizes: dict[str, Any] = {
        name: value for name, value in settings.items() if name not in (*asked, "events")
    }
    return ServerConfig(architecture, **sizes), replace(plan, **asked)
