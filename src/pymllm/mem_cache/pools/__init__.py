"""The tensors of keys and values and of recurrent states, and the table of each request's slots."""
