"""The adapter of nano-vllm's block manager; a checkout is read when one is built."""
