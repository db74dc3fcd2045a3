"""The commands that search implementations for violations, and those that list adapters and goals."""
