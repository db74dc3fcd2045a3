"""Replays of recorded or generated requests, grids of replays, and curves over capacity."""
