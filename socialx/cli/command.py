"""Shared parts of all commands: registration, user errors with exit codes, notes on stderr, JSON."""

from __future__ import annotations

import functools
import inspect
import json
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, get_origin

import typer
import typer.core

from socialx.cli.app import app, print_error
from socialx.cli.error_flags import with_own_model, write
from socialx.cli.flags import GENERAL, HEADINGS, for_typer, settings_parameters, take_layers, task_parameters
from socialx.cli.progress_bars import VERBOSITY, shows
from socialx.core.errors import Argument, FallbackWarning, SocialxError, in_short, spelling
from socialx.settings.schema import UNPROFILED, flag_keys, flag_name, near_argument

Devices = Annotated[
    int,
    typer.Option(
        "--devices",
        metavar="N",
        min=1,
        show_default=False,
        help="processes on this machine, each with a CUDA device of its own (default: 1)",
        rich_help_panel="Hardware",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON and nothing else", rich_help_panel="Output")]


class _Command(typer.core.TyperCommand):
    """A command whose help groups flags; an unknown flag is refused with a suggestion."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the flags below their headings; hidden flags are skipped."""
        lines: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ("Arguments", *HEADINGS)}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                is_argument = parameter.param_type_name == "argument"
                heading = getattr(parameter, "rich_help_panel", None) or "Other"
                lines["Arguments" if is_argument else heading].append(record)
        for heading in filter(lines.get, lines):
            with formatter.section(heading):
                formatter.write_dl(lines[heading])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, and suggest a flag for an unknown flag."""
        try:
            return super().parse_args(ctx, args)
        except typer.Exit:
            raise
        except Exception as error:
            error.ctx = ctx  # type: ignore[attr-defined]
            if not hasattr(error, "possibilities"):  # only an unknown flag has some
                raise
            flag = str(getattr(error, "option_name", ""))
            meant = self._near(flag, flag_keys(str(ctx.info_name)))
            ctx.fail(f"no such option {flag}{f': did you mean {meant}?' if meant else ''}")
            raise

    def _near(self, flag: str, keys: Collection[str]) -> str:
        """Return the flag that an unknown flag may mean, or an empty text; keys: settings with a flag here."""
        flags = {_as_word(name): name for option in self.params for name in option.opts}
        near = near_argument(_as_word(flag), flags, UNPROFILED if "trainer.max_epochs" in keys else keys)
        return flags.get(near) or (flag_name(near) if near in keys else near and f"--set {near}=VALUE")


def _as_word(flag: str) -> str:
    return flag.strip("-").replace("-", "_")


def command(name: str, **after: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the command of a task; user errors are printed and set the exit code.

    The function receives only typed values: task parameters, ``layers`` of settings if accepted, and its own options,
    which have a Help or a Typer annotation.  after: for an own option, the parameter before it in the help; by default
    the last one before the settings.
    """
    return functools.partial(_register, name, after)


def _register(name: str, after: Mapping[str, str], function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function, with the signature that Typer reads."""
    signature = inspect.signature(function, eval_str=True).parameters
    parameters = task_parameters(name)
    for extra in signature.values():
        if get_origin(extra.annotation) is Annotated:
            names = [parameter.name for parameter in parameters]
            parameters.insert(names.index(after[extra.name]) + 1 if extra.name in after else len(names), extra)
    parameters = [for_typer(name, parameter) for parameter in parameters]
    parameters += [*(settings_parameters(name) if "layers" in signature else []), *GENERAL]

    def run(**typed: Any) -> None:
        verbose, quiet, _ = (typed.pop(flag.name) for flag in GENERAL)
        VERBOSITY.set(1 + verbose - quiet)
        with with_own_model(typed), spelling(functools.partial(write, name)):
            _run(name, function, typed)

    run.__module__, run.__name__ = function.__module__, function.__name__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    parts = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(f"\b\n{part}" if "\n  " in part else part for part in parts)  # keeps indented lines
    return app.command(name, cls=_Command)(run)


def _run(name: str, function: Callable[..., None], typed: dict[str, Any]) -> None:
    """Call the function of a command with the typed values; print user errors, and set exit codes."""
    try:
        with _fallbacks_as_notes():
            layers = {"layers": take_layers(name, typed)} if "set_" in typed else {}
            function(**layers, **{key: value for key, value in typed.items() if value is not None})
    except (SocialxError, RuntimeError, MemoryError) as error:
        user_error = error if isinstance(error, SocialxError) else _as_user_error(error)
        if user_error is None:
            raise
        for message in user_error.messages:
            print_error(message)
        raise typer.Exit(user_error.exit_code) from None
    except (BrokenPipeError, SystemExit) as error:
        left = [stream for stream in (1, 2) if _reader_has_left(stream)]
        if not left and not isinstance(error.__context__, BrokenPipeError):  # which rich makes an exit 1
            raise
        for stream in left:  # pending output would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        raise typer.Exit(128 + signal.SIGPIPE) from None


def _as_user_error(error: RuntimeError | MemoryError) -> SocialxError | None:
    """Return a foreign error that the user can fix as SocialxError; None for any other error."""
    if isinstance(error, MemoryError):
        problem = f"the machine is out of memory ({error})" if str(error) else "the machine is out of memory"
        return SocialxError("machine.memory", "", problem, f"use a shorter file, or fewer {Argument('data.days')}")
    if "DataLoader worker" in str(error):  # torch raises this anywhere when a worker dies
        remedy = f"use fewer {Argument('loader.num_workers')}, or {Argument('loader.mode', 'sharded')}"
        return SocialxError("loader.worker-died", "", in_short(error), remedy)
    if "torch" not in sys.modules:  # only a process with torch can run out of its memory
        return None
    from socialx.core.precision import is_out_of_memory

    remedy = f"use a smaller {Argument('loader.batch_size')}, or a smaller {Argument('model.width')}"
    problem = f"the device is out of memory ({in_short(error, 120)})"
    return SocialxError("device.memory", "", problem, remedy) if is_out_of_memory(error) else None


def _reader_has_left(stream: int) -> bool:
    """Return whether a stream is a pipe without a reader, as after ``| head``."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


@contextmanager
def _fallbacks_as_notes() -> Iterator[None]:
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_as_note(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if isinstance(message, FallbackWarning):
                note(f"warning: {message.message.text()}")
            else:
                show(message, category, *where)

        warnings.showwarning = show_as_note  # type: ignore[assignment]
        warnings.simplefilter("always", FallbackWarning)
        yield


def note(text: str, detail: bool = False) -> None:
    """Print a line on stderr, unless with ``--quiet``; a detail only with ``--verbose``."""
    if shows(detail):
        typer.echo(text, err=True)


def print_json(content: Any) -> None:
    """Print a result as JSON on stdout."""
    typer.echo(json.dumps(content, indent=2, allow_nan=False, default=str))
