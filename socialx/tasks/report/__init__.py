"""One page about some runs, and the model card of one."""
