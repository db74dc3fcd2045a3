"""Know that LLM cache memory is right, and fast.

Importing this package is light: torch is loaded by ``pymllm.mem_cache``, Hypothesis and NVML
only by the rooms that use them.
"""

__version__ = "0.1.0"
