"""Machines: what callers do, derived from small integers, and one adapter beside its judge."""
