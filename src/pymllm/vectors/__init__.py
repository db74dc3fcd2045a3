"""Test vectors: programs with all their permitted results, as data for use in other projects."""
