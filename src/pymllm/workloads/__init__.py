"""Workloads: what asks, and the one simulated engine that carries it out.

Here live requests (`request`), where they come from (`source`), and the engine that drives the real
pools and caches with them (`engine`). Judging an implementation from outside does not live here.
"""
