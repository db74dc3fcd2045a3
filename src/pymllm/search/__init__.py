"""The search for programs that break a law, their shrinking, and the verdicts."""
