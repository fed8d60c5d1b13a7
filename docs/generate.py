"""Write what the code decides of the pages: commands, Python, settings, formats, the tree and a picture: ``make docs``.

python -m docs.generate [FOLDER]
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
import types
import typing
from pathlib import Path
from typing import Any

os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}  # of the help pages; read when they are printed

from pydantic.fields import FieldInfo
from typer.testing import CliRunner

import socialx
from benchmarks.walk import order
from docs.model_picture import draw
from socialx.cli.app import COMMANDS, app
from socialx.cli.flags import metavar, setting_choices
from socialx.files.sources.recognition import FORMATS
from socialx.settings.layers import PRESETS, command_text
from socialx.settings.schema import BY_NAME, KEYS, Settings, flag_name

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "socialx"
NOTE = "<!-- Written by `make docs`. -->"
LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def pages() -> dict[str, str]:
    """Return the text of each generated file, by its path in the repository."""
    return {
        "docs/settings.md": settings_page(),
        "docs/cli.md": cli_page(),
        "docs/api.md": api_page(),
        "docs/data.md": data_page(),
        "CONTRIBUTING.md": contributors_page(),
        "socialx/settings/arguments.py": arguments_module(),
    }


def arguments_module() -> str:
    """Return the module that types the settings of a Python call, for editors and type checkers."""
    names = {
        **{key.split(".")[1]: type_text(key) for key in BY_NAME.values()},
        **dict.fromkeys(Settings.model_fields, SECTION),
        "model": "Any",  # also a kind, or a torch module
    }
    names.pop("data")  # every function has a parameter of this name
    return "\n".join(
        [
            '"""Settings as keyword arguments of Python functions; written by `make docs` from the settings tree."""',
            "",
            "from collections.abc import Mapping, Sequence",
            "from pathlib import Path",
            "from typing import Any, Literal, TypedDict",
            "",
            "",
            "class SettingsArguments(TypedDict, total=False):",
            '    """Settings by their own names, and sections as mappings: ``width=64`` or ``model={"width": 64}``."""',
            "",
            *(f"    {name}: {text}" for name, text in names.items()),
            "",
        ]
    )


SECTION = "Mapping[str, Any]"


def type_text(key: str) -> str:
    """Return the type of a setting as a caller writes it; a path may be a text, and a tuple any sequence."""
    if key in ("trainer.init_from", "trainer.teacher"):  # runs, as folders, names or values of Run
        return "Any"
    hint = KEYS[key].annotation
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return " | ".join(map(type_of, typing.get_args(hint) if union else [hint]))


def type_of(kind: Any) -> str:
    """Return one type as text, without what validates a value."""
    if typing.get_origin(kind) is typing.Annotated:
        return type_of(typing.get_args(kind)[0])
    if typing.get_origin(kind) is tuple:
        item = type_of(typing.get_args(kind)[0])
        return f"{item} | Sequence[{item}]"
    if typing.get_origin(kind) is typing.Literal:
        return f"Literal[{', '.join(json.dumps(value) for value in typing.get_args(kind))}]"
    return {Path: "str | Path", types.NoneType: "None"}.get(kind, kind.__name__)


def table(heads: tuple[str, ...], rows: typing.Iterable[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table with these heads and cells."""
    head, *lines = ["| ".join(cell.replace("|", "\\|") for cell in line).rstrip() for line in [heads, *rows]]
    return [head, "|".join(["---"] * len(heads)), *lines]


def filled(page: Path, part: str, lines: list[str]) -> str:
    """Return a page with these lines as its generated part."""
    begin, end = f"<!-- Written by `make docs`: {part} -->\n", f"<!-- end of {part} -->"
    before, _, rest = page.read_text().partition(begin)
    return before + begin + "\n".join(["", *lines, "", end]) + rest.partition(end)[2]


def contributors_page() -> str:
    """Return the page for contributors with the first sentence of each module, rooms in the order of imports."""
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
    """Return the first sentence of a module's docstring."""
    line = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]
    return line.partition(".  ")[0].rstrip(".")


def data_page() -> str:
    """Return the page of data files with a row for each format, and the options that files without dates need."""
    rows = []
    for format in FORMATS.values():
        needed = "`--first-time`" if format.has_clock else "`--first-time --freq`"
        rows.append((f"`{format.name}`", format.title, needed if "first_time" in format.takes else ""))
    return filled(DOCS / "data.md", "formats", table(("format", "files", "without dates"), rows))


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
        "`climatology` off, and an empty value unsets a setting whose default is empty.",
    ]
    for section, holder in Settings.model_fields.items():
        what = " ".join((holder.annotation.__doc__ or "").split("\n")[0].split())  # type: ignore[union-attr]
        rows = [row(key, field) for key, field in KEYS.items() if key.startswith(f"{section}.")]
        lines += ["", f"## {section}", "", what, "", *table(("setting", "values", "default", "effect"), rows)]
    lines += [
        "",
        "## Presets",
        "",
        "`--preset NAME` sets these together; explicit settings win.",
        "",
    ]
    rows = []
    for key, field in KEYS.items():
        values = [PRESETS[name].get(key, field.default) for name in ("mlp-small", "xlstm-large")]
        if any(command_text(value) != command_text(field.default) for value in values):
            rows.append((f"`{key}`", default(field), *(f"`{command_text(value)}`" for value in values)))
    return "\n".join([*lines, *table(("setting", "xlstm-small (default)", "mlp-small", "xlstm-large"), rows)]) + "\n"


def row(key: str, field: FieldInfo) -> tuple[str, ...]:
    """Return a setting as the cells of a row: its name with a flag of another name, values, default and effect."""
    flag = flag_name(key)
    named = "" if flag == f"--{key.split('.')[1].replace('_', '-')}" else f" `{flag}`"
    return f"`{key}`{named}", kind(key, field), default(field), field.description or ""


def kind(key: str, field: FieldInfo) -> str:
    """Return the type with its limits, or the words that may be written; an empty text where the effect names them."""
    several = typing.get_origin(field.annotation) is tuple
    item = typing.get_args(field.annotation)[0] if several else None
    words = setting_choices(key) or [
        f"{word}" for word in typing.get_args(item) if typing.get_origin(item) is typing.Literal
    ]
    if words and all(f"{word}:" in (field.description or "") for word in words):
        return ""
    if words:
        return f"{'one or more of ' if several else ''}`{'|'.join(words)}`"
    if field.annotation is bool:
        return ""
    name = metavar(key)
    limits = {
        limit: getattr(part, limit)
        for part in field.metadata
        for limit in LIMITS
        if getattr(part, limit, None) is not None
    }
    bounds = [f"{LIMITS[limit]}{value}" for limit, value in limits.items()]
    if {"ge", "le"} <= set(limits):
        bounds = [f"{limits['ge']}..{limits['le']}"]
    named = field.default is None or not bounds  # else the default shows the type
    return " ".join([name] * named + bounds)


def default(field: FieldInfo) -> str:
    """Return the default as users type it; an empty text where the setting is not set."""
    return "" if field.default in (None, ()) else f"`{command_text(field.default)}`"


def cli_page() -> str:
    """Return the page of the commands: the summary of each, and its options as its help says them."""
    told: set[str] = set()
    lines = [
        "# Commands",
        "",
        NOTE,
        "",
        "Each option stands with the first command that takes the option, or in [Settings](settings.md). `predict`",
        "takes `--meta-csv --units --timezone --missing --resample` too. `--help-all` prints every flag. Exit codes: 0",
        "done, 1 a file or its data, 2 a flag or setting, 3 a check failed, 130 interrupted, 141 closed pipe.",
    ]
    for command in COMMANDS:
        usage, summary, options = told_by_help(command)
        new = [(f"`{flag}`", effect) for flag, effect in options if f"{flag} {effect}" not in told]
        told |= {f"{flag} {effect}" for flag, effect in options}
        lines += ["", f"## {command}", "", *table((f"`{usage}`", summary), new)]
    return "\n".join(lines) + "\n"


def told_by_help(command: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the usage, the summary and the options of a command, each option as its flags and its effect."""
    result = CliRunner().invoke(app, [command, "--help"], prog_name="socialx")
    if result.exit_code:
        sys.exit(f"{command}: {result.output}")
    usage, summary, *_ = result.stdout.split("\n\n")
    shared = "-c, --config|--set KEY|-v, --verbose|-q, --quiet|--help-all|-h, --help"
    text = re.sub(rf"^  (?:{shared}).*\n(?: {{10}}.*\n)*", "", result.stdout, flags=re.MULTILINE)
    _, *sections = re.split(r"^[A-Z][A-Za-z ]*:$", text, flags=re.MULTILINE)  # the first part is prose
    parts = re.findall(r"^  -.*\n(?: {10}.*\n)*", "".join(sections), re.MULTILINE)
    options = [re.split(r"\s{2,}", part.strip()) for part in parts]
    shown = [(flag, re.sub(r" \[x>=\d\]$", "", " ".join(effect))) for flag, *effect in options]
    return (
        " ".join(usage.removeprefix("Usage: socialx ").replace("[OPTIONS] ", "").replace("...]...", "...]").split()),
        " ".join(summary.split()),
        [option for option in shown if "of a table:" not in option[1]],
    )


def api_page() -> str:
    """Return the page of the public Python names: their arguments or attributes, first paragraphs and results."""
    public = [(name, getattr(socialx, name)) for name in socialx.__all__ if name in socialx.MODULES]
    tasks = [(name, item) for name, item in public if inspect.isfunction(item)]
    errors = [(name, item) for name, item in public if isinstance(item, type) and issubclass(item, Exception)]
    classes = [pair for pair in public if pair not in tasks and pair not in errors]
    lines = [
        "# Python",
        "",
        NOTE,
        "",
        "`...` stands for keywords: most flags of the linked command with `_` for `-`, [settings](settings.md) as",
        '`max_epochs=1` or `trainer={"max_epochs": 1}`, `settings` from `load_settings`, and `progress`, a callback',
        "for events. `to_markdown()` and `to_latex()` give a result's table, `run.plot()` learning curves.",
        "",
        "## Functions",
        "",
        *table(("call", "effect", "result"), [(call(name, item), summary(item), result(item)) for name, item in tasks]),
        "",
        "## Classes",
        "",
        *table(("class", "content", "members"), [(f"`{n}`", summary(c), members(c)) for n, c in classes]),
        "",
        "## Errors",
        "",
        *table(("class", "cause"), [(f"`{name}`", summary(error)) for name, error in errors]),
    ]
    return "\n".join(lines) + "\n"


def call(name: str, function: typing.Any) -> str:
    """Return a function as its caller types it, linked to its command; dots stand for what may be left to keywords."""
    parameters = inspect.signature(function).parameters.values()
    shown = [
        part.replace(annotation=part.empty, kind=max(part.kind, part.POSITIONAL_OR_KEYWORD))
        for part in parameters
        if part.kind is not part.VAR_KEYWORD and (part.kind is not part.KEYWORD_ONLY or part.default is part.empty)
    ]
    dots = ", ..." if len(shown) < len(parameters) else ""
    typed = f"`{name}{f'{inspect.Signature(shown)}'[:-1]}{dots})`"
    return f"[{typed}](cli.md#{name})" if name in COMMANDS else typed


def result(function: typing.Any) -> str:
    """Return the type of a function's result, without the module that defines the type."""
    text = inspect.signature(function).return_annotation
    return f"`{re.sub(r'[a-z_]+[.]', '', text if isinstance(text, str) else text.__name__).removesuffix(' | Any')}`"


def summary(item: typing.Any) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(item) or "").partition("\n\n")[0].split()).replace("``", "`")


def members(item: type) -> str:
    """Return the public attributes and methods of a class, fields first, in the order of the class."""
    names = [*getattr(item, "model_fields", getattr(item, "__dataclass_fields__", ())), *vars(item)]
    public = dict.fromkeys(name for name in names if not name.startswith("_") and not name.startswith("model_"))
    return " ".join(f"`{name}()`" if inspect.isfunction(vars(item).get(name)) else f"`{name}`" for name in public)


def main() -> None:
    """Write all of them into the repository, or into the folder that is named, at the same places."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS.parent
    (folder / "docs/pictures").mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text:
            (folder / name).write_text(text, encoding="utf-8")
    draw(folder / "docs/pictures/model.png")


if __name__ == "__main__":
    main()
