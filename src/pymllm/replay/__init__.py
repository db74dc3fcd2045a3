"""Replays of recorded or made requests, grids of them, and curves over capacity."""
