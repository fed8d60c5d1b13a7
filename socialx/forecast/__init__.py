"""A forecast as data, in files, in tables and as a picture."""
