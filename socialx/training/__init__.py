"""The training engine: plain torch, and the section ``trainer`` of the settings."""
