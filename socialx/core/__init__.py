"""Base of all rooms: errors, progress, disk, precision, machine."""
