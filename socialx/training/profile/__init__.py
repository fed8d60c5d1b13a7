"""Where the time of a training step goes, and what to change."""
