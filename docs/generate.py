"""Writes what the code decides of the pages: settings, commands, formats, the tree and a picture: ``make docs``.

python -m docs.generate [FOLDER]
"""

from __future__ import annotations

import ast
import os
import re
import sys
import typing
from pathlib import Path

os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}  # of the help pages; read when they are printed

from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from benchmarks.walk import order
from docs.model_picture import draw
from socialx.cli.app import COMMANDS, app
from socialx.cli.flags import name_of_type, words_of
from socialx.files.sources.recognition import FORMATS
from socialx.settings.layers import PRESETS, command_text
from socialx.settings.schema import KEYS, Settings, flag_name

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "socialx"
NOTE = "<!-- Written by `make docs` from the code. Change the code, not this page. -->"
LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def pages() -> dict[str, str]:
    """The text of each page that the code decides, by its name in this folder."""
    return {
        "docs/settings.md": settings_page(),
        "docs/cli.md": cli_page(),
        "docs/data.md": data_page(),
        "CONTRIBUTING.md": contributors_page(),
    }


def filled(page: Path, part: str, lines: list[str]) -> str:
    """A page with these lines as the part that the code decides."""
    begin, end = f"<!-- Written by `make docs`: {part} -->\n", f"<!-- end of {part} -->"
    before, _, rest = page.read_text().partition(begin)
    return before + begin + "\n".join(["", *lines, "", end]) + rest.partition(end)[2]


def contributors_page() -> str:
    """The page for contributors with the first sentence of each module, the rooms in the order of a command."""
    lines = ["```text", f"socialx/  {said(PACKAGE / '__init__.py')}"]
    rooms = [*(name for floor in reversed(order()) for name in sorted(floor))]
    for room in rooms:
        folder = PACKAGE / room.replace(".", "/")
        if not folder.is_dir():
            lines.append(f"{room + '.py':<29}{said(folder.with_suffix('.py'))}")
            continue
        lines.append(f"{room.replace('.', '/') + '/':<29}{said(folder / '__init__.py')}")
        for path in sorted(folder.rglob("*.py"), key=lambda path: (path.parent != folder, path)):
            name = path.relative_to(folder)
            if path.parent != folder and path.name == "__init__.py":
                lines.append(f"    {str(name.parent) + '/':<25}{said(path)}")
            elif path.name != "__init__.py":
                indent = "  " * (1 + len(name.parts))
                lines.append(f"{indent + path.name:<29}{said(path)}")
    return filled(DOCS.parent / "CONTRIBUTING.md", "modules", [*lines, "```"])


def said(path: Path) -> str:
    """The first sentence of a module's docstring."""
    line = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]
    return line.partition(".  ")[0].rstrip(".")


def data_page() -> str:
    """The page of data files with a line for each format."""
    rows = ["format | files | clock", "---|---|---"]
    for format in FORMATS.values():
        needs_start = "`--start --freq`" if not format.has_clock else "time of day; `--start`"
        clock = needs_start if "first_time" in format.takes else "in the file"
        rows.append(f"`{format.name}` | {format.title} | {clock}")
    return filled(DOCS / "data.md", "formats", rows)


def settings_page() -> str:
    """Every setting by section, and what each size sets."""
    lines = [
        "# Settings",
        "",
        NOTE,
        "",
        "Later sources win: default, `--preset`, `socialx.yaml` in the current folder, files of `--config`,",
        "environment, `--set`, flags. `socialx config` prints every value with its source.",
        "",
        "```yaml",
        "trainer:",
        "  max_epochs: 5    # SOCIALX_TRAINER__MAX_EPOCHS=5, --set trainer.max_epochs=5, --max-epochs 5",
        "```",
        "",
        "The flag is the name with `-` for `_`, unless the table gives another flag; `--no-climatology` switches",
        "`climatology` off, and an empty value unsets a setting whose default is `not set`.",
    ]
    for section, holder in Settings.model_fields.items():
        what = " ".join((holder.annotation.__doc__ or "").split("\n")[0].split())  # type: ignore[union-attr]
        lines += ["", f"## {section}", "", what, "", "setting | effect (values; default; flag)", "---|---"]
        lines += [row(key, field) for key, field in KEYS.items() if key.startswith(f"{section}.")]
    lines += [
        "",
        "## Sizes",
        "",
        "`--preset NAME` sets these together; explicit settings win. The default is `xlstm-small`.",
        "",
        "setting | default | mlp-small | xlstm-large",
        "---|---|---|---",
    ]
    for key, field in KEYS.items():
        values = [PRESETS[name].get(key, field.default) for name in ("mlp-small", "xlstm-large")]
        if any(command_text(value) != command_text(field.default) for value in values):
            cells = [default(field), *(f"`{command_text(value)}`" for value in values)]
            lines.append(f"`{key}` | {' | '.join(cells)}")
    return "\n".join(lines) + "\n"


def row(key: str, field: FieldInfo) -> str:
    """Return a setting as a row of the table of its section."""
    flag = flag_name(key)
    named = "" if flag == f"--{key.split('.')[1].replace('_', '-')}" else f"`{flag}`"
    value = "" if field.default is None and "not set:" in (field.description or "").lower() else default(field)
    inside = "; ".join(part for part in (kind(key, field), value, named) if part)
    return f"`{key}` | {field.description} ({inside})"


def kind(key: str, field: FieldInfo) -> str:
    """The type with its limits, or the words that may be written; nothing where description and default say it."""
    several = typing.get_origin(field.annotation) is tuple
    item = typing.get_args(field.annotation)[0] if several else None
    words = words_of(key) or [f"{word}" for word in typing.get_args(item) if typing.get_origin(item) is typing.Literal]
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
        return f"{name} {limits['ge']}..{limits['le']}"
    return " ".join([name, *(f"{LIMITS[limit]}{value}" for limit, value in limits.items())])


def default(field: FieldInfo) -> str:
    """The default as it is typed."""
    if field.default is None:
        return "not set"
    return f"`{command_text(field.default)}`" if command_text(field.default) else "none"


def cli_page() -> str:
    """The help of every command, as it is printed in 80 columns."""
    told: set[str] = set()
    lines = [
        "# Commands",
        "",
        NOTE,
        "",
        "Each option is printed once, with the first command that takes the option; [settings.md](settings.md) has",
        "the settings. `predict` takes the table options of `convert` too. `--help` adds examples, `--help-all` every",
        "flag. Exit codes: 0 done,",
        "1 a file or its data, 2 a flag or setting, 3 a requested check failed, 130 interrupted, 141 closed pipe.",
    ]
    for command in COMMANDS:
        lines += ["", f"## {command}", "", *block(f"socialx {command} --help", told)]
    return "\n".join(lines) + "\n"


def block(command: str, told: set[str]) -> list[str]:
    """Return the usage, the summary and the new options of a command as a Markdown block.

    told: the options that the page already has, which this adds to.
    """
    result = CliRunner().invoke(app, command.split()[1:], prog_name="socialx")
    if result.exit_code:
        sys.exit(f"{command}: {result.output}")
    text = re.sub(r"^  -h, --help.*\n", "", result.stdout, flags=re.M).split("\n  -c, --config FILE")[0]
    options = re.findall(r"^  -.*\n(?: {10}.*\n)*", text + "\n", re.M)
    for option in options:
        if " ".join(option.split()) in told or "of a table:" in option:
            text = text.replace(option.rstrip("\n"), "")
    told |= {" ".join(option.split()) for option in options}
    usage, summary, *_ = text.split("\n\n")
    listed = text.partition("\nOptions:\n")[2]
    lines = [usage, *(line.rstrip() for line in f"{summary}\n{listed}".splitlines() if line.strip())]
    return ["```text", *lines, "```"]


def main() -> None:
    """Write all of them into the repository, or into the folder that is named, at the same places."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS.parent
    (folder / "docs/pictures").mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    draw(folder / "docs/pictures/model.png")


if __name__ == "__main__":
    main()
