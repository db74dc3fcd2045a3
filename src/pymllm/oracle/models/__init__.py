"""Models: what each kind of implementation must do, predicted; nothing is judged here."""
