"""Vectors: programs with all that they may come to, as data that anybody can vendor."""
