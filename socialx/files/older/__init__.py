"""Files of earlier writers: what they are, and how they are completed."""
