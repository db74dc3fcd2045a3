"""The commands of long campaigns: play, resume, repeat a run, and merge."""
