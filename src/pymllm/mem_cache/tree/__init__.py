"""The radix trees below the prefix caches: keys, nodes, walks, splits, and the order of evictions."""
