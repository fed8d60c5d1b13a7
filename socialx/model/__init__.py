"""The forecaster: tensors in, tensors out; knows no files and no settings."""
