"""A program that speaks the process protocol, rightly or wrongly: ``tiny_program.py [MESSAGE BEHAVIOUR]``.

It is of kind ``hashes``, does one operation, and misbehaves at MESSAGE. It imports nothing of pymllm.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

WHERE, BEHAVIOUR = (*sys.argv[1:], "", "")[:2]

HELLO = {
    "say": "hello",
    "protocol": 1,
    "name": "tiny",
    "version": "7",
    "language": "Python",
    "kind": "hashes",
    "capabilities": ["extra_key"],
    "configurations": [{}],
    "audits": True,
}


def tell(answer: dict[str, Any], flush: bool = True) -> None:
    print(json.dumps(answer), flush=flush)


def kill_itself() -> None:
    print("so long", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def leave_a_child() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    print(f"child {child.pid}", file=sys.stderr, flush=True)
    write("so what?\n")
    time.sleep(60)


def close(descriptor: int) -> None:
    os.close(descriptor)
    time.sleep(60)


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


BEHAVIOURS = {
    "kill": kill_itself,
    "status-3": lambda: sys.exit(3),
    "status-0": lambda: sys.exit(0),
    "hang": lambda: time.sleep(60),
    "leave-a-child": leave_a_child,
    "late": lambda: time.sleep(0.2),
    "garbage": lambda: write("so what?\n"),
    "no-object": lambda: write("[1]\n"),
    "no-utf8": lambda: (sys.stdout.flush(), os.write(1, b'{"say": "\xff"}\n')),
    "deep": lambda: write("[" * 100_000 + "\n"),
    "half-line": lambda: (write('{"say": '), time.sleep(60)),
    "half-line-and-end": lambda: (write('{"say": '), sys.exit(0)),
    "close-output": lambda: close(1),
    "close-input": lambda: close(0),
    "huge": lambda: write("x" * 2**21),
    "flood": lambda: (sys.stderr.write("water\n" * 200_000), sys.stderr.flush()),
    "error": lambda: tell({"say": "error", "message": "no more"}),
    "other": lambda: tell({"say": "advanced", "clock": 1}),
    "unknown": lambda: tell({"say": "what"}),
    "protocol-9": lambda: tell({**HELLO, "protocol": 9}),
    "no-kind": lambda: tell({**HELLO, "kind": "teapot"}),
    "no-claim": lambda: tell({**HELLO, "capabilities": ["flying"]}),
    "nothing-to-do": lambda: tell({**HELLO, "configurations": []}),
    "wrong-step": lambda: tell({"say": "outcome", "step": 99, "outcome": {"result": {"is": "done"}}}),
    "wrong-form": lambda: tell({"say": "outcome", "step": 1, "outcome": {"result": {"is": "number"}}}),
    "wrong-result": lambda: tell({"say": "outcome", "step": 1, "outcome": {"result": {"is": "done"}}}),
    "more": lambda: tell({"say": "outcome", "step": 1, "outcome": {"result": {"is": "done"}}, "more": 1}),
    "broken": lambda: tell(
        {"say": "audited", "laws": ["K1"], "broken": {"law": "K1", "message": "a key", "expected": "1"}}
    ),
    "ignore": lambda: None,
    "many-slots": lambda: tell({**HELLO, "configurations": [{"slots": 2_000_000_000}]}),
    "twice": lambda: write('{"say": "started", "capabilities": [], "capabilities": []}\n'),
    "unknown-law": lambda: tell({"say": "audited", "laws": ["K1", "ZZ99"]}),
    "law-of-others": lambda: tell({"say": "audited", "broken": {"law": "R6", "message": "a hold"}}),
    "long-story": lambda: tell(
        {
            "say": "audited",
            "broken": {"law": "K1", **dict.fromkeys(("message", "expected", "observed"), "x" * 9_999)},
        }
    ),
    "last-words": lambda: tell({"say": "error", "message": "\x1b[2J" + "never " * 100_000}),
}

INSTEAD = {
    *(
        "garbage",
        "no-object",
        "no-utf8",
        "deep",
        "error",
        "other",
        "unknown",
        "protocol-9",
        "no-kind",
        "no-claim",
    ),
    *("nothing-to-do", "wrong-step", "wrong-form", "wrong-result", "more", "broken", "ignore"),
    *("many-slots", "twice", "unknown-law", "law-of-others", "last-words", "long-story"),
}
"""Behaviours that stand for the answer; the others come before it."""


def answer(message: dict[str, Any]) -> dict[str, Any]:
    say = message["say"]
    if say == "hello":
        return HELLO
    if say == "start":
        return {"say": "started"}
    if say == "audit":
        return {"say": "audited", "laws": ["K1"]}
    op = message["op"]
    if op["op"] == "hash_bytes":
        result = {"is": "number", "value": len(op["data"])}
    else:
        result = {"is": "unsupported", "what": op["op"]}
    return {"say": "outcome", "step": message["step"], "outcome": {"result": result}}


for line in sys.stdin:
    message = json.loads(line)
    if message["say"] == WHERE:
        BEHAVIOURS[BEHAVIOUR]()
        if BEHAVIOUR in INSTEAD:
            continue
    if message["say"] == "bye":
        break
    tell(answer(message), message.get("flush", True))
