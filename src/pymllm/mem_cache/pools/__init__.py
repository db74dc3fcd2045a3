"""The tensors that hold data: keys and values, recurrent states, and which slot is where in a request."""
