"""Settings <-> command line: a flag for every field, layered loading, and where each value came from.

    default < socialx.yaml here < --config files, later over earlier < $SOCIALX_SECTION__KEY < --set a.b=c < flags

Flags are parsed as plain text and pydantic alone validates, once, after merging: a wrong value gives the same line
wherever it came from, and all wrong values are reported at once.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import tomllib
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from socialx.errors import SettingsError
from socialx.settings import OLD_KEYS, Section, Settings

PREFIX = "SOCIALX_"
HERE = Path("socialx.yaml")


@dataclass(frozen=True)
class Loaded:
    """The merged settings and, per dotted key, where its value came from (``default`` where nobody set it)."""

    settings: Settings
    origin: dict[str, str]


@dataclass(frozen=True)
class _Given:
    """One value on its way in: its dotted key, and the place that an error line names."""

    key: str
    value: Any
    place: str


def leaves() -> Iterator[tuple[str, str, FieldInfo]]:
    """Every setting as (section, name, field), in the order of the tree."""
    for section, holder in Settings.model_fields.items():
        kind = typing.cast(type[Section], holder.annotation)
        for name, field in kind.model_fields.items():
            yield section, name, field


KEYS: dict[str, FieldInfo] = {f"{section}.{name}": field for section, name, field in leaves()}
# Those that name a file or a folder.
FILES = tuple(key for key, field in KEYS.items() if Path in (field.annotation, *typing.get_args(field.annotation)))


def flag_of(key: str) -> str:
    """The flag of a setting: its own name where that is unique in the tree, else ``--section-name``."""
    extra = KEYS[key].json_schema_extra
    if isinstance(extra, dict) and "flag" in extra:
        return str(extra["flag"])
    section, name = key.split(".")
    unique = sum(other.split(".")[1] == name for other in KEYS) == 1
    return "--" + (name if unique else f"{section}-{name}").replace("_", "-")


def load(
    files: Sequence[Path] = (),
    env: Mapping[str, str] | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> Loaded:
    """Merge all layers and validate once.

    files: YAML or TOML, later over earlier.  env: the environment (os.environ if None).  sets: ``section.key=value``.
    flags: dotted key -> value, None where the flag was not given.  Raises SettingsError with one line per wrong value.
    """
    layers: list[_Given] = []
    for path in files:
        layers += _from_file(path)
    layers += _from_env(os.environ if env is None else env)
    layers += [_from_set(text) for text in sets]
    layers += [_Given(key, value, flag_of(key)) for key, value in (flags or {}).items() if value is not None]

    complaints = [f"{g.key} ({g.place}): {_unknown(g.key)}" for g in layers if g.key not in KEYS]
    if complaints:
        raise SettingsError("\n".join(complaints))
    latest = {given.key: given for given in layers}
    tree: dict[str, dict[str, Any]] = {}
    for key, given in latest.items():
        section, name = key.split(".")
        tree.setdefault(section, {})[name] = _empty_is_none(KEYS[key], given.value)
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError("\n".join(_complaint(e, latest) for e in error.errors())) from None
    origin = {key: latest[key].place if key in latest else "default" for key in KEYS}
    return Loaded(settings, origin)


def _empty_is_none(field: FieldInfo, value: Any) -> Any:
    """The empty text on a command line unsets a setting that may be unset."""
    return None if value == "" and NoneType in typing.get_args(field.annotation) else value


def _complaint(error: Any, latest: Mapping[str, _Given]) -> str:
    key = ".".join(str(part) for part in error["loc"][:2])
    return f"{key} ({latest[key].place}): {error['msg']}, got {latest[key].value!r}"


def _unknown(key: str) -> str:
    old = next((o for o in OLD_KEYS if key == o or key.startswith(o + ".")), None)
    if old is not None:
        new = OLD_KEYS[old]
        return f"an old key {new}" if new.startswith("(") else f"an old key; it is {new} now"
    section, _, name = key.partition(".")
    if key in Settings.model_fields:
        return f"is a section; its settings are {', '.join(k for k in KEYS if k.startswith(key + '.'))}"
    near = difflib.get_close_matches(key, KEYS, 1, 0.75)
    near = near or [k for k in KEYS if k.endswith(f".{name or section}")]
    near = near or difflib.get_close_matches(key, KEYS, 1, 0.5)
    return "unknown setting" + (f"; did you mean {near[0]}?" if near else ": socialx config lists all")


def _from_set(text: str) -> _Given:
    key, equals, value = text.partition("=")
    if not equals:
        raise SettingsError(f"--set {text}: expected section.key=value, for example --set trainer.max_epochs=5")
    return _Given(key.strip(), value, "--set")


def _from_env(env: Mapping[str, str]) -> list[_Given]:
    named = sorted(name for name in env if name.startswith(PREFIX))
    return [_Given(name.removeprefix(PREFIX).lower().replace("__", "."), env[name], f"${name}") for name in named]


def _from_file(path: Path) -> list[_Given]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}: name a YAML or TOML file of settings") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: is not text: name a YAML or TOML file of settings") from None
    tree = _parse_toml(path, text) if path.suffix == ".toml" else _parse_yaml(path, text)
    return list(_flatten(tree, "", str(path)))


def _flatten(tree: Any, prefix: str, place: str) -> Iterator[_Given]:
    """Nested mappings -> dotted keys; a mapping below a known key stays that key's (wrong) value."""
    if tree is None and prefix in Settings.model_fields:
        return
    if not isinstance(tree, dict) or prefix in KEYS or (not tree and prefix):
        yield _Given(prefix, tree, place)
        return
    for name, value in tree.items():
        yield from _flatten(value, f"{prefix}.{name}" if prefix else str(name), place)


def _parse_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from None


def _parse_yaml(path: Path, text: str) -> dict[str, Any]:
    import yaml  # 23 ms that --help does not need

    class Loader(yaml.SafeLoader):
        """PyYAML takes the last of two equal keys without a word; here that is an error."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            names = [self.construct_object(key, deep=True) for key, _ in node.value]
            for name in names:
                if names.count(name) > 1:
                    line = node.start_mark.line + 1
                    raise SettingsError(f"{path}: {name} stands twice in the block from line {line}: keep one")
            return super().construct_mapping(node, deep)

    try:
        tree = yaml.load(text, Loader=Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingsError(f"{path}: expected sections (data, model, trainer, ...), found {type(tree).__name__}")
    return tree


def as_tree(settings: Settings) -> dict[str, dict[str, Any]]:
    """The settings as plain nested data, as a settings file holds them."""
    return settings.model_dump(mode="json")


def to_yaml(settings: Settings) -> str:
    """All settings in the order of the tree; ``socialx train -c FILE`` reads them back.

    Without the run folder: a copy of a run is a new run, in a new place.
    """
    import yaml

    tree = as_tree(settings)
    del tree["trainer"]["run_dir"]
    return yaml.safe_dump(tree, sort_keys=False)


def of_run(loaded: Loaded, saved: Path, may_change: Collection[str]) -> Loaded:
    """The settings of a run, changed only where that is sound.

    loaded: all layers over the run's own file ``saved``.  A key of ``may_change`` is taken from any layer, a file that
    the run names from the command line alone.  Another key that was changed on the command line is refused with a
    SettingsError; the environment and the local settings do not reach it.
    """
    own = load([saved], {})
    given, kept = flat(loaded.settings), flat(own.settings)
    by_hand = {key for key, origin in loaded.origin.items() if not origin.startswith("$") and origin != str(HERE)}
    if refused := [key for key in KEYS if key in by_hand and key not in may_change and given[key] != kept[key]]:
        raise SettingsError(
            "\n".join(
                f"{key} ({loaded.origin[key]}): {saved.parent} was trained with {kept[key]}, got {given[key]}: "
                "leave it, or train another run"
                for key in refused
            )
        )
    taken = {key for key in may_change if key in by_hand or key not in FILES}
    tree = as_tree(own.settings)
    for key in taken:
        section, name = key.split(".")
        tree[section][name] = given[key]
    origin = {key: (loaded if key in taken else own).origin[key] for key in KEYS}
    return Loaded(Settings.model_validate(tree), origin)


def flat(settings: Settings) -> dict[str, Any]:
    """Dotted key -> value, as plain data."""
    tree = as_tree(settings)
    return {f"{section}.{name}": value for section, names in tree.items() for name, value in names.items()}


# --- flags ----------------------------------------------------------------------------------------------------------


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a Typer command ``--config``, ``--set`` and a flag for each of these settings or whole sections.

    The command takes ``layers``, a callable ``(*base files) -> Loaded`` beside its own parameters: a command that
    starts from a run folder passes that folder's settings file, which counts as the first --config file.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        keys = [key for key in KEYS if key in names or key.split(".")[0] in names]

        def run(**given: Any) -> None:
            config, sets = given.pop("config") or [], given.pop("set_") or []
            flags = {key: given.pop(key.replace(".", "__")) for key in keys}

            def layers(*base: Path) -> Loaded:
                here = [HERE] if HERE.is_file() else []
                return load([*here, *base, *config], None, sets, flags)

            command(layers=layers, **given)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "layers"]
        parameters = own + _general_parameters() + [_parameter(key) for key in keys]
        functools.update_wrapper(run, command)
        del run.__wrapped__  # type: ignore[attr-defined]  # Typer would read the inner signature
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _general_parameters() -> list[inspect.Parameter]:
    config = Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="YAML or TOML settings, later over earlier",
            show_default=False,
        ),
    ]
    sets = Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="any setting, for example --set trainer.max_epochs=5",
            show_default=False,
            autocompletion=lambda incomplete: [f"{key}=" for key in KEYS if key.startswith(incomplete)],
        ),
    ]
    return [_keyword("config", config), _keyword("set_", sets)]


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _parameter(key: str) -> inspect.Parameter:
    field, flag, section = KEYS[key], flag_of(key), key.split(".")[0]
    default = "" if field.default is None else f" [{_shown(field.default)}]"
    text = f"{field.description}{default}".replace("[", r"\[")
    panel = f"{section} settings"
    if field.annotation is bool:
        declaration = f"{flag}/--no-{flag.removeprefix('--')}"
        option: Any = typer.Option(declaration, help=text, show_default=False, rich_help_panel=panel)
        return _keyword(key.replace(".", "__"), Annotated[bool | None, option])
    choices = _choices(field.annotation)
    option = typer.Option(
        flag,
        help=text,
        metavar="|".join(choices) if choices else name_of_type(field.annotation),
        show_default=False,
        rich_help_panel=panel,
        autocompletion=(lambda incomplete: [c for c in choices if c.startswith(incomplete)]) if choices else None,
    )
    return _keyword(key.replace(".", "__"), Annotated[str | None, option])


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _choices(annotation: Any) -> list[str]:
    return [str(c) for c in typing.get_args(annotation)] if typing.get_origin(annotation) is Literal else []


def name_of_type(annotation: Any) -> str:
    """``int``, ``float``, ``path``, ... for a help line."""
    if typing.get_origin(annotation) is Annotated:
        return name_of_type(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is tuple:
        kind = name_of_type(typing.get_args(annotation)[0])
        return f"{kind},{kind},..."
    kinds = [a for a in typing.get_args(annotation) if a is not NoneType] or [annotation]
    if len(kinds) == 1 and kinds[0] is not annotation:
        return name_of_type(kinds[0])
    return "|".join(getattr(kind, "__name__", str(kind)).lower().replace("str", "text") for kind in kinds)
