"""The former name of `pymllm.faults.fault`, for tables of faults that were written before the move."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("pymllm.faults.fault")
