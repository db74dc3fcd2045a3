"""The commands that read earlier results: programs and runs."""
