"""What everything stands on: errors, progress, disk, precision, the machine."""
