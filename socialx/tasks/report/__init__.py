"""A page about runs, and a model card for a run."""
