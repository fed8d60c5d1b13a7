"""Forecaster: tensors in, tensors out; independent from files and settings."""
