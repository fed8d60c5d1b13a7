"""What a user may set: the tree of settings, its layers and files, and the kinds of models."""
