"""The commands: parse, load the settings, call one function, print.  stdout is the result, stderr the progress.

torch and everything that needs it is imported inside the commands, so that ``--help`` answers at once.
"""

from socialx.cli.app import app, main
from socialx.cli.files import convert  # the order of these two lines is the order in --help
from socialx.cli.models import train

__all__ = ["app", "convert", "main", "train"]
