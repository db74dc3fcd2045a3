"""The verbs that search implementations, and the lists and tables beside them."""
