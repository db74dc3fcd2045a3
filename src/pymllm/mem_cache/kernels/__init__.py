"""Triton kernels that move rows of two buffers in one launch, and how pools ask for them."""
