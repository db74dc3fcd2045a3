"""Ours and every peer that can be installed, on the same work in one run: ``python -m peers.benchmarks``."""
