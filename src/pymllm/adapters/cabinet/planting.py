"""The former name of `pymllm.faults.plant`, for tables of faults that were written before the move."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("pymllm.faults.plant")
