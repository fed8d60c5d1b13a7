"""Everything that knows a file: the HDF5 store, the formats that users hold, older files, checks, downloads."""
