"""The commands that search implementations for violations, or list adapters, goals and faults."""
