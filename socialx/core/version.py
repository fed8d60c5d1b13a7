"""The version of the package, and its folder."""

from pathlib import Path

__version__ = "0.2.0"
PACKAGE = Path(__file__).parents[1]
