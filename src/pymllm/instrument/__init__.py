"""Instruments that measure a run, and report ``unknown`` for values that they cannot measure.

Nothing here loads torch or pynvml when it is imported; an instrument does so when it is used.
"""
