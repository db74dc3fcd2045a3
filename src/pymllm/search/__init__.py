"""The search for programs that break a law, the shrinking of these programs, and the verdicts."""
