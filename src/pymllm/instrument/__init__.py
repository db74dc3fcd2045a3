"""Instruments: they watch a run and say what they saw, and say ``unknown`` where they could not see.

Nothing here loads torch or pynvml when it is imported; an instrument does so when it is used.
"""
