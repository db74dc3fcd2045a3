"""The adapters that the entry point names; none of them is imported before it is used."""

from pymllm.adapters.entry import AdapterEntry

ADAPTERS = [AdapterEntry("bitmap-slots", "bitmap_slots.adapter:BitmapSlots", "slots as bits of a number")]
