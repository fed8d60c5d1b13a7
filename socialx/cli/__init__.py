"""The commands: parse, call one task, print.  stdout is the result, stderr the progress.

A command's module is imported when it is called, and torch with all that needs it inside the command: ``--help``
answers at once.
"""

from socialx.cli.app import app, main

__all__ = ["app", "main"]
