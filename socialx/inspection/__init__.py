"""What an HDF5 file holds, and what is odd about it."""
