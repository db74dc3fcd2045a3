"""Opening the trace of a plan, without loading torch."""

from __future__ import annotations

from pymllm.replay.plan import ReplayPlan
from pymllm.traces.records import ReadOptions
from pymllm.traces.registry import Trace, open_trace
from pymllm.traces.text import find_tokenizer


def open_recorded(plan: ReplayPlan) -> Trace:
    """Open the trace that a plan names, with the plan's reading options."""
    encode = None if plan.tokenizer is None else find_tokenizer(plan.tokenizer)
    options = ReadOptions(
        plan.block_tokens, encode, plan.nested_times, plan.conversations, plan.turns, plan.lenient
    )
    return open_trace(plan.workload, format=plan.format, requests=plan.requests, options=options)
