"""The training engine: plain torch, plain arguments."""
