"""The files that pytest leaves alone here: they run where their project copies them to."""

collect_ignore = ["integrations"]
