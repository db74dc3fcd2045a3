"""Known ways to be wrong, as one table, and one way to put each into running code and take it out again."""
