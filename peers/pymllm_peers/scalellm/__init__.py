"""Adapters of ScaleLLM's allocator and prefix cache, in C++; a checkout is compiled when one is built."""
