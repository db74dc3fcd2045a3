"""Inference: the contexts that the forward pass runs in."""
