"""The verbs that read what others have found: programs and runs."""
