"""The common data of all packages: operations, outcomes, and histories of both."""
