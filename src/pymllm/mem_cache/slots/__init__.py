"""The allocators of KV slots, and the free lists under them: which pages of a pool are whose."""
