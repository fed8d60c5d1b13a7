"""What all commands share: registering, user errors as one line with their exit code, notes on stderr, JSON."""

from __future__ import annotations

import functools
import inspect
import json
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, get_origin

import typer
import typer.core

from socialx.cli.app import app
from socialx.cli.error_flags import with_own_model, write
from socialx.cli.flags import layers_of, own_parameter, settings_parameters, task_parameters
from socialx.cli.synonyms import SYNONYMS
from socialx.core.errors import Argument, FallbackWarning, Message, SocialxError, in_short
from socialx.settings.schema import KEYS, flag_keys, flag_name

Devices = Annotated[
    int,
    typer.Option(
        "--devices",
        metavar="N",
        min=1,
        show_default=False,
        help="processes on this machine, each with a CUDA device of its own (default: 1)",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON and nothing else")]


class _Command(typer.core.TyperCommand):
    """A command; an unknown flag is refused with the one that is meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As in Typer."""
        try:
            return super().parse_args(ctx, args)
        except typer.Exit:
            raise
        except Exception as error:
            flag = getattr(error, "option_name", None)
            meant = SYNONYMS.get(str(flag).lstrip("-").replace("_", "-"))
            if (name := next((key for key in KEYS if flag_name(key) == flag), None)) and flag_keys(str(ctx.info_name)):
                meant = f"--set {name}=VALUE"
            if flag is not None and meant and meant.startswith("-"):
                ctx.fail(f"no such option {flag}: did you mean {meant}?")
            raise


def command(name: str, **after: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the command of a task; its user errors become one ``error:`` line each and the exit code of their kind.

    The function gets what was typed, and nothing else: the parameters of the task, ``layers`` of settings if it takes
    them, and options of its own, which have a help or an annotation of Typer.  after: for an option of its own the
    parameter that it follows in the help; by default it is the last one before the settings.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True).parameters
        parameters = task_parameters(name)
        for each in own.values():
            if get_origin(each.annotation) is Annotated:
                before = [parameter.name for parameter in parameters]
                place = before.index(after[each.name]) + 1 if each.name in after else len(before)
                parameters.insert(place, own_parameter(name, each))
        parameters += settings_parameters(name) if "layers" in own else []

        def call(typed: dict[str, Any]) -> None:
            layers = {"layers": layers_of(name, typed)} if "layers" in own else {}
            function(**layers, **{key: value for key, value in typed.items() if value is not None})

        def run(**typed: Any) -> None:
            with with_own_model(typed):
                _run(name, functools.partial(call, typed))

        functools.update_wrapper(run, function)
        del run.__wrapped__  # type: ignore[attr-defined]  # Typer would read the inner signature
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        parts = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        run.__doc__ = "\n\n".join(f"\b\n{part}" if "\n  " in part else part for part in parts)  # keeps indented lines
        return app.command(name, cls=_Command)(run)

    return decorate


def _run(name: str, function: Callable[[], None]) -> None:
    """Run a command; its user errors become lines and exit codes."""
    try:
        with _fallbacks_as_notes(name):
            function()
    except (SocialxError, RuntimeError, MemoryError) as error:
        told = error if isinstance(error, SocialxError) else _as_error_of_user(error)
        if told is None:
            raise
        for line in told.lines(functools.partial(write, name)):
            typer.echo(f"error: {line}", err=True)
        raise typer.Exit(told.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except (BrokenPipeError, SystemExit) as error:
        left = [stream for stream in (1, 2) if _reader_has_left(stream)]
        if not left and not isinstance(error.__context__, BrokenPipeError):  # which rich makes an exit 1
            raise
        for stream in left:  # what is still to be written would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        raise typer.Exit(128 + signal.SIGPIPE) from None


def _as_error_of_user(error: RuntimeError | MemoryError) -> SocialxError | None:
    """What a user can mend of an error that other code raised; None: nothing."""
    if isinstance(error, MemoryError):
        found = f"out of memory ({error})" if str(error) else "out of memory"
        return SocialxError("", found, f"a shorter file, or fewer {Argument('data.days')} of it")
    if "DataLoader worker" in str(error):  # torch raises it wherever this process is when a worker dies
        remedy = f"fewer {Argument('loader.num_workers')}, or {Argument('loader.mode', 'sharded')}"
        return SocialxError("loader", in_short(error), remedy)
    if "torch" not in sys.modules:  # whoever ran out of its memory has imported it
        return None
    from socialx.core.precision import is_out_of_memory

    remedy = f"a smaller {Argument('loader.batch_size')}, or a smaller {Argument('model.width')}"
    found = f"out of memory ({in_short(error, 120)})"
    return SocialxError("", found, remedy) if is_out_of_memory(error) else None


def _reader_has_left(stream: int) -> bool:
    """Whether a stream is a pipe that nobody reads any more, as ``| head`` leaves it."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


@contextmanager
def _fallbacks_as_notes(name: str) -> Iterator[None]:
    """What could not be done as asked is said in one line, every time."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_as_note(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if isinstance(message, FallbackWarning):
                note(message.message, name)
            else:
                show(message, category, *where)

        warnings.showwarning = show_as_note  # type: ignore[assignment]
        warnings.simplefilter("always", FallbackWarning)
        yield


def note(message: Message | str, command: str = "") -> None:
    """A line of progress, on stderr."""
    text = message if isinstance(message, str) else message.line(functools.partial(write, command))
    typer.echo(text, err=True)


def print_json(content: Any) -> None:
    """The result as JSON, on stdout."""
    typer.echo(json.dumps(content, indent=2, allow_nan=False, default=str))
