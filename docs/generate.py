"""Writes settings.md, cli.md, pictures/model.png and the formats in data.md from the code: what ``make docs`` runs.

python -m docs.generate [FOLDER]
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
import typing
from pathlib import Path

os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}  # of the help pages; read when they are printed

from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from docs.model_picture import draw
from socialx.cli.app import COMMANDS, app
from socialx.cli.flags import name_of_type, words_of
from socialx.files.recognition import FORMATS
from socialx.settings import KEYS, Settings, facts, flag_of
from socialx.settings_layers import SIZES, as_typed

DOCS = Path(__file__).parent
NOTE = "<!-- Written by `make docs` from the code. Change the code, not this page. -->"
LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def pages() -> dict[str, str]:
    """The text of each page that the code decides, by its name in this folder."""
    return {"settings.md": settings_page(), "cli.md": cli_page(), "data.md": data_page()}


def data_page() -> str:
    """The page of data files with a line for each format."""
    before, mark, rest = (DOCS / "data.md").read_text().partition("<!-- Written by `make docs`: formats -->\n")
    after = "<!-- end of formats -->" + rest.partition("<!-- end of formats -->")[2]
    rows = ["| format | files | clock |", "|---|---|---|"]
    for format in FORMATS.values():
        needs_start = "`--start --freq`" if not format.has_clock else "time of day; `--start`"
        clock = needs_start if "start" in format.takes else "in the file"
        rows.append(f"| `{format.name}` | {format.title} | {clock} |")
    return before + mark + "\n".join(["", *rows, "", after])


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
        "In parentheses stand what may be written, the default, and the flag where it is not the name of the setting",
        "with `-` for `_`. A flag that switches something on has a second one that switches it off, such as",
        "`--no-climatology`. An empty value unsets a setting whose default is `not set`. `train`, `profile` and",
        "`config` take almost all flags: `--help-all` lists those of each command. After `--set` every command with",
        "settings takes every setting.",
    ]
    for section, holder in Settings.model_fields.items():
        what = " ".join((holder.annotation.__doc__ or "").split("\n")[0].split())  # type: ignore[union-attr]
        lines += ["", f"## {section}", "", what, ""]
        lines += [row(key, field) for key, field in KEYS.items() if key.startswith(f"{section}.")]
    lines += [
        "",
        "## Sizes",
        "",
        "`--size NAME` sets these together, and everything else that you give wins over them. The defaults are",
        "`medium`.",
        "",
        "| setting | default | small | large |",
        "|---|---|---|---|",
    ]
    for key, field in KEYS.items():
        values = [SIZES[name].get(key, field.default) for name in ("small", "large")]
        if any(as_typed(value) != as_typed(field.default) for value in values):
            cells = [default(field), *(f"`{as_typed(value)}`" for value in values)]
            lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def row(key: str, field: FieldInfo) -> str:
    """A setting as a line of its section's list."""
    flag = flag_of(key)
    named = "" if flag == f"--{key.split('.')[1].replace('_', '-')}" else f"`{flag}`"
    inside = "; ".join(part for part in (kind(field), default(field), named) if part)
    return f"- **`{key}`** ({inside}): {field.description}"


def kind(field: FieldInfo) -> str:
    """The type with its limits, or the words that may be written; nothing where description and default say it."""
    several = typing.get_origin(field.annotation) is tuple
    words = facts(field).choices or words_of(typing.get_args(field.annotation)[0] if several else field.annotation)
    if words and all(f"{word}:" in (field.description or "") for word in words):
        return ""
    if words:
        return f"{'several of ' if several else ''}{', '.join(f'`{word}`' for word in words)}"
    if field.annotation is bool:
        return ""
    name = name_of_type(field.annotation)
    limits = {
        limit: getattr(part, limit)
        for part in field.metadata
        for limit in LIMITS
        if getattr(part, limit, None) is not None
    }
    if {"ge", "le"} <= set(limits):
        return f"{name}, {limits['ge']} to {limits['le']}"
    return ", ".join([name, *(f"{LIMITS[limit]} {value}" for limit, value in limits.items())])


def default(field: FieldInfo) -> str:
    """The default as it is typed."""
    if field.default is None:
        return "not set"
    return f"`{as_typed(field.default)}`" if as_typed(field.default) else "none"


def cli_page() -> str:
    """The help of every command, as it is printed in 80 columns."""
    told: set[str] = set()
    lines = [
        "# Commands",
        "",
        NOTE,
        "",
        "These are the help pages of all commands. Options that stand here by name alone are those of a command",
        "above, or settings: [settings.md](settings.md) has what they do, and `--help-all` all that a command takes.",
        "Exit codes: 0 done, 1 a file or its data, 2 a flag or setting, 3 a failed check that was asked for, 130",
        "interrupted, 141 nobody reads the pipe any more.",
        "",
        *block("socialx --help", told),
    ]
    for command in COMMANDS:
        lines += ["", f"## {command}", "", *block(f"socialx {command} --help", told)]
    return "\n".join(lines) + "\n"


def block(command: str, told: set[str]) -> list[str]:
    """A command and what it prints, as Markdown; by name alone, what the page told before, and settings.

    told: the options that stand on the page already, which this adds to.
    """
    result = CliRunner().invoke(app, command.split()[1:], prog_name="socialx")
    if result.exit_code:
        sys.exit(f"{command}: {result.output}")
    text, settings = re.sub(r"^  -h, --help.*\n", "", result.stdout, flags=re.M), ""
    if "\n  -c, --config FILE" in text:
        text, settings = text.split("  -c, --config FILE")
    options = re.findall(r"^  -.*\n(?: {10}.*\n)*", text, re.M)
    known = [option for option in options if " ".join(option.split()) in told]
    for option in known:
        text = text.replace(option, "")
    told |= {" ".join(option.split()) for option in options}
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", "".join([*known, "  --config\n" * bool(settings), settings]), re.M)
    names = textwrap.fill(" ".join(listed), 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return ["```text", *(line.rstrip() for line in text.rstrip().splitlines()), *names.splitlines(), "```"]


def main() -> None:
    """Write all of them into this folder, or into the one that is named."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    draw(folder / "pictures/model.png")


if __name__ == "__main__":
    main()
