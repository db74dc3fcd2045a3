"""The only language between the rooms: operations, outcomes, and histories of both, as plain data."""
