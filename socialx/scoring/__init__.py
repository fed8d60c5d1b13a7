"""Forecast scores, prediction intervals and drift, and the protocol behind each score."""
