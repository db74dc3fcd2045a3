"""Plays cache vectors on a cache; one file, and the standard library is all that it needs.

::

    python3 run_vectors.py ../../v1/prefix.jsonl [--known known.json]

Copy it, put your cache in the place of `PageCache`, and give its claims. docs/vectors.md has the format. The
status is 0 where nothing failed but what the file of known deviations names, an object of reasons by ids.

Copyright: the authors of pymllm. Licence: Apache-2.0.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

# -- an example: a cache of pages in a dictionary; yours instead ---------------------------------------------


class PageCache:
    """Pages of slots by prefix, in a pool of its own; the least recent page without a child goes first."""

    CLAIMS = frozenset({"pool", "extra_key", "exact_lru"})

    @staticmethod
    def fits(config):
        """Whether it can be built so; numbers may be any."""
        known = {"page_size", "slots", "swa_slots", "window", "pool", "check_ownership"}
        return set(config) <= known and config["window"] is None and config["pool"] == "token"

    def __init__(self, config):
        self.size = config["page_size"]
        self.free = list(range(self.size, self.size + config["slots"]))  # page 0 is for padding
        self.clock = 0
        self.pages = {}  # prefix -> [slots of its last page, time of last use]
        self.holds = Counter()  # prefix -> holds at or below it
        self.nodes = {}  # step -> the prefix that it returned
        self.effects = []

    def prefixes(self, whole):
        space, tokens = whole
        return [(space, tokens[:end]) for end in range(self.size, len(tokens) + 1, self.size)]

    def find(self, key):
        tokens = tuple(key["tokens"])
        whole, found = (key.get("extra_key"), tokens[: len(tokens) // self.size * self.size]), []
        for prefix in self.prefixes(whole):
            if prefix not in self.pages:
                break
            self.pages[prefix][1] = self.clock
            found.append(prefix)
        return found, whole

    def do_match(self, step, op):
        found, (space, tokens) = self.find(op["key"])
        slots = [slot for prefix in found for slot in self.pages[prefix][0]]
        self.nodes[step] = space, tokens[: len(slots)]
        return {"is": "matched", "slots": slots, "prefix_len": len(slots), "node_len": len(slots)}

    def do_insert(self, step, op):
        found, whole = self.find(op["key"])
        known, length = len(found) * self.size, len(whole[1])
        for prefix in self.prefixes(whole)[len(found) :]:
            end = len(prefix[1])
            self.pages[prefix] = [op["slots"][end - self.size : end], self.clock]
        self.nodes[step] = whole
        adopted = [[known, length]] if known < length else []
        return {"is": "inserted", "prefix_len": known, "adopted": adopted, "node_len": length}

    def do_evict(self, step, op):
        left = dict(self.pages)
        while (len(self.pages) - len(left)) * self.size < op["tokens"]:
            inner = {(space, tokens[: -self.size]) for space, tokens in left}
            leaves = [it for it in left if it not in inner and not self.holds[it]]
            if not leaves:
                break
            del left[min(leaves, key=lambda it: (left[it][1], len(it[1])))]
        gone = [it for it in self.pages if it not in left]
        self.give_back([slot for it in gone for slot in self.pages[it][0]])
        self.pages = left
        return {"is": "evicted", "full": len(gone) * self.size}

    def give_back(self, slots):
        if slots:
            self.effects.append({"call": "free", "slots": slots})
            self.free += slots

    def do_lock(self, step, op):
        self.nodes[step] = self.nodes[op["of"]]
        self.holds.update(self.prefixes(self.nodes[step]))
        return {"is": "locked"}

    def do_unlock(self, step, op):
        self.holds.subtract(self.prefixes(self.nodes[op["lock"]]))
        return {"is": "done"}

    def do_reset(self, step, op):
        self.give_back([slot for slots, _ in self.pages.values() for slot in slots])
        self.pages, self.holds = {}, Counter()
        return {"is": "done"}

    def do_alloc(self, step, op):
        count = -(-op["tokens"] // self.size) * self.size
        if count > len(self.free):
            return {"is": "no_room"}
        taken, self.free = self.free[:count], self.free[count:]
        return {"is": "slots", "slots": taken[: op["tokens"]]}

    def do_free(self, step, op):
        for page in dict.fromkeys(slot // self.size for slot in op["slots"]):
            self.free += range(page * self.size, (page + 1) * self.size)
        return {"is": "done"}

    def apply(self, step, op):
        """Carry an operation out; slots in it are numbers, nodes and holds the steps that returned them."""
        self.clock, self.effects = step, []
        method = getattr(self, "do_" + op["op"], None)
        if method is None:
            return {"result": {"is": "unsupported", "what": op["op"]}}
        result = method(step, op)
        total = self.size * len(self.pages)
        held = self.size * sum(1 for prefix in self.pages if self.holds[prefix] > 0)
        sizes = {"total_size": total, "protected_size": held, "evictable_size": total - held}
        sizes["available_size"] = len(self.free)
        return {"result": result, "effects": self.effects, "sizes": sizes}


# -- the runner ----------------------------------------------------------------------------------------------

FORMS = ("$of", "$halves", "$new", "$set", "$any", "$free", "$calls", "$may")


class Mismatch(Exception):
    """What was seen is not what a vector demands."""


class OtherWay(Exception):
    """What was seen is right, too, and the vector has ended."""


def numbers(spans, given):
    """The numbers that spans name: of a step's answer, or of step 0 the numbers themselves."""
    found = []
    for span in spans:
        every = given[span["step"]] if span["step"] else range(span["stop"])
        found += every[span["start"] : span["stop"]]
    return found


def is_span(value):
    return isinstance(value, dict) and set(value) == {"step", "start", "stop"}


def with_numbers(op, given):
    """An operation with slots in the place of spans: a list of spans is a list, one span is one number."""
    resolved = {}
    for name, value in op.items():
        if is_span(value):
            (value,) = numbers([value], given)
        elif isinstance(value, list) and value and all(map(is_span, value)):
            value = numbers(value, given)
        resolved[name] = value
    return resolved


def compare(expected, seen, given, where=""):
    """Raise `Mismatch` where something is not as expected; the rules are those of docs/vectors.md."""
    form = next((it for it in expected if it in FORMS), None) if isinstance(expected, dict) else None
    if form is None and isinstance(expected, dict):
        for name, value in expected.items():
            if name in seen or name == "is":
                compare(value, seen.get(name), given, f"{where}.{name}")
        return
    if form is None and isinstance(expected, list):
        demand(isinstance(seen, list) and len(seen) == len(expected), where, expected, seen)
        for one, other in zip(expected, seen, strict=True):
            compare(one, other, given, where)
        return
    if form is None:
        demand(expected == seen, where, expected, seen)
        return
    value = expected[form]
    if form == "$may" and not equals(value, seen, given):
        if "or" not in expected or any(equals(other, seen, given) for other in expected["or"]):
            raise OtherWay
        compare(value, seen, given, where)
    elif form in ("$of", "$halves"):
        demand(
            numbers(value, given[form]) == (seen if isinstance(seen, list) else [seen]), where, value, seen
        )
    elif form == "$new":
        demand(are_new(expected, seen, given), where, expected, seen)
    elif form == "$any":
        demand(seen in value, where, expected, seen)
    elif form == "$set":
        left = list(seen)
        for item in value:
            place = next((at for at, it in enumerate(left) if equals(item, it, given)), None)
            demand(place is not None, where, expected, seen)
            del left[place]
        demand(not left, where, expected, seen)
    elif form == "$calls":
        compare_calls(expected, seen, given, where)


def equals(expected, seen, given):
    try:
        compare(expected, seen, given)
    except Mismatch:
        return False
    return True


def demand(is_right, where, expected, seen):
    if not is_right:
        raise Mismatch(f"{where}: expected {expected}, seen {seen}")


def are_new(expected, seen, given):
    """Whether these are different numbers that fill pages from their beginning, none of a taken page."""
    if len(seen) != expected["$new"] or len(set(seen)) != len(seen):
        return False
    page, ((form, spans),) = expected["page"], expected["but"].items()
    taken = {it // page for it in numbers(spans, given[form])}
    return all(
        expected["least"] <= it <= expected["most"]
        and it // page not in taken
        and it == seen[at - at % page] + at % page
        and (at % page != 0 or it % page == 0)
        for at, it in enumerate(seen)
    )


def compare_calls(expected, seen, given, where):
    for name, value in expected["$calls"].items():
        calls = [it for it in seen if it["call"] == name]
        if isinstance(value, int):
            demand(len(calls) == value, f"{where}.{name}", value, len(calls))
        else:
            ((form, spans),) = value.items()
            slots = sorted(slot for it in calls for slot in it["slots"])
            demand(slots == sorted(numbers(spans, given[form])), f"{where}.{name}", value, slots)
    for call in seen:
        if call["call"] == "callback":
            compare(expected.get("inside", {}), call.get("sizes", {}), given, f"{where}.inside")
        else:
            demand(call["call"] in expected["$calls"], where, expected, seen)


def play(vector, cache_class):
    """What becomes of a vector: passed, failed, other way or skipped, and why."""
    missing = sorted(set(vector["needs"]) - cache_class.CLAIMS)
    if missing:
        return "skipped", f"does not claim {', '.join(missing)}"
    if not cache_class.fits(vector["config"]):
        return "skipped", "cannot be built so"
    cache, given = cache_class(vector["config"]), {"$of": {}, "$halves": {}}
    for number, step in enumerate(vector["steps"], 1):
        outcome = cache.apply(number, with_numbers(step["op"], given["$of"]))
        result = outcome["result"]
        if result["is"] == "unsupported":
            return "skipped", f"{result['what']} is unsupported"
        try:
            compare(step["expect"], {"effects": [], "sizes": {}, **outcome}, given)
        except OtherWay:
            return "other way", f"step {number}"
        except Mismatch as error:
            return "failed", f"step {number}{error}"
        given["$of"][number] = result.get("slots") or []
        given["$halves"][number] = result.get("swa_slots") or []
    return "passed", ""


def main(words=None, cache_class=PageCache):
    """Play every vector of some files; the exit status."""
    parser = argparse.ArgumentParser(description="Play cache vectors.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--known", type=Path, help="a JSON object of reasons, by the ids of vectors")
    asked = parser.parse_args(words)
    known = json.loads(asked.known.read_text(encoding="utf-8")) if asked.known else {}
    counts, is_wrong = Counter(), False
    for path in asked.files:
        _, *vectors = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        for vector in vectors:
            verdict, why = play(vector, cache_class)
            counts[verdict] += 1
            if verdict == "failed":
                told = f"known: {known[vector['id']]}" if vector["id"] in known else why
                print(f"{vector['id']}  {vector['law']}: {vector['says']}\n    {told}")
                is_wrong |= vector["id"] not in known
            elif verdict != "skipped" and vector["id"] in known:
                print(f"{vector['id']}  passes, and is listed as a known deviation")
    print(", ".join(f"{verdict} {count}" for verdict, count in sorted(counts.items())))
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
