"""The only exceptions that a user may cause.  Each message is one line: what, where, a sample, the next command.

Anything else that escapes is a bug of socialx and keeps its traceback.
"""

from __future__ import annotations

import warnings


class SocialxError(Exception):
    """A data or file error: exit code 1."""

    exit_code = 1


class SettingsError(SocialxError):
    """A wrong flag, setting or settings file: exit code 2."""

    exit_code = 2


class GateError(SocialxError):
    """A check that the user asked for was not met: exit code 3."""

    exit_code = 3


class Fallback(UserWarning):
    """What was asked for, or picked, cannot be done here; the message says why and what is done in its place."""


def fall_back(message: str) -> None:
    """Warn with a ``Fallback``; the command line prints it as one line."""
    warnings.warn(Fallback(message), stacklevel=3)


def sample(items: list[str] | tuple[str, ...], most: int = 3) -> str:
    """The first few of a list, for an error line: ``a, b, c, ...``."""
    shown = ", ".join(items[:most])
    return f"{shown}, ..." if len(items) > most else shown
