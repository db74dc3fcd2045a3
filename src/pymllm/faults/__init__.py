"""Known faults, as one table, and one way to plant each in running code and to remove it again."""
