"""Shared parts of pictures, pages and terminal tables."""
