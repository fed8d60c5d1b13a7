"""Traffic files: the canonical HDF5 store, readers of published files, windows and loaders."""
