"""Readings in memory become batches: windows, calendar, moments, neighbours, climatology and loaders."""
