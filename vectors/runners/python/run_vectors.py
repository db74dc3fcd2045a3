"""Plays cache vectors on a cache; one file, and the standard library is all that it needs.

    python3 run_vectors.py ../../v1/prefix.jsonl [--known known.json]

Put your cache in the place of `PageCache`; docs/vectors.md has the rules. By pymllm; licence: Apache-2.0.
"""

import json
import re
import sys
from collections import Counter

# -- JSON: ASCII without escapes, and integers of at most 19 digits ------------------------------------------

LIMIT = 2**20  # the most of counts, sizes and slots
OTHER = "take the runner that came with these vectors"
PLAIN = re.compile(r'(?:[\[\]{},:\s]|"[^"\\]*"|null|true|false|\b0\b|-?\b[1-9][0-9]{0,18}\b)*', re.ASCII)


class Refused(Exception):
    """The refusal of an input that makes no sense."""


def read_object(place, text, *fields):
    try:
        value = json.loads(text) if text.isascii() and PLAIN.fullmatch(text) else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or any(name not in value for name in fields):
        names = ", ".join(fields) or "reasons by ids"
        raise Refused(f"{place}: must be plain JSON, an object with {names}")
    return value


def show(value):
    return json.dumps(value, separators=(",", ":"))


def get(value, name, otherwise=""):
    found = value.get(name) if isinstance(value, dict) else None
    return found if type(found) is type(otherwise) else otherwise


def number_of(value, name):
    return max(get(value, name, 0), 0) if get(value, name, 0) <= LIMIT else 0


def items_of(value, name):
    found = value.get(name) if isinstance(value, dict) else None
    return list(found.values()) if isinstance(found, dict) else found if isinstance(found, list) else []


def numbers_of(values):
    return [it for it in values if type(it) is int and it >= 0]


# -- comparison: the rules of docs/vectors.md ----------------------------------------------------------------


class OtherWay(Exception):
    """An answer is another one that is right, and the vector ends."""


def is_like(expected, seen):
    if isinstance(expected, list):
        return isinstance(seen, list) and len(seen) == len(expected) and all(map(is_like, expected, seen))
    if not isinstance(expected, dict):
        return show(expected) == show(seen)
    form = next((name for name in expected if name.startswith("$")), "")
    if form in ("$of", "$halves"):
        return show(expected[form]) in (show(seen), show([seen]))
    if form == "$new":
        return are_new(expected, numbers_of(items_of({form: seen}, form)))
    if form == "$set":
        left = list(seen) if isinstance(seen, list) else [None]
        for item in items_of(expected, form):
            place = next((at for at, it in enumerate(left) if is_like(item, it)), len(left))
            if place == len(left):
                return False
            del left[place]
        return not left
    if form == "$any":
        return any(is_like(item, seen) for item in items_of(expected, form))
    if form == "$calls":
        return are_calls(get(expected, form, {}), expected.get("inside", {}), items_of({form: seen}, form))
    if form == "$may" and not is_like(expected[form], seen):
        if "or" not in expected or any(is_like(item, seen) for item in items_of(expected, "or")):
            raise OtherWay
        return False
    if form or not isinstance(seen, dict):
        return form in ("$free", "$may")
    all_seen = {"result": {}, "is": None, "effects": [], **seen}
    return all(is_like(it, all_seen[name]) for name, it in expected.items() if name in all_seen)


def are_new(expected, seen):
    """Tell whether the numbers differ, fill pages from their beginning, and avoid taken pages."""
    page, least, most = (number_of(expected, name) for name in ("page", "least", "most"))
    if len(seen) != number_of(expected, "$new") or page == 0:
        return False
    taken = {it // page for form in items_of(expected, "but") for it in numbers_of(items_of({0: form}, 0))}
    for at, it in enumerate(seen):
        is_next = it == seen[at - 1] + 1 if at % page else it % page == 0 and it // page not in taken
        if not (least <= it <= most and is_next):
            return False
        taken.add(it // page)
    return True


def are_calls(calls, inside, seen):
    """Tell whether calls match in number or in slots, and callbacks saw the sizes that they must."""
    names = [get(it, "call") for it in seen]
    for name, value in calls.items():
        if isinstance(value, dict):
            slots = [slot for it in seen if get(it, "call") == name for slot in items_of(it, "slots")]
            if sorted(slots) != sorted(slot for form in value for slot in numbers_of(items_of(value, form))):
                return False
        elif show(value) != show(names.count(name)):
            return False
    saw = [items["sizes"] for items in seen if get(items, "call") == "callback" and "sizes" in items]
    return {*names} <= {"callback", *calls} and all(is_like(inside, sizes) for sizes in saw)


# -- playing -------------------------------------------------------------------------------------------------


def resolve(value, given, kind="slots"):
    """A value with numbers in the place of spans: of an earlier answer, or of step 0 they themselves."""
    if isinstance(value, dict):
        if is_span(value):
            return next(iter(numbers(value, given, kind)), None)
        kinds = {name: "swa_slots" if name == "$halves" else kind for name in value}
        return {name: resolve(it, given, kinds[name]) for name, it in value.items()}
    if isinstance(value, list):
        parts = [numbers(it, given, kind) if is_span(it) else [resolve(it, given, kind)] for it in value]
        return [number for part in parts for number in part]
    return value


def is_span(value):
    return isinstance(value, dict) and "step" in value and "stop" in value


def numbers(span, given, kind):
    step, start, stop = (number_of(span, name) for name in ("step", "start", "stop"))
    answer = items_of(given[step - 1], kind) if 0 < step <= len(given) else []
    return numbers_of(answer)[start:stop] if step else list(range(start, stop))


def make(vector, kind):
    """Make a cache for a vector; or return none, with the vector's fate and the reason."""
    missing = [it for it in items_of(vector, "needs") if it not in PageCache.CLAIMS]
    if kind != PageCache.KIND:
        return None, ("skipped", f"is not of kind {kind}")
    if missing:
        return None, ("skipped", "does not claim " + ", ".join(get({0: it}, 0) for it in missing))
    config = get(vector, "config", {})
    try:
        return PageCache.build(config), ("skipped", "cannot be built so")
    except Exception as error:  # whatever it is: a vector that failed
        return None, ("failed", f"build: {show(config)}\n    raised   {error!a}")


def play(vector, cache):
    """Return the fate of a vector: passed, failed, other way or skipped, with the reason, if there is one."""
    given = []
    for number, step in enumerate(items_of(vector, "steps"), 1):
        op, expected = resolve(step["op"], given), resolve(step["expect"], given)
        why = f"step {number}: {show(op)}\n"
        try:
            seen = cache.apply(number, op)
            given.append(get(seen, "result", {}))
            if get(given[-1], "is") == "unsupported":
                return "skipped", f"{get(op, 'op')} is unsupported"
            if not is_like(expected, seen):
                return "failed", f"{why}    expected {show(expected)}\n    seen     {show(seen)}"
        except OtherWay:
            return "other way", ""
        except Exception as error:
            return "failed", f"{why}    raised   {error!a}"
    return "passed", ""


# -- an example: yours instead, with `KIND`, `CLAIMS`, `build` and `apply` -----------------------------------


class PageCache:
    """Pages of slots by prefix, in a pool of its own; the least recent page at an end goes first."""

    KIND, CLAIMS = "prefix", ("pool", "extra_key", "exact_lru")

    @classmethod
    def build(cls, config):
        """A cache; none where it cannot be built so."""
        known = {"page_size", "slots", "swa_slots", "window", "pool", "check_ownership"}
        is_ours = config.get("window", 0) is None and get(config, "pool") == "token"
        size, count = number_of(config, "page_size"), number_of(config, "slots")
        return cls(size, count) if is_ours and known.issuperset(config) and size > 0 else None

    def __init__(self, size, count):
        self.size, self.free = size, list(range(size, size + count))  # page 0 is for padding
        self.pages = {}  # by a namespace and the tokens up to their ends: slots, last use, holds
        self.nodes = {}  # by step: the prefix that it returned

    def apply(self, step, op):
        """Carry an operation out; slots in it are numbers, nodes and holds the steps that returned them."""
        name, wanted, freed, result = get(op, "op"), number_of(op, "tokens"), [], {"is": "done"}
        if name in ("match", "insert"):
            result = self.walk(step, op, name == "insert")
        elif name == "evict":
            while len(freed) < wanted and (leaves := self.leaves()):
                freed += self.pages.pop(min(leaves, key=lambda it: self.pages[it]["used"]))["slots"]
            result = {"is": "evicted", "full": len(freed)}
        elif name == "lock":
            self.nodes[step], result = self.nodes.get(number_of(op, "of"), ()), {"is": "locked"}
            self.hold(self.nodes[step], 1)
        elif name == "unlock":
            self.hold(self.nodes.get(number_of(op, "lock"), ()), -1)
        elif name == "reset":
            freed = [slot for prefix in sorted(self.pages) for slot in self.pages.pop(prefix)["slots"]]
        elif name == "alloc":
            count, result = -(-wanted // self.size) * self.size, {"is": "no_room"}
            if count <= len(self.free):
                result = {"is": "slots", "slots": self.free[:wanted]}
                del self.free[:count]
        else:
            result = {"is": "unsupported", "what": name}
        self.free += freed
        held = self.size * sum(page["holds"] > 0 for page in self.pages.values())
        total = self.size * len(self.pages)
        sizes = {"total_size": total, "protected_size": held, "evictable_size": total - held}
        effects = [{"call": "free", "slots": freed}] if freed else []
        return {"result": result, "effects": effects, "sizes": {**sizes, "available_size": len(self.free)}}

    def leaves(self):
        inner = {prefix[: -self.size] for prefix in self.pages}
        return [prefix for prefix, it in self.pages.items() if prefix not in inner and it["holds"] <= 0]

    def hold(self, node, by):
        for prefix, page in self.pages.items():
            page["holds"] += by if node[: len(prefix)] == prefix else 0

    def walk(self, step, op, is_insert):
        key, given, found = get(op, "key", {}), numbers_of(items_of(op, "slots")), []
        tokens = [show(it) for it in items_of(key, "tokens")]
        node, length = (show(key["extra_key"]) if "extra_key" in key else "",), 0
        while length + self.size <= len(tokens):
            prefix = (*node, *tokens[length : length + self.size])
            if prefix in self.pages:
                self.pages[prefix]["used"] = step
                found += self.pages[prefix]["slots"]
            elif is_insert and length + self.size <= len(given):
                self.pages[prefix] = {"slots": given[length:][: self.size], "used": step, "holds": 0}
            else:
                break
            node, length = prefix, length + self.size
        self.nodes[step], known = node, len(found)
        if not is_insert:
            return {"is": "matched", "prefix_len": known, "slots": found, "node_len": length}
        adopted = [[known, length]] if known < length else []
        return {"is": "inserted", "prefix_len": known, "adopted": adopted, "node_len": length}


# -- the command ---------------------------------------------------------------------------------------------


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        raise Refused(f"{path}: must be a file that can be read") from None


def main(words):
    files, lists, counts, skips, told, status = [], [], Counter(), Counter(), "", 0
    rest = iter(words)
    for word in rest:
        is_list = word == "--known"
        (lists if is_list else files).append(next(rest, "") if is_list else word)
    if not files or any(word.startswith("-") for word in files) or len(lists) > 1 or "" in lists:
        raise Refused("usage: run_vectors FILE... [--known FILE], with one list at most")
    known = read_object(f"--known {lists[0]}", read(lists[0])) if lists else {}
    for path in files:
        kind = ""
        for number, line in enumerate(read(path).split("\n"), 1):
            place, line = f"{path}: line {number}", line.strip(" \t\r")
            if line and not kind:
                header = read_object(place, line, "format", "schema", "kind")
                kind, schema = get(header, "kind"), header["schema"]
                if show(schema) != "1":
                    shown = schema if type(schema) is int else "no number"
                    raise Refused(f"{place}: schema is {shown}, and must be 1: {OTHER}")
            elif line:
                vector = read_object(place, line, "id", "law", "says", "needs", "config", "steps")
                for step in items_of(vector, "steps"):
                    read_object(place, show(step), "op", "expect")
                cache, otherwise = make(vector, kind)
                verdict, why = otherwise if cache is None else play(vector, cache)
                id, reason = get(vector, "id"), get(known, get(vector, "id"))
                counts[verdict] += 1
                if verdict == "failed":
                    status, why = (status, f"known: {reason}") if reason else (1, why)
                    told += f"{id}  {get(vector, 'law')}: {get(vector, 'says')}\n    {why}\n"
                elif verdict == "skipped":
                    skips[why] += 1
                elif reason:
                    told += f"{id}  passes, and is listed as a known deviation\n"
        if not kind:
            raise Refused(f"{path}: must begin with a header, which names the kind of its vectors")
    told += "".join(f"    {count} skipped: {why}\n" for why, count in sorted(skips.items()))
    total = sum(counts.values())
    played = total - counts["skipped"]
    share = 1000 * played // max(total, 1)
    parts = [f"played {played} of {total} vectors ({share // 10}.{share % 10} %)"]
    if played == 0:
        parts, status = [f"nothing was played of {total} vectors"], 3
    print(told + ", ".join([*parts, *(f"{verdict} {count}" for verdict, count in sorted(counts.items()))]))
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Refused as error:
        print(error, file=sys.stderr)
        sys.exit(2)
