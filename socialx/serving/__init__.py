"""Serve a trained run: forecasts over HTTP by a model in memory."""
