"""The same cache once more, which claims four things beside: refusals, callbacks, ids of nodes and faults.

::

    pymllm verify --command "python3 strict_cache.py"

It refuses misuse by the names of the documented errors, calls back once for each page that it evicts, and
lets a call fail when it is told to. None of that leaves a trace where it must not.
"""

from collections import Counter

from page_cache import HELLO, PageCache, serve


class LockError(Exception):
    """A hold is released that is not there."""


class StaleNodeError(Exception):
    """A node is used that has left the cache."""


class InjectedFault(Exception):
    """A call that was told to fail has failed."""


NONSENSE = {
    ("evict", "a float amount"): {"op": "evict", "tokens": 1.5},
    ("evict", "a string for an amount"): {"op": "evict", "tokens": "1"},
    ("evict", "no amount"): {"op": "evict", "tokens": None},
    ("lock", "a node of another cache"): {"op": "lock", "of": "elsewhere"},
}
"""Calls that nobody may make, as far as this cache can be called so."""


class StrictCache(PageCache):
    """A cache that trusts neither its caller, nor the pool, nor its listener."""

    def __init__(self, config):
        super().__init__(config)
        self.numbers = {}  # prefix -> the number of its page, which no other page ever gets
        self.last_number = 0
        self.given = {}  # step -> the number of the page that it returned, 0 for the root
        self.taken = Counter()  # prefix -> holds at exactly this page
        self.fault, self.made = None, Counter()  # what is to fail, and the calls since then
        self.is_calling_back = False

    def result(self, step, op):
        """Carry one operation out. An error is a result, too; what was to fail is forgotten after it."""
        if self.is_calling_back:
            return failed(RuntimeError("called from inside a callback"))
        try:
            result = super().result(step, op)
        except Exception as error:
            result = failed(error)
        if step in self.nodes:
            self.given[step] = self.numbers.get(self.nodes[step], 0)
        if op["op"] != "fault":
            self.fault = None
        return result

    # -- misuse: refused before anything has changed --

    def do_insert(self, step, op):
        size, tokens, slots = self.page_size, op["key"]["tokens"], op.get("slots")
        if slots is None or len(slots) != len(tokens):
            raise ValueError("one slot for each token")
        for at in range(0, len(tokens) - size + 1, size):
            first = slots[at] // size * size
            if self.has_pool and slots[at : at + size] != list(range(first, first + size)):
                raise ValueError("the slots of a page of the key are a page of the pool, in order")
        for name in ("prev_prefix_len", "swa_evicted_seqlen"):  # without a window they say nothing else
            if not 0 <= op.get(name, 0) <= len(tokens):
                raise ValueError(f"{name} is no length of this key")
        result = super().do_insert(step, op)
        for prefix in self.prefixes(self.nodes[step]):
            if prefix not in self.numbers:
                self.last_number += 1
                self.numbers[prefix] = self.last_number
        return result

    def do_evict(self, step, op):
        if type(op["tokens"]) is not int:
            raise TypeError("so many tokens are no integer")
        return super().do_evict(step, op)

    def fresh(self, step):
        """The prefix that a step returned; the page at its end must still be the same one."""
        number = self.given.get(step, -1)
        if number and self.numbers.get(self.nodes.get(step)) != number:
            raise StaleNodeError(f"the node of step {step} is none of this cache, or has left")
        return self.nodes[step]

    def do_lock(self, step, op):
        self.taken[self.fresh(op["of"])] += 1
        return super().do_lock(step, op)

    def do_unlock(self, step, op):
        """Release a hold at the node of its lock, or at the node of the step ``at``, which may have none."""
        prefix = self.fresh(op.get("at", op["lock"]))
        if prefix[1]:  # the root is nobody's
            if not self.taken[prefix]:
                raise LockError("there is no hold at this node")
            self.taken[prefix] -= 1
            self.hold(prefix, -1)
        return {"is": "done"}

    def do_reset(self, step, op):
        self.numbers.clear()
        self.taken.clear()
        return super().do_reset(step, op)

    def do_malformed(self, step, op):
        """Make a call with an argument that must be refused, if this cache has the call."""
        if (op["call"], op["wrong"]) not in NONSENSE:
            return {"is": "unsupported", "what": f"{op['call']} with {op['wrong']}"}
        return self.result(step, NONSENSE[op["call"], op["wrong"]])

    # -- what can fail: a call of the pool, and whoever is called back --

    def do_fault(self, step, op):
        self.fault, self.made = (op["call"], op.get("nth", 1)), Counter()
        return {"is": "done"}

    def strikes(self, call):
        """Count a call, and tell whether the call is to fail."""
        self.made[call] += 1
        return (call, self.made[call]) == self.fault

    def give_back(self, slots):
        if slots and self.has_pool and self.strikes("free"):
            raise InjectedFault("the pool takes nothing")
        super().give_back(slots)

    def drop(self, prefixes):
        """Forget pages, then call back for each of them, and only then raise a listener's error."""
        numbers = [self.numbers.pop(it) for it in prefixes]
        super().drop(prefixes)
        errors = [error for error in map(self.call_back, numbers) if error]
        if errors:
            raise errors[0]

    def call_back(self, number):
        """Tell the listener that a page has left; a request from inside the callback is refused."""
        self.is_calling_back, note = True, ""
        if self.strikes("reenter"):
            note = self.result(0, {"op": "match", "key": {"tokens": [1]}}).get("error", "")
        self.is_calling_back = False
        self.effects.append({"call": "callback", "node": number, "note": note, "sizes": self.sizes()})
        return InjectedFault("who was called back failed") if self.strikes("callback") else None


def failed(error):
    """An error as a result."""
    return {"is": "failed", "error": type(error).__name__, "message": str(error)}


if __name__ == "__main__":
    claims = [*HELLO["capabilities"], "refusals", "callbacks", "node_ids", "faults"]
    serve(StrictCache, {**HELLO, "name": "strict-cache", "capabilities": claims})
