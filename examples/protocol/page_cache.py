"""A prefix cache that speaks pymllm's process protocol and needs only the standard library.

::

    pymllm verify --command "python3 page_cache.py"

The cache is a dictionary of pages, each named by everything up to its end. Its recency goes by the clock of
the protocol. docs/protocol.md says what each line means.
"""

import json
import sys
from collections import Counter


class PageCache:
    """Pages of KV slots by prefix, in a pool of its own; the least recent page without a child goes first."""

    def __init__(self, config):
        self.page_size, self.has_pool = config["page_size"], config["pool"] == "token"
        first = self.page_size  # the slots of page 0 are for padding
        self.free = list(range(first, first + config["slots"])) if self.has_pool else []
        self.clock = 0
        self.pages = {}  # prefix -> [slots of its last page, time of last use]
        self.holds = Counter()  # prefix -> holds at or below it
        self.nodes = {}  # step -> the prefix that it returned
        self.effects = []  # what the operation in progress did by itself

    def prefixes(self, prefix):
        """Every prefix of whole pages, the shortest first."""
        space, tokens = prefix
        size = self.page_size
        return [(space, tokens[:end]) for end in range(size, len(tokens) + 1, size)]

    def find(self, key):
        """The pages of the key that are cached, each used now; and the key, cut to whole pages."""
        tokens = tuple(key["tokens"])
        tokens = tokens[: len(tokens) // self.page_size * self.page_size]
        whole, found = (key.get("extra_key"), tokens), []
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
        known, length = len(found) * self.page_size, len(whole[1])
        for prefix in self.prefixes(whole)[len(found) :]:
            end = len(prefix[1])
            self.pages[prefix] = [op["slots"][end - self.page_size : end], self.clock]
        self.nodes[step] = whole
        adopted = [[known, length]] if known < length else []
        return {"is": "inserted", "prefix_len": known, "adopted": adopted, "node_len": length}

    def may_go(self, prefix):
        """Whether a page without a child can be evicted: there is no hold."""
        return not self.holds[prefix]

    def do_evict(self, step, op):
        """Choose first, give back then, forget last: where the pool refuses, nothing has happened."""
        size, left = self.page_size, dict(self.pages)
        while (len(self.pages) - len(left)) * size < op["tokens"]:
            inner = {(space, tokens[:-size]) for space, tokens in left}
            leaves = [it for it in left if it not in inner and self.may_go(it)]
            if not leaves:
                break
            del left[min(leaves, key=lambda it: (left[it][1], len(it[1])))]
        gone = [it for it in self.pages if it not in left]
        self.give_back([slot for it in gone for slot in self.pages[it][0]])
        self.drop(gone)
        return {"is": "evicted", "full": len(gone) * size}

    def drop(self, prefixes):
        for it in prefixes:
            del self.pages[it]

    def give_back(self, slots):
        if self.has_pool and slots:
            self.effects.append({"call": "free", "slots": slots})
            self.free += slots

    def hold(self, prefix, by):
        for it in self.prefixes(prefix):
            self.holds[it] += by

    def do_lock(self, step, op):
        self.nodes[step] = self.nodes[op["of"]]
        self.hold(self.nodes[step], 1)
        return {"is": "locked"}

    def do_unlock(self, step, op):
        self.hold(self.nodes[op["lock"]], -1)
        return {"is": "done"}

    def do_reset(self, step, op):
        """Forget everything, even held pages, and even where the pool refuses the slots."""
        slots = [slot for its, _ in self.pages.values() for slot in its]
        self.pages.clear()
        self.holds.clear()
        self.give_back(slots)
        return {"is": "done"}

    def do_alloc(self, step, op):
        count = -(-op["tokens"] // self.page_size) * self.page_size
        if not self.has_pool:
            return {"is": "unsupported", "what": "there is no pool"}
        if count > len(self.free):
            return {"is": "no_room"}
        taken, self.free = self.free[:count], self.free[count:]
        return {"is": "slots", "slots": taken[: op["tokens"]]}

    def do_free(self, step, op):
        """Take slots from the caller, which is no effect to tell. A page comes back once, as a whole."""
        size = self.page_size
        for page in dict.fromkeys(slot // size for slot in op["slots"]):
            self.free += range(page * size, page * size + size)
        return {"is": "done"}

    def sizes(self):
        size = self.page_size
        held = size * sum(1 for prefix in self.pages if self.holds[prefix])
        total = size * len(self.pages)
        sizes = {"total_size": total, "protected_size": held, "evictable_size": total - held}
        return {**sizes, "available_size": len(self.free)} if self.has_pool else sizes

    def result(self, step, op):
        """Carry one operation out; nothing has happened where it is not supported."""
        method = getattr(self, "do_" + op["op"], None)
        return {"is": "unsupported", "what": op["op"]} if method is None else method(step, op)

    def outcome(self, step, op):
        """Carry one operation out and tell everything that could be seen of it."""
        self.effects = []
        result = self.result(step, op)
        return {"result": result, "effects": self.effects, "sizes": self.sizes()}


HELLO = {
    "protocol": 1,
    "name": "page-cache",
    "version": "1.0",
    "language": "Python",
    "kind": "prefix",
    "capabilities": ["pool", "extra_key", "exact_lru", "engine"],
    "configurations": [
        {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 0},
        {"page_size": 4, "window": None, "pool": "token", "slots": 48, "swa_slots": 0},
    ],
    "clock": True,
}


def serve(make_cache=PageCache, hello=HELLO):
    """Answer line by line until a goodbye or the end of the input."""
    cache = None
    for line in sys.stdin:
        message = json.loads(line)
        say = message["say"]
        if say == "hello":
            answer = {"say": "hello", **hello}
        elif say == "start":
            cache = make_cache(message["config"])
            claims = [it for it in hello["capabilities"] if cache.has_pool or it not in ("pool", "engine")]
            answer = {"say": "started", "capabilities": claims}
        elif say == "advance":
            cache.clock += message["ticks"]
            answer = {"say": "advanced", "clock": cache.clock}
        elif say == "op":
            step = message["step"]
            answer = {"say": "outcome", "step": step, "outcome": cache.outcome(step, message["op"])}
        elif say == "bye":
            break
        else:
            answer = {"say": "error", "message": f"{say!r} is not known here"}
        print(json.dumps(answer), flush=message.get("flush", True))


if __name__ == "__main__":
    serve()
