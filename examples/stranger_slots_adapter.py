"""The adapter with which pymllm examines the pages of `stranger_slots.py`."""

from stranger_slots import PageList

from pymllm.adapters.simple import SlotAdapter


class StrangerSlots(SlotAdapter):
    """A `PageList`; its pages begin at 0, and ours at 1, since page 0 is for padding."""

    CONFIGURATIONS = tuple({"page_size": size, "pages": 6} for size in (1, 4))
    REFUSALS = {KeyError: "OwnershipError"}

    def __init__(self, name, config):
        super().__init__(name, config)
        self.pages = PageList(self.number("pages"))

    def claim(self):
        return {"pool", "refuses_double_free"}

    def sizes(self):
        return {"available_size": len(self.pages.free) * self.page_size}

    def alloc(self, tokens):
        pages = self.pages.take(-(-tokens // self.page_size))
        return None if pages is None else self.slots_of(page + 1 for page in pages)[:tokens]

    def free(self, slots):
        self.pages.give_back([page - 1 for page in self.pages_of(slots)])

    def clear(self):
        self.pages.clear()
