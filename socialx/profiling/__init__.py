"""Reads the clock and says where the time went; training never imports this."""
