"""An allocator of slots, and how pymllm examines it."""

from pymllm.adapters.simple import SlotAdapter


class Bitmap:
    """Bits of one number: those that are set are free, and the lowest goes first."""

    def __init__(self, count):
        self.bits = (1 << count) - 1

    def take(self, count):
        if count > self.bits.bit_count():
            return None
        before = self.bits
        for _ in range(count):
            self.bits &= self.bits - 1
        gone = before ^ self.bits
        return [bit for bit in range(gone.bit_length()) if gone >> bit & 1]

    def give_back(self, taken):
        for bit in taken:
            self.bits |= 1 << bit


class BitmapSlots(SlotAdapter):
    """A `Bitmap` with slot 1 as its bit 0: slot 0 is for padding."""

    CONFIGURATIONS = ({"page_size": 1, "pages": 6},)

    def __init__(self, name, config):
        super().__init__(name, config)
        self.clear()

    def claim(self):
        return {"pool"}

    def sizes(self):
        return {"available_size": self.map.bits.bit_count()}

    def alloc(self, tokens):
        taken = self.map.take(tokens)
        return None if taken is None else [bit + 1 for bit in taken]

    def free(self, slots):
        self.map.give_back([slot - 1 for slot in slots])

    def clear(self):
        self.map = Bitmap(self.number("pages"))
