"""Everything that knows a file."""
