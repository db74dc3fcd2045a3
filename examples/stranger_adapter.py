"""The adapter with which pymllm examines the cache of `stranger_cache.py`."""

from stranger_cache import PageCache

from pymllm.adapters.simple import PrefixAdapter


class StrangerCache(PrefixAdapter):
    """A `PageCache`. It has no namespaces, no window, and refuses nothing, so it claims none of these."""

    # So few slots that they run out.
    CONFIGURATIONS = tuple({"page_size": size, "pool": "token", "slots": 24 * size} for size in (1, 2))

    def __init__(self, name, config):
        super().__init__(name, config)
        self.cache = PageCache(self.page_size, self.number("slots"))

    def claim(self):
        return {"pool", "exact_lru", "engine"}

    def sizes(self):  # after every call, in tokens
        pages, held = len(self.cache.pages), len(+self.cache.holds)
        sizes = {"total_size": pages, "protected_size": held, "evictable_size": pages - held}
        sizes = {name: count * self.page_size for name, count in sizes.items()}
        return {**sizes, "available_size": len(self.cache.free)}

    def alloc(self, tokens):  # whole pages, of which the caller gets the first slots
        slots = self.cache.allocate(-(-tokens // self.page_size) * self.page_size)
        return None if slots is None else slots[:tokens]

    def free(self, slots):  # the caller's own slots: no effect
        self.cache.free += self.slots_of(self.pages_of(slots))

    def match(self, key):
        slots = self.cache.match(key.tokens)
        return slots, key.tokens[: len(slots)]  # what lock takes: the tokens

    def insert(self, key, slots):
        return self.cache.insert(key.tokens, slots), key.tokens  # how many it had before

    def evict(self, tokens):
        return self.gave_back(self.cache.evict(tokens))  # an effect, and the count

    def reset(self):  # what callers have stays theirs, so no new pool
        self.cache.holds.clear()
        self.evict(len(self.cache.pages) * self.page_size)

    def lock(self, node):
        self.cache.hold(node)

    def unlock(self, node, token):
        self.cache.hold(node, -1)
