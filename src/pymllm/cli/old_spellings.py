"""Spellings of commands in the previous release, with the present ones, until the next release."""

from __future__ import annotations

from collections.abc import Sequence

_OF_TRACES = {
    "--tokenizer": "--format text,tokenizer=MODULE:FUNCTION",
    "--nested-times": "--format weka,nested-times=WHEN",
    "--conversations": "--format weka,conversations=N",
}
_OF_MODELS = ("layers", "kv-heads", "head-dim", "latent-dim", "hybrid")

OLD_SPELLINGS = (
    ("verify --check-protocol", "pymllm check-protocol 'PROGRAM ARGS'"),
    ("verify --cabinet", "pymllm faults verify --cabinet MODULE:TABLE"),
    ("verify --fault", "pymllm faults verify ID"),
    ("soak --cabinet", "pymllm faults soak --cabinet MODULE:TABLE"),
    ("soak --fault", "pymllm faults soak ID"),
    ("soak --run", "pymllm repeat SEED"),
    ("soak --resume", "pymllm resume FOLDER"),
    ("soak --shards", "--executor ENGINE,shards=N"),
    ("soak --retries", "--executor ENGINE,retries=N"),
    ("soak merge", "pymllm merge LEDGER"),
    ("faults --list", "pymllm faults list"),
    ("faults", "pymllm faults hunt"),
    ("replay --server", "pymllm replay-server TRACE URL"),
    ("replay --swa-capacity", "--window N,capacity=TOKENS"),
    ("replay --mamba-chunk-size", "--cache blocks,mamba-chunk-size=N"),
    ("replay --mode", "pymllm replay TRACE, or pymllm replay-serial TRACE"),
    *((f"{verb} {old}", new) for verb in ("replay", "curve", "trace") for old, new in _OF_TRACES.items()),
    *(
        (f"curve --{key}", f"--model layers=N,{key}=N" if key != "layers" else "--model layers=N")
        for key in _OF_MODELS
    ),
    ("curve --dtype", "--model NAME,dtype=TYPE"),
)
"""The beginnings of commands in old spelling, with the present spelling."""


def new_spelling(words: Sequence[str], verbs: Sequence[str]) -> tuple[str, str] | None:
    """Return an old spelling among the typed words and its present form, if there is one.

    ``verbs`` are the words that may come next now, of a command that has verbs of its own.
    """
    typed = [word.partition("=")[0] for word in words]
    for old, new in OLD_SPELLINGS:
        verb, *rest = old.split()
        if typed[:1] != [verb]:
            continue
        is_option = bool(rest) and rest[0].startswith("-")
        if rest and (rest[0] in typed[1:] if is_option else rest == typed[1:2]):
            return old, new
        if not rest and (not typed[1:] or typed[1] not in (*verbs, "--help")):
            return old, new
    return None
