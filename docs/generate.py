"""Writes docs/settings.md, docs/cli.md and docs/pictures/model.png from the code: what ``make docs`` runs.

python -m docs.generate [FOLDER]
"""

from __future__ import annotations

import os
import sys
import typing
from pathlib import Path

os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}  # of the help pages; read when they are printed

from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from docs.model_picture import draw
from socialx.cli.app import COMMANDS, app
from socialx.options import KEYS, PREFIX, SIZES, as_typed, flag_of, name_of_type, words_of
from socialx.settings import Settings, facts

DOCS = Path(__file__).parent
NOTE = "<!-- Written by `make docs` from the code. Change the code, not this page. -->"
LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def pages() -> dict[str, str]:
    """The text of each page that the code decides, by its name in this folder."""
    return {"settings.md": settings_page(), "cli.md": cli_page()}


def settings_page() -> str:
    """Every setting by section, and what each size sets."""
    lines = [
        "# Settings",
        "",
        NOTE,
        "",
        "A setting is written in a YAML or TOML file, in the environment, after `--set`, or as a flag. Later ones in",
        "this list win: default, `--size`, `socialx.yaml` of the current folder, files of `--config`, environment,",
        "`--set`, flags. `socialx config` prints the value of each and where it came from.",
        "",
        "```yaml",
        "trainer:",
        "  max_epochs: 5    # the same as SOCIALX_TRAINER__MAX_EPOCHS=5, --set trainer.max_epochs=5, --max-epochs 5",
        "```",
        "",
        "A flag that switches something on has a second one that switches it off, such as `--no-climatology`. An empty",
        'value unsets a setting whose default is "not set". The last column names the commands that take the flag;',
        "`socialx config` takes all. After `--set` every command with settings takes every setting.",
    ]
    for section, holder in Settings.model_fields.items():
        what = " ".join((holder.annotation.__doc__ or "").split("\n")[0].split())  # type: ignore[union-attr]
        lines += ["", f"## {section}", "", what, ""]
        lines += ["| setting | type | default | what | flag | environment variable | commands |", "|" + "---|" * 7]
        lines += [row(key, field) for key, field in KEYS.items() if key.startswith(f"{section}.")]
    lines += [
        "",
        "## Sizes",
        "",
        "`--size NAME` sets these together, and everything else that you give wins over them.",
        "",
    ]
    names = list(dict.fromkeys(key for values in SIZES.values() for key in values))
    lines += [f"| setting | default | {' | '.join(SIZES)} |", "|" + "---|" * (len(SIZES) + 2)]
    for key in names:
        values = [f"`{values[key]}`" if key in values else "" for values in SIZES.values()]
        lines.append(f"| `{key}` | {default(KEYS[key])} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def row(key: str, field: FieldInfo) -> str:
    """A setting as a line of its section's table."""
    environment = f"{PREFIX}{key.replace('.', '__').upper()}"
    commands = ", ".join(facts(field).commands)
    what = (field.description or "").replace("|", "\\|")
    cells = (f"`{key}`", kind(field), default(field), what, f"`{flag_of(key)}`", f"`{environment}`", commands)
    return f"| {' | '.join(cells)} |"


def kind(field: FieldInfo) -> str:
    """The type with its limits, or the words that may be written."""
    several = typing.get_origin(field.annotation) is tuple
    words = facts(field).choices or words_of(typing.get_args(field.annotation)[0] if several else field.annotation)
    if words:
        return f"{'several of ' if several else ''}{', '.join(f'`{word}`' for word in words)}"
    name = "on or off" if field.annotation is bool else name_of_type(field.annotation)
    limits = [
        f"{said} {getattr(limit, name)}"
        for limit in field.metadata
        for name, said in LIMITS.items()
        if getattr(limit, name, None) is not None
    ]
    return ", ".join([name, *limits])


def default(field: FieldInfo) -> str:
    """The default as it is typed."""
    if field.default is None:
        return "not set"
    return f"`{as_typed(field.default)}`" if as_typed(field.default) else "none"


def cli_page() -> str:
    """The help of every command, as it is printed in 80 columns."""
    lines = [
        "# Commands",
        "",
        NOTE,
        "",
        "These are the help pages of all commands. `--help-all` also shows the settings that a command takes and",
        "`--help` leaves out; [settings.md](settings.md) explains each. Exit codes: 0 done, 1 a file or its data, 2 a",
        "flag or setting, 3 a failed check that was asked for, 130 interrupted.",
        "",
        *block("socialx --help"),
    ]
    for command in COMMANDS:
        lines += ["", f"## {command}", "", *block(f"socialx {command} --help")]
    return "\n".join(lines) + "\n"


def block(command: str) -> list[str]:
    """A command and what it prints, as Markdown."""
    result = CliRunner().invoke(app, command.split()[1:], prog_name="socialx")
    if result.exit_code:
        sys.exit(f"{command}: {result.output}")
    return ["```console", f"$ {command}", *(line.rstrip() for line in result.stdout.rstrip().splitlines()), "```"]


def main() -> None:
    """Write all of them into this folder, or into the one that is named."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    draw(folder / "pictures/model.png")


if __name__ == "__main__":
    main()
