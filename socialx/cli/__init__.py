"""The commands: parse, call one task, print.  stdout is the result, stderr the progress.

torch and everything that needs it is imported inside the commands, so that ``--help`` answers at once.
"""

from socialx.cli.app import app, main

# The order of these lines is the order in --help.
# isort: off
from socialx.cli.files import convert
from socialx.cli.training import train
from socialx.cli.profiling import profile
from socialx.cli.scoring import evaluate
from socialx.cli.serving import serve
from socialx.cli.doctor import diagnose

# isort: on
__all__ = ["app", "convert", "diagnose", "evaluate", "main", "profile", "serve", "train"]
