"""Settings: tree, layers, files and model kinds."""
