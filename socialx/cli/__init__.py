"""The commands: parse, call one task, print the result on stdout and progress on stderr.

A command's module is imported on call, and torch inside the command, so that ``--help`` answers at once.
"""

from socialx.cli.app import app, main

__all__ = ["app", "main"]
