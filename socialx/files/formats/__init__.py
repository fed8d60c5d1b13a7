"""The formats in which users hold data: one module per family, each with its ``FORMATS``."""
