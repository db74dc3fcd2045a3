"""The verbs of running servers."""
