"""A table of known faults, with functions that plant each in running code and remove it."""
