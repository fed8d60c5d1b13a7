"""Hold a forecast as data, and write files, tables and pictures."""
