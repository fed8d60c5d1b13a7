"""Parameter help: shared text for a task's signature, docstring and command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Help:
    """Help text in a line (help), what stands for the value in the command's help (metavar), and the heading (panel).

    A task's parameter ``Annotated[type, Help(...)]`` is an argument or a flag for the command, which reads the
    signature as source: a help there is made from literals, or stands below.
    """

    help: str
    metavar: str = ""
    _: KW_ONLY
    panel: str = "Other"


def table_help(help: str, metavar: str) -> Help:
    """Return help for an argument that describes a table for a task that takes a table in place of a file."""
    return InputFormat(f"of a table: {help}", metavar)


InputFormat, Times, Sensors, Windows, Scores, Measurement, Server, Output, FailIf = (
    partial(Help, panel=panel)
    for panel in ("Input format", "Times", "Sensors", "Windows", "Scores", "Measurement", "Server", "Output", "Fail if")
)
RUN = Help("a run folder, or a run of the package: zero-shot, metr-la", "RUN")
RUNS = Help("a run folder, or a run of the package: zero-shot, metr-la; several for their mean", "RUN...")
SPLIT = Windows("which windows", "train|validation|test|all")
START = Windows("score only forecasts that begin here or later", "TIME")
END = Windows("and end here or before; a date is its 00:00", "TIME")
INTERVAL = Output("add prediction intervals of this level, such as 0.9", "X")
OVERWRITE = Output("replace an existing output")


def with_help(function: Function) -> Function:
    """Copy parameter help into the docstring of a task, and leave plain types in its signature: a decorator."""
    lines = []
    for name, hint in inspect.get_annotations(function, eval_str=True).items():
        for part in getattr(hint, "__metadata__", ()):
            lines.append(f"    {name}: {part.help}")
            function.__annotations__[name] = hint.__origin__
    function.__doc__ = "\n".join([f"{function.__doc__}", *lines])
    return function
