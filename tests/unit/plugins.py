"""Sources of plug-ins for the fixture ``plug_in``: packages that bring adapters."""

READS_A_CHECKOUT = """
from pymllm.adapters.entry import AdapterEntry
class Sources:
    project, variable = "Their-Cache", "THEIR_CACHE"
    def how_to_get(self): return "clone it"
    def is_of(self, commit): return commit == "d98e8a6"
ADAPTERS = [AdapterEntry("theirs", "their:Cache", "theirs", checkout=Sources())]
"""

OF_PACKAGES = """
from pymllm.adapters.entry import AdapterEntry
ADAPTERS = [
    AdapterEntry("their-radix", "their:Radix", "theirs", "their_cache"),
    AdapterEntry("their-rows", "their:Rows", "theirs", "their_cache"),
    AdapterEntry("other-index", "other:Index", "another's", "other", "other-runtime"),
    AdapterEntry("gone-blocks", "gone:Blocks", "not there", "gone"),
]
"""
