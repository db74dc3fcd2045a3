"""The verbs that read earlier results: programs and runs."""
