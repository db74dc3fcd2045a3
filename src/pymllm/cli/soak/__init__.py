"""The verbs of long campaigns: play, go on, repeat one run, put together."""
