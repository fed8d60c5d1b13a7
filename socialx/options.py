"""Settings <-> command line: a flag for every field, layered loading, and where each value came from.

    default < --size < socialx.yaml here < --config files, later over earlier < $SOCIALX_SECTION__KEY < --set < flags

A value is validated once, by pydantic, after all layers are merged: a wrong value gives the same line wherever it came
from, and all wrong values are reported at once.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import textwrap
import tomllib
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from socialx.disk import read_text
from socialx.errors import ITEM, Argument, Message, SettingsError, shortened
from socialx.kinds import MODELS, OWN
from socialx.progress import note
from socialx.settings import SCORING, Section, Settings, facts

PREFIX = "SOCIALX_"
BEARER = "SOCIALX_TOKEN"  # no setting: serve reads it
FILE_BYTES = 1 << 20  # no file of settings is longer
HERE = Path("socialx.yaml")
ARGUMENT = "argument"  # the origin of a value that was passed to a Python function
DEFAULT = "default"
LIST = "socialx config lists all"
SIZED = ("train", "profile", "doctor", "config")  # commands that take a size
SMALL = {
    "model.width": 64,
    "model.blocks": 2,
    "model.slstm_at": "1",
    "model.dropout": 0.0,
    "pooling.neighbours": 64,
    "pooling.pair_rank": 10,
    "loader.batch_size": 32,
    "trainer.max_epochs": 5,
}
# Sets of settings by name; docs/accuracy.md has the scores of each on METR-LA.
SIZES: dict[str, dict[str, Any]] = {
    "small": {"model.encoder": "mlp", **SMALL},
    "medium": SMALL,
    "large": {
        "pooling.neighbours": 64,
        "pooling.pair_rank": 10,
        "trainer.max_epochs": 40,
        "trainer.learning_rate": 1e-3,
    },
}
# What a run was trained with that does not name these settings: it is older than they are.
BEFORE: dict[str, Any] = {"model.climatology": False}


def leaves() -> Iterator[tuple[str, str, FieldInfo]]:
    """Every setting as (section, name, field), in the order of the tree."""
    for section, holder in Settings.model_fields.items():
        kind = typing.cast(type[Section], holder.annotation)
        for name, field_ in kind.model_fields.items():
            yield section, name, field_


KEYS: dict[str, FieldInfo] = {f"{section}.{name}": field_ for section, name, field_ in leaves()}
# Those that name a file or a folder.
FILES = tuple(key for key, field_ in KEYS.items() if Path in (field_.annotation, *typing.get_args(field_.annotation)))


def keys_where(test: Callable[[Any], bool]) -> tuple[str, ...]:
    """The settings whose facts pass a test, in the order of the tree."""
    return tuple(key for key, field_ in KEYS.items() if test(facts(field_)))


def may_change(purpose: str) -> tuple[str, ...]:
    """The settings that may differ from a run's own when it is resumed or scored."""
    return keys_where(lambda f: purpose in f.may_change)


def flag_of(key: str) -> str:
    """The flag of a setting: its own name where that is unique in the tree, else ``--section-name``."""
    if flag := facts(KEYS[key]).flag:
        return f"--{flag}"
    section, name = key.split(".")
    unique = sum(other.split(".")[1] == name for other in KEYS) == 1
    return "--" + (name if unique else f"{section}-{name}").replace("_", "-")


@dataclass(frozen=True)
class Loaded:
    """The merged settings and, per dotted key, where its value came from (``default`` where it was not set)."""

    settings: Settings
    origin: dict[str, str]

    def in_full_precision(self, own: Path | None = None) -> Settings:
        """Settings for scores and forecasts: float32, unless this call or the environment set another precision.

        own: the run's file of settings, whose precision is that of its training.
        """
        unset = (DEFAULT, str(own) if own else "")
        full = {"precision": "32-true", "float32_matmul_precision": "highest"}
        update = {name: value for name, value in full.items() if self.origin[f"trainer.{name}"] in unset}
        return self.settings.model_copy(update={"trainer": self.settings.trainer.model_copy(update=update)})

    def refuse_unnamed_model(self) -> None:
        """Raise SettingsError for a model of the user's own that this call does not name: a file must not run code."""
        kind, place = self.settings.model.kind, self.origin["model.kind"]
        if kind not in MODELS and place not in (flag_of("model.kind"), "--set", ARGUMENT):
            helps = ("name it again to run it: ", Argument("model.kind", kind))
            raise SettingsError(f"model.kind ({place})", f"{kind} is code that is not of socialx", helps)

    def note_size(self, name: str | None) -> None:
        """Tell what a size has set, without the settings that something else decided."""
        if name is not None:
            place, values = f"size {name}", flat(self.settings)
            keys = [key for key in SIZES[name] if self.origin[key] == place]
            texts = {key: as_typed(tuple(v)) if isinstance(v := values[key], list) else v for key in keys}
            said = tuple(part for key in keys for part in (" ", Argument(key, texts[key])))
            note(Message("", place, said[1:]))

    def note_unread(self) -> None:
        """Tell which flags or arguments have no effect on the chosen model."""
        if idle := [key for key in KEYS if key in self.settings.unread() and self.given(key)]:
            listed = tuple(part for key in idle for part in (", ", Argument(key)))[1:]
            note(Message("", "these settings have no effect on this model", listed))

    def given(self, key: str) -> bool:
        """Whether a flag of this command line, or an argument of this call, set the value."""
        return self.origin[key] in (flag_of(key), ARGUMENT)


@dataclass(frozen=True)
class Layers:
    """What was said about settings, each layer over the one before, not merged yet.

    local: the settings file of the current folder.  files: YAML or TOML, later over earlier.  env: the environment.
    sets: ``section.key=value``.  given: dotted key -> value, of flags (typed) or of arguments of a Python call, and
    places: where those came from that are neither.  size: a name of ``SIZES``, below all others.
    """

    local: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    sets: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    typed: bool = False
    places: Mapping[str, str] = field(default_factory=dict)
    size: str | None = None

    @classmethod
    def of(cls, settings: Settings | Layers | None, sections: Mapping[str, Any], **given: Any) -> Layers:
        """The layers of a Python call: settings, then sections such as ``model={"width": 64}``, then ``given``.

        given: dotted keys with ``__`` for the dot, None where nothing is said; data: a path or a section.  Raises
        SettingsError for a section that does not exist.
        """
        layers = settings if isinstance(settings, Layers) else Layers()
        said, places = dict(layers.given), dict(layers.places)
        if isinstance(settings, Settings):
            for section in settings.model_fields_set:
                holder = getattr(settings, section)
                said |= {f"{section}.{name}": getattr(holder, name) for name in holder.model_fields_set}
            places["model.kind"] = "settings"  # which may be those of a run that somebody else made
        if isinstance(given.get("data"), Mapping):
            sections = {**sections, "data": given.pop("data")}
        for section, names in sections.items():
            if section not in Settings.model_fields:
                raise SettingsError(section, "no such argument or section of settings", _nearest(section))
            if names is None:
                continue
            if not isinstance(names, Mapping):
                raise SettingsError(section, f"{names!r} is not a dict of settings", f"for example {section}={{...}}")
            said |= {f"{section}.{name}": value for name, value in names.items()}
            if section == "model" and "kind" in names:
                places.pop("model.kind", None)
        given["data__path"] = given.pop("data", None)
        said |= {key.replace("__", "."): value for key, value in given.items() if value is not None}
        return replace(layers, given=said, places=places)

    def over(self, values: Mapping[str, Any], place: str = ARGUMENT) -> Layers:
        """These layers with values over all of them, by dotted key; None unsets a setting."""
        given = {key: "" if value is None else value for key, value in values.items()}
        return replace(self, given={**self.given, **given}, places={**self.places, **dict.fromkeys(given, place)})

    def load(self, *base: Path) -> Loaded:
        """``merged``, and a model of the user's own must be named by a flag or an argument of this call."""
        loaded = self.merged(*base)
        loaded.refuse_unnamed_model()
        return loaded

    def merged(self, *base: Path) -> Loaded:
        """Merge all layers and validate once; the files ``base`` count between the local one and the others.

        Raises SettingsError with one line per wrong value.
        """
        if self.size is not None and self.size not in SIZES:
            raise SettingsError(Argument("size", self.size), "no size", f"choose {', '.join(SIZES)}")
        layers = [_Given(key, value, f"size {self.size}") for key, value in SIZES.get(self.size or "", {}).items()]
        for path in (*self.local, *base, *self.files):
            layers += _from_file(path)
        layers += _from_env(self.env)
        layers += [_from_set(text) for text in self.sets]
        for key, value in self.given.items():
            if value is not None:
                place = self.places.get(key) or (flag_of(key) if self.typed else ARGUMENT)
                layers.append(_Given(key, value, place))
        unknown = [_unknown(g) for g in layers if g.key not in KEYS]
        if unknown:
            raise SettingsError.together(unknown)
        latest = {given.key: given for given in layers}
        tree: dict[str, dict[str, Any]] = {}
        for key, given in latest.items():
            section, name = key.split(".")
            tree.setdefault(section, {})[name] = _empty_is_none(KEYS[key], given.value)
        try:
            settings = Settings.model_validate(tree)
        except ValidationError as error:
            raise SettingsError.together([_complaint(e, latest) for e in error.errors()]) from None
        origin = {key: latest[key].place if key in latest else DEFAULT for key in KEYS}
        return Loaded(settings, origin)

    def of_run(self, saved: Path, purpose: str) -> Loaded:
        """The settings of a run, changed only where that is sound.

        saved: the run's own file of settings.  A setting that may change with this purpose (resume, scoring) is taken
        from any layer; one that names a file only from a flag, argument or file of this call.  Any other setting that
        was changed in this call is refused with a SettingsError; the environment and the local settings do not count.
        """
        free = may_change(purpose)
        own, older = own_settings(saved), _older(saved)
        said = {key: value for key, value in self.given.items() if value is not None}
        if purpose == SCORING and own.settings.model.kind in MODELS and OWN.fullmatch(str(said.get("model.kind"))):
            del said["model.kind"]  # it allows the code of another run
        loaded = replace(self, given={**older, **said}).load(saved)
        given, kept = flat(loaded.settings), flat(own.settings)
        by_hand = {key for key, origin in loaded.origin.items() if not origin.startswith("$") and origin != str(HERE)}
        refused = [key for key in KEYS if key in by_hand and key not in free and given[key] != kept[key]]
        if refused:
            raise SettingsError.together(
                Message(
                    f"{key} ({loaded.origin[key]})",
                    f"{saved.parent} was trained with {kept[key]}, got {given[key]}",
                    "leave it, or train another run",
                )
                for key in refused
            )
        taken = {key for key in free if key in by_hand or key not in FILES}
        tree = as_tree(own.settings)
        for key in taken:
            section, name = key.split(".")
            tree[section][name] = given[key]
        origin = {key: (loaded if key in taken else own).origin[key] for key in KEYS}
        return Loaded(Settings.model_validate(tree), origin)


def values_of(path: Path) -> dict[str, Any]:
    """What a file of settings says, by dotted key.  Raises SettingsError where it cannot be read or has other keys."""
    given = _from_file(path)
    if unknown := [_unknown(each) for each in given if each.key not in KEYS]:
        raise SettingsError.together(unknown)
    return {each.key: each.value for each in given}


def own_settings(saved: Path) -> Loaded:
    """The settings that a run was trained with, of its own file."""
    return Layers().over(_older(saved), str(saved)).merged(saved)


def _older(saved: Path) -> dict[str, Any]:
    named = {given.key for given in _from_file(saved)}
    return {key: value for key, value in BEFORE.items() if key not in named}


def load_settings(
    files: Sequence[str | Path] = (), env: Mapping[str, str] | None = None, sets: Sequence[str] = (), **sections: Any
) -> Settings:
    """Settings of YAML or TOML files, the environment (os.environ if None), ``section.key=value`` texts and sections.

    Later layers win, in this order.  Raises SettingsError with one line per wrong value.
    """
    layers = Layers(files=tuple(map(Path, files)), env=os.environ if env is None else env, sets=tuple(sets))
    return Layers.of(layers, sections).load().settings


@dataclass(frozen=True)
class _Given:
    """One value on its way in: its dotted key, and the place that an error line names."""

    key: str
    value: Any
    place: str


def _empty_is_none(field_: FieldInfo, value: Any) -> Any:
    """The empty text on a command line unsets a setting that may be unset."""
    return None if value == "" and NoneType in typing.get_args(field_.annotation) else value


def _complaint(error: Any, latest: Mapping[str, _Given]) -> Message:
    key = ".".join(str(part) for part in error["loc"][:2])
    what = error["msg"].removeprefix("Value error, ")
    return Message(f"{key} ({latest[key].place})", f"{what}, got {latest[key].value!r}")


def _unknown(given: _Given) -> Message:
    key, where = given.key, f"{shortened(given.key, ITEM)} ({given.place})"
    old = next((o for o in OLD_KEYS if key == o or key.startswith(o + ".")), None)
    if old is not None:
        new = OLD_KEYS[old]
        return Message(where, f"an old key {new}" if new.startswith("(") else f"an old key; it is {new} now")
    if key in Settings.model_fields:
        return Message(where, f"is a section; its settings are {', '.join(k for k in KEYS if k.startswith(key + '.'))}")
    near = _nearest(key)
    return Message(where, f"unknown setting; {near}") if near else Message(where, "unknown setting", LIST)


def _nearest(key: str) -> str:
    """``did you mean ...?`` for a key that does not exist; empty where nothing is near."""
    section, _, name = key.partition(".")
    near = difflib.get_close_matches(key, KEYS, 1, 0.75)
    near = near or [k for k in KEYS if k.endswith(f".{name or section}")]
    near = near or difflib.get_close_matches(key, KEYS, 1, 0.5)
    return f"did you mean {near[0]}?" if near else ""


def _from_set(text: str) -> _Given:
    key, equals, value = text.partition("=")
    if not equals:
        raise SettingsError(f"--set {text}", "expected section.key=value, for example --set trainer.max_epochs=5")
    return _Given(key.strip(), value, "--set")


def _from_env(env: Mapping[str, str]) -> list[_Given]:
    named = sorted(name for name in env if name.startswith(PREFIX) and name != BEARER)
    return [_Given(name.removeprefix(PREFIX).lower().replace("__", "."), env[name], f"${name}") for name in named]


def _from_file(path: Path) -> list[_Given]:
    try:
        text = read_text(path, FILE_BYTES)
    except OSError as error:
        raise SettingsError(path, error.strerror or error, "name a YAML or TOML file of settings") from None
    except UnicodeDecodeError:
        raise SettingsError(path, "is not text", "name a YAML or TOML file of settings") from None
    except ValueError as error:
        raise SettingsError(path, str(error), "name a YAML or TOML file of settings") from None
    try:
        tree = _parse_toml(path, text) if path.suffix == ".toml" else _parse_yaml(path, text)
        return list(_flatten(tree, "", str(path)))
    except RecursionError:
        raise SettingsError(path, "its blocks are nested too deeply", "settings have two levels") from None


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
        raise SettingsError(path, "is not TOML", str(error)) from None


def _parse_yaml(path: Path, text: str) -> dict[str, Any]:
    import yaml  # 23 ms that --help does not need

    class Loader(yaml.SafeLoader):
        """Equal keys and aliases are errors: PyYAML takes the last key, and a few aliases become a huge tree."""

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1
                raise SettingsError(path, f"line {line} repeats another part by an alias (*)", "write the values there")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            names: set[str] = set()
            for key, _ in node.value:
                name = str(self.construct_object(key, deep=True))
                if name in names:
                    line = node.start_mark.line + 1
                    raise SettingsError(path, f"{name} stands twice in the block from line {line}", "keep one")
                names.add(name)
            return super().construct_mapping(node, deep)

    try:
        tree = yaml.load(text, Loader=Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise SettingsError(path, "is not YAML", " ".join(str(error).split())[:200]) from None
    except (ValueError, OverflowError) as error:  # a date or number that does not exist
        raise SettingsError(path, "is not YAML", f"{type(error).__name__}: {str(error)[:100]}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingsError(path, f"expected sections (data, model, trainer, ...), found {type(tree).__name__}")
    return tree


def as_tree(settings: Settings) -> dict[str, dict[str, Any]]:
    """The settings as plain nested data, as a settings file holds them."""
    return settings.model_dump(mode="json")


def to_yaml(settings: Settings) -> str:
    """All settings in the order of the tree; ``socialx train -c FILE`` reads them back.

    Without the run folder: a copy of a run is a new run, in a new place.
    """
    return some_to_yaml(settings, [key for key in KEYS if key != "trainer.run_dir"])


def changed(settings: Settings) -> tuple[str, ...]:
    """The settings whose values are not the defaults, in the order of the tree."""
    values, defaults = flat(settings), flat(Settings())
    return tuple(key for key in KEYS if values[key] != defaults[key])


def some_to_yaml(settings: Settings, keys: Collection[str]) -> str:
    """These settings in the order of the tree; ``-c FILE`` reads them back."""
    import yaml

    tree = {
        section: {name: value for name, value in names.items() if f"{section}.{name}" in keys}
        for section, names in as_tree(settings).items()
    }
    return yaml.safe_dump({section: names for section, names in tree.items() if names}, sort_keys=False)


def yaml_of(values: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """Some settings by dotted key as a file of settings, each under its comment."""
    import yaml

    lines: list[str] = []
    for section in dict.fromkeys(key.split(".")[0] for key in values):
        lines.append(f"{section}:")
        for key in (each for each in values if each.startswith(f"{section}.")):
            lines += [f"  # {line}" for line in textwrap.wrap(comments.get(key, ""), 100)]
            lines.append(f"  {key.split('.')[1]}: {yaml.safe_dump(values[key]).splitlines()[0]}")
    return "\n".join(lines) + "\n"


def differences(settings: Settings, other: Settings) -> str:
    """The settings that decide which windows are scored and are not the same, with both values.

    A file may be named in two ways.
    """
    mine, theirs = flat(settings), flat(other)
    for values in (mine, theirs):
        values["data.inputs"] = values["data.inputs"] or values["data.targets"]
    differ = [key for key in keys_where(lambda f: f.scored) if mine[key] != theirs[key]]
    if "data.path" in differ and _resolved(settings.data.path) == _resolved(other.data.path):
        differ.remove("data.path")
    return ", ".join(f"{key.removeprefix('data.')} {theirs[key]}, not {mine[key]}" for key in differ)


def _resolved(path: Path | None) -> Path | None:
    return None if path is None else path.resolve()


def flat(settings: Settings) -> dict[str, Any]:
    """Dotted key -> value, as plain data."""
    tree = as_tree(settings)
    return {f"{section}.{name}": value for section, names in tree.items() for name, value in names.items()}


# --- flags ----------------------------------------------------------------------------------------------------------


def with_settings(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give the Typer command ``name`` the options ``--config`` and ``--set`` and a flag for each setting that it shows.

    The command takes ``layers`` beside its own parameters, which it passes on to its task.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        keys = list(KEYS) if name == "config" else keys_where(lambda f: name in f.commands)

        def run(**given: Any) -> None:
            config, sets = given.pop("config") or [], given.pop("set_") or []
            flags = {key: given.pop(key.replace(".", "__")) for key in keys}
            del given["help_all"]
            size = given.pop("size", None)
            here = (HERE,) if HERE.is_file() else ()
            layers = Layers(here, tuple(config), os.environ, tuple(sets), flags, typed=True, size=size)
            command(layers=layers, **given)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "layers"]
        sizes = [_size_parameter()] if name in SIZED else []
        parameters = own + _general_parameters() + sizes + [_parameter(key) for key in keys]
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
    every = Annotated[
        bool,
        typer.Option("--help-all", help="show all settings and exit", is_eager=True, callback=_help_all),
    ]
    return [_keyword("config", config), _keyword("set_", sets), _keyword("help_all", every, default=False)]


def _size_parameter() -> inspect.Parameter:
    what = "settings that fit together. small: an MLP in place of the xLSTM; medium: for a CPU; large: for a card"
    option = typer.Option("--size", metavar="|".join(SIZES), help=what, show_default=False)
    return _keyword("size", Annotated[str | None, option])


def _help_all(context: typer.Context, asked: bool) -> None:
    """Print the help with all settings, in the order of the tree."""
    if asked:
        for parameter in context.command.params:
            if getattr(parameter, "hidden", False):
                parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _parameter(key: str) -> inspect.Parameter:
    field_, flag = KEYS[key], flag_of(key)
    default = "" if field_.default is None else f" (default: {as_typed(field_.default)})"
    text, hidden = f"{field_.description}{default}", not facts(field_).basic
    if field_.annotation is bool:
        declaration = f"{flag}/--no-{flag.removeprefix('--')}"
        option: Any = typer.Option(declaration, help=text, show_default=False, hidden=hidden)
        return _keyword(key.replace(".", "__"), Annotated[bool | None, option])
    choices = facts(field_).choices or words_of(field_.annotation)
    option = typer.Option(
        flag,
        help=text,
        metavar="|".join(choices) if choices else name_of_type(field_.annotation),
        show_default=False,
        hidden=hidden,
        autocompletion=(lambda incomplete: [c for c in choices if c.startswith(incomplete)]) if choices else None,
    )
    return _keyword(key.replace(".", "__"), Annotated[str | None, option])


def as_typed(value: Any) -> str:
    """A value as it is typed on a command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def words_of(annotation: Any) -> list[str]:
    """The words that a setting of this type takes; none where it takes others too."""
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


# The YAML keys of the project that socialx descends from -> the key here, or why there is none.
OLD_KEYS: dict[str, str] = {
    "data.loader.batch_size": "loader.batch_size",
    "data.loader.shuffle": "loader.shuffle",
    "data.loader.num_workers": "(gone: the series is resident on the device, there are no workers)",
    "data.loader.prefetch_factor": "(gone: the series is resident on the device, there are no workers)",
    "data.loader.persistent_workers": "(gone: the series is resident on the device, there are no workers)",
    "data.loader.pin_memory": "(gone: the series is resident on the device, nothing is copied per step)",
    "data.loader": "loader",
    "data.sequence_length": "data.history",
    "data.prediction_length": "data.horizon",
    "social_pooling.enabled": "pooling.kind (none turns it off)",
    "social_pooling.type": "pooling.kind",
    "social_pooling.radius": "pooling.radius_km",
    "social_pooling.learnable_radius": "pooling.learnable_radius",
    "social_pooling.use_positional": "pooling.use_positional",
    "social_pooling.max_neighbors": "pooling.neighbours",
    "social_pooling.mask_mode": "pooling.mask_mode",
    "social_pooling": "pooling",
    "model.xlstm.embedding_dim": "model.width",
    "model.xlstm.num_blocks": "model.blocks",
    "model.xlstm.slstm_at": "model.slstm_at",
    "model.xlstm.num_heads": "model.heads",
    "model.xlstm.dropout": "model.dropout",
    "model.xlstm.context_length": "data.history",
    "model.xlstm.slstm_backend": "model.impl",
    "model.xlstm.mlstm_backend": "model.impl",
    "model.xlstm": "model",
    "trainer.lr": "trainer.learning_rate",
    "trainer.gradient_clip": "trainer.gradient_clip_val",
}

# Words that other tools use -> the flag or command here.
SYNONYMS = {
    "lr": "--learning-rate",
    "epochs": "--max-epochs",
    "num-epochs": "--max-epochs",
    "n-epochs": "--max-epochs",
    "batch": "--batch-size",
    "bs": "--batch-size",
    "gpus": "--devices",
    "num-gpus": "--devices",
    "gpu": "--device cuda",
    "cpu": "--device cpu",
    "cuda": "--device cuda",
    "fp16": "--precision 16-mixed",
    "bf16": "--precision bf16-mixed",
    "amp": "--precision 16-mixed",
    "hidden-size": "--width",
    "hidden-dim": "--width",
    "embedding-dim": "--width",
    "num-layers": "--blocks",
    "num-blocks": "--blocks",
    "neighbors": "--neighbours",
    "num-neighbors": "--neighbours",
    "max-neighbors": "--neighbours",
    "seq-len": "--history",
    "sequence-length": "--history",
    "lookback": "--history",
    "input-len": "--history",
    "pred-len": "--horizon",
    "prediction-length": "--horizon",
    "workers": "--num-workers",
    "wd": "--weight-decay",
    "clip": "--gradient-clip-val",
    "early-stopping": "--patience",
    "data-path": "--data",
    "dataset": "--data",
    "file": "--data",
    "output-dir": "--run-dir",
    "save-dir": "--run-dir",
    "log-dir": "--run-dir",
    "checkpoint": "--resume",
    "ckpt": "--resume",
    "forecast": "predict",
    "infer": "predict",
    "inference": "predict",
    "fit": "train",
    "test": "evaluate",
    "score": "evaluate",
    "eval": "evaluate",
    "benchmark": "profile",
    "check": "doctor",
    "info": "inspect",
    "import": "convert",
    "settings": "config",
    "plot": "explain",
}
