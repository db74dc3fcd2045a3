"""What pytest leaves alone here: files that are run where their project copies them to."""

collect_ignore = ["integrations"]
