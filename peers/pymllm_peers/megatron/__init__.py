"""The adapter of Megatron-LM's block and slot allocators; a checkout is read when one is built."""
