"""The Typer app with the table of commands, and the entry point.

A command's module is imported on call, so that ``socialx --help`` answers without loading pydantic models.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core

from socialx.core.errors import Message
from socialx.core.version import __version__

# The module of each command in this package, and the first sentence of its help.
COMMANDS = {
    "convert": ("file_commands", "Build the HDF5 file that every other command reads."),
    "append": ("file_commands", "Add the rows of new tables to a file."),
    "backfill": ("file_commands", "Complete HDF5 files: positions, times, unit, time zone."),
    "inspect": ("file_commands", "Say what a file is and what it holds."),
    "download": ("file_commands", "Fetch the published files of a data set."),
    "config": ("training_commands", "Print every setting and where its value came from."),
    "train": ("training_commands", "Train the shared social model: an xLSTM as encoder, or an MLP."),
    "profile": ("training_commands", "Say where the time of training steps goes."),
    "evaluate": ("scoring_commands", "Score runs and baselines: MAE, RMSE, MAPE and R2."),
    "explain": ("scoring_commands", "Say where a run errs and which neighbours it uses."),
    "calibrate": ("scoring_commands", "Write the prediction intervals of a run into its folder."),
    "report": ("scoring_commands", "Write one HTML page about runs."),
    "predict": ("scoring_commands", "Forecast the next horizon of every sensor."),
    "export": ("scoring_commands", "Write the model of a run as a file that works without socialx."),
    "serve": ("scoring_commands", "Answer requests for forecasts over HTTP."),
    "doctor": ("training_commands", "Check what a training needs."),
}
# In the order of --help.
HEADINGS = {
    "Data": ("convert", "append", "backfill", "inspect", "download"),
    "Models": ("train", "evaluate", "explain", "calibrate", "report"),
    "Use": ("predict", "serve", "export"),
    "Tools": ("profile", "doctor", "config"),
}


# Usage errors: Click's sentence, and the sentence of this package.
VOICE = {
    r"Got unexpected extra argument\(?s?\)? \((.*)\)\.?": r"\1: unexpected",
    r"Missing (?:argument|option|parameter) '(.*)'\.?": r"\1 is missing",
    r"Option '(.*)' requires an argument\.?": r"\1 needs a value",
    r"Option '(.*)' does not take a value\.?": r"\1 takes no value",
    r"Invalid value for '(.*?)': (.*)": r"\1: \2",
    r"No such command '(.*?)'\. Did you mean (.*)": r"no such command \1: did you mean \2",
    r"No such command '(.*)'\.?": r"no such command \1",
}
CLICK_ERROR: Any = typer.BadParameter.__mro__[2]  # ClickException, which Typer does not export


class _Commands(typer.core.TyperGroup):
    """The command group; an unknown command is refused with a suggestion."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the command names in help order."""
        return [name for names in HEADINGS.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command; an unknown name imports all commands, to suggest a near one."""
        if cmd_name not in self.commands:
            for module, _ in [COMMANDS[cmd_name]] if cmd_name in COMMANDS else COMMANDS.values():
                import_module(f"socialx.cli.{module}")
            self.commands = typer.main.get_group(app).commands  # with the commands that the modules added
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the lists of ``--help`` without importing a command."""
        for heading, names in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<9}", COMMANDS[name][1]) for name in names])

    def invoke(self, ctx: Any) -> Any:
        """Run a command, which an interrupt ends with a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command line; print usage errors like any other error."""
        try:
            sys.exit(super().main(*arguments, **{**options, "standalone_mode": False}))
        except CLICK_ERROR as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
            else:
                context, problem = getattr(error, "ctx", None), error.format_message()
                for theirs, ours in VOICE.items():
                    problem = re.sub(f"^{theirs}$", ours, problem)
                extra = re.fullmatch(r"(\S+): unexpected", problem)
                if extra and context and any("--data" in option.opts for option in context.command.params):
                    problem = f"{problem}, did you mean --data {extra[1]}?"
                words = context.command_path.split()[1:] if context else []
                print_error(Message("cli.usage", "", problem, " ".join(["socialx", *words, "--help"])))
            sys.exit(error.exit_code)


def print_error(message: Message) -> None:
    """Print an error, and the remedy below."""
    typer.echo(f"error: {message.text()}", err=True)


app = typer.Typer(
    cls=_Commands,
    help="Traffic forecasting with one shared encoder, an xLSTM or an MLP, and learned social pooling.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help and errors: no flag is cut, nothing is lost in a pipe
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
OUTPUT_FULL = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)  # of standard output; files have their own errors


def main() -> None:
    """Run the ``socialx`` entry point."""
    try:
        import_module("fcntl"), import_module("resource")
    except ImportError:  # no file could be locked
        print_error(Message("cli.system", "", "socialx runs on Linux and macOS", "use WSL2"))
        sys.exit(1)
    # OpenMP threads that spin at a barrier while another program has a core make a step many times slower; threads that
    # sleep there cost little.  It is read when torch is loaded, which is later than this.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for stream in (sys.stdout, sys.stderr):  # a file name may hold invalid bytes, shown as \\udce9
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="socialx")
    except OSError as error:
        if error.filename is not None or error.errno not in OUTPUT_FULL:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # pending output would fail again
        problem = f"standard output cannot be written ({error.strerror})"
        print_error(Message("cli.full", "", problem, "check the free space"))
        sys.exit(1)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if version:
        typer.echo(f"socialx {__version__}")
        raise typer.Exit
