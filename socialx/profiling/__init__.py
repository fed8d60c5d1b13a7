"""The time in a training step by cause, and the setting to change."""
