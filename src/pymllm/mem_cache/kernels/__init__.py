"""Triton kernels that move rows of two buffers in one launch, and the classes by which pools use them."""
