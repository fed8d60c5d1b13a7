"""The HDF5 file that every command reads: its layout, and how it is written and opened."""
