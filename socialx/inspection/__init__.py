"""File reports: what an HDF5 file holds, and what looks wrong."""
