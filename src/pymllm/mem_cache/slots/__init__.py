"""The allocators of KV slots, and the free lists of pages below them."""
