"""Layers of settings: what is said of a setting, where it is said, and the settings that follow from all of them.

    default < --preset < socialx.yaml here < --config files, later over earlier < $SOCIALX_SECTION__KEY < --set < flags

pydantic validates a value once, after all layers are merged.  A wrong value gives the same line wherever it came from,
and all wrong values are reported at once.
"""

from __future__ import annotations

import difflib
import os
import shutil
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any

from pydantic import ValidationError

from socialx.core.errors import ITEM, Argument, Command, Message, SettingsError, shortened
from socialx.core.notebook import files_in
from socialx.core.progress import note
from socialx.settings.conflicts import ineffective_settings
from socialx.settings.file import as_yaml, read_settings
from socialx.settings.kinds import CUSTOM, MODELS
from socialx.settings.schema import (
    BY_NAME,
    FILES,
    KEYS,
    MAY_CHANGE,
    RESUME,
    SCORED,
    SCORING,
    WEIGHTS,
    Settings,
    flag_name,
)

PREFIX = "SOCIALX_"
BEARER = "SOCIALX_TOKEN"  # no setting: serve reads it
HERE = (Path("socialx.yaml"), Path("socialx.yml"))
LIST = "socialx config lists all"
DEFAULT, SET, ARGUMENT = "default", "--set", "argument"  # origins; the last is that of an argument of a Python call
_TRAINED = (
    "pooling.neighbours",
    "pooling.adaptive_adjacency_rank",
    "loader.batch_size",
    "trainer.max_epochs",
    "trainer.weight_decay",
)
_SMALL = ("model.patch", "model.width", "model.mlp_width", "model.dropout", *_TRAINED)
_MEDIUM = ("model.patch", "model.width", "model.blocks", "model.slstm_at", "model.dropout", *_TRAINED)
# Sets of settings by name.  The defaults are those of medium; docs/accuracy.md has the scores of each on METR-LA.
PRESETS: dict[str, dict[str, Any]] = {
    "mlp-small": {"model.encoder": "mlp", **{key: KEYS[key].default for key in _SMALL}},
    "xlstm-small": {key: KEYS[key].default for key in _MEDIUM},
    "xlstm-large": {
        "model.patch": 6,
        "model.width": 128,
        "model.blocks": 4,
        "model.slstm_at": (1, 3),
        "model.dropout": 0.1,
        "pooling.neighbours": 64,
        "pooling.adaptive_adjacency_rank": 10,
        "loader.batch_size": 64,
        "trainer.max_epochs": 40,
        "trainer.learning_rate": 1e-3,
        "trainer.weight_decay": 3e-4,
    },
}


@dataclass(frozen=True)
class Value:
    """What is said of a setting, and the origin that an error line names: a file, a flag, an argument."""

    value: Any
    origin: str


Values = Mapping[str, Value]  # by dotted key


@dataclass(frozen=True)
class LoadedSettings:
    """The merged settings and, per dotted key, where its value came from (``default`` where it was not set)."""

    settings: Settings
    origin: dict[str, str]

    def in_full_precision(self, run_values: Path | None = None) -> Settings:
        """Settings for scores and forecasts: float32, unless this call or the environment set another precision.

        run_values: the run's file of settings, whose precision is that of its training.
        """
        unset = (DEFAULT, str(run_values) if run_values else "")
        full = {"precision": "32-true", "float32_matmul_precision": "highest"}
        update = {name: value for name, value in full.items() if self.origin[f"trainer.{name}"] in unset}
        return self.settings.model_copy(update={"trainer": self.settings.trainer.model_copy(update=update)})

    def refuse_unnamed_model(self) -> None:
        """Raise SettingsError for a model of the user's own that this call does not name: a file must not run code."""
        kind, origin = self.settings.model.kind, self.origin["model.kind"]
        if kind not in MODELS and not self.set_by_call("model.kind") and origin != SET:
            remedy = f"name it again to run it: {Argument('model.kind', kind)}"
            raise SettingsError(f"model.kind ({origin})", f"{kind} is code that is not of socialx", remedy)

    def note_preset(self, preset: str | None) -> None:
        """Tell what a preset has set, without the settings that something else decided."""
        if preset is None:
            return
        values = {key: value for key, value in PRESETS[preset].items() if self.origin[key] == f"preset {preset}"}
        arguments = [
            Argument(key, command_text(value) if isinstance(value, tuple) else value) for key, value in values.items()
        ]
        note(Message("", f"preset {preset}", " ".join(map(str, arguments))))

    def note_unread(self) -> None:
        """Tell which flags or arguments have no effect on the chosen model."""
        ineffective = ineffective_settings(self.settings)
        if idle := [str(Argument(key)) for key in KEYS if key in ineffective and self.set_by_call(key)]:
            note(Message("", "these settings have no effect on this model", ", ".join(idle)))

    def set_by_call(self, key: str) -> bool:
        """Whether a flag of this command line, or an argument of this call, set the value."""
        return self.origin[key] in (flag_name(key), ARGUMENT)


@dataclass(frozen=True)
class ConfigLayers:
    """What is said of settings, not validated yet.

    values: of files, the environment, ``--set``, flags and arguments; of several the highest.  here: of the settings
    file of the current folder, which does not count for a run.  preset: a name of ``PRESETS``, below these.  start: of
    the run that training starts from, below all others.  files: those that were read.
    """

    values: Values = field(default_factory=dict)
    here: Values = field(default_factory=dict)
    preset: str | None = None
    files: tuple[Path, ...] = ()
    start: Values = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        files: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        sets: Sequence[str] = (),
        flags: Mapping[str, Any] | None = None,
        *,
        here: Path | None = None,
        preset: str | None = None,
    ) -> ConfigLayers:
        """The layers of a command line, later over earlier.

        files: YAML or TOML.  env: the environment.  sets: ``section.key=value``.  flags: what was typed, by dotted key.
        Raises SettingsError for a file that cannot be read and for a text of ``sets`` without ``=``.
        """
        values: dict[str, Value] = {}
        for path in files:
            values |= _with_origin(read_settings(path), str(path))
        for name in sorted(env or ()):
            if name.startswith(PREFIX) and name != BEARER:
                values[name.removeprefix(PREFIX).lower().replace("__", ".")] = Value((env or {})[name], f"${name}")
        for text in sets:
            key, equals, value = text.partition("=")
            if not equals:
                example = f"expected section.key=value, for example {SET} trainer.max_epochs=5"
                raise SettingsError(f"{SET} {text}", example)
            values[key.strip()] = Value(value, SET)
        values |= {key: Value(value, flag_name(key)) for key, value in (flags or {}).items()}
        local = _with_origin(read_settings(here), str(here)) if here else {}
        return cls(values, local, preset, (*([here] if here else []), *files))

    @classmethod
    def from_call(
        cls, settings: Settings | ConfigLayers | None, arguments: Mapping[str, Any], preset: str | None = None
    ) -> ConfigLayers:
        """The layers of a Python call: ``settings``, and its other arguments over them.

        arguments: sections such as ``model={"width": 64}``, and settings by their own name, ``max_epochs=1``, or by a
        dotted key; ``data`` is a section or the file.  None says nothing.  Raises SettingsError for an argument that is
        neither a section nor a setting.
        """
        layers = settings if isinstance(settings, ConfigLayers) else ConfigLayers()
        layers = replace(layers, preset=preset or layers.preset)
        values: dict[str, Any] = {}
        for name, value in arguments.items():
            key = "data.path" if name == "data" and not isinstance(value, Mapping) else BY_NAME.get(name, name)
            if value is None:
                continue
            if key in KEYS:
                values[key] = value
            elif key not in Settings.model_fields:
                raise SettingsError(name, "no such argument or section of settings", _suggest(name))
            elif not isinstance(value, Mapping):
                raise SettingsError(name, f"{value!r} is not a dict of settings", f"for example {name}={{...}}")
            else:
                values |= {f"{key}.{each}": inner for each, inner in value.items()}
        if "data.path" in values:
            files_in(values["data.path"])
        if isinstance(settings, Settings):
            for section in settings.model_fields_set:
                holder = getattr(settings, section)
                layers = layers.over({f"{section}.{name}": getattr(holder, name) for name in holder.model_fields_set})
            if "model.kind" in layers.values:  # the settings may be those of a run that somebody else made
                layers = layers.over({"model.kind": settings.model.kind}, "settings")
        return layers.over(values)

    def over(self, values: Mapping[str, Any], origin: str = ARGUMENT) -> ConfigLayers:
        """These layers with values over all of them, by dotted key; None unsets a setting."""
        return replace(self, values={**self.values, **_with_origin(values, origin)})

    def call_value(self, key: str) -> Any:
        """What a flag or argument of this call says of a setting; None: nothing."""
        value = self.values.get(key)
        return value.value if value and value.origin in (flag_name(key), ARGUMENT) else None

    @property
    def data(self) -> Any:
        """The data that a user of a run names; None: its own.  The environment names no file of a run."""
        said = self.values.get("data.path")
        return said.value if said and not said.origin.startswith("$") else None

    def load(self) -> LoadedSettings:
        """``merge``, and a model of the user's own must be named by a flag or an argument of this call."""
        loaded = self.merge()
        loaded.refuse_unnamed_model()
        return loaded

    def merge(self) -> LoadedSettings:
        """Merge all layers and validate once.  Raises SettingsError with one line per wrong value."""
        if self.preset is not None and self.preset not in PRESETS:
            raise SettingsError(Argument("preset", self.preset), "no such preset", f"choose {', '.join(PRESETS)}")
        sized = _with_origin(PRESETS[self.preset], f"preset {self.preset}") if self.preset else {}
        return _validate({**self.start, **sized, **self.here, **self.values})

    def starting_from(
        self, saved: Path, run_values: Mapping[str, Any], trained: Mapping[str, Any] | None = None
    ) -> LoadedSettings:
        """``load``, with model and pooling of the run that training starts from below all that is said.

        saved, run_values, trained: as in ``load_run``.  A zero-shot model becomes one of this network, with tables of its
        sensors.  Raises SettingsError for a model of the user's own, and where the weights fit no other value.
        """
        trained_settings = run_settings(saved, run_values).settings
        _refuse_edits(saved, trained_settings, trained or {})
        if trained_settings.model.kind not in MODELS:
            reason = f"its model {trained_settings.model.kind} is code that is not of socialx"
            raise SettingsError(saved.parent, reason, f"{Argument('trainer.init_from')} takes models of socialx")
        start = {
            key: value
            for key, value in fixed_settings(trained_settings).items()
            if key.startswith(("model.", "pooling."))
        }
        del start["model.zero_shot"]
        loaded = replace(self, start=_with_origin(start, str(saved))).load()
        new, old = flat(loaded.settings), flat(trained_settings)
        for values in (new, old):
            values["data.inputs"] = values["data.inputs"] or values["data.targets"]
        other = [key for key in WEIGHTS if new[key] != old[key]]
        ineffective = set() if "model.kind" in other else ineffective_settings(loaded.settings)
        if other := [key for key in other if key not in ineffective]:
            raise SettingsError.together(
                Message(
                    f"{key} ({loaded.origin[key]})",
                    f"the weights of {saved.parent} are of {old[key]}, got {new[key]}",
                    f"give {Argument(key)} that value, or leave {Argument('trainer.init_from')} out",
                )
                for key in other
            )
        return loaded

    def load_run(
        self, saved: Path, run_values: Mapping[str, Any], purpose: str, trained: Mapping[str, Any] | None = None
    ) -> LoadedSettings:
        """The settings of a run, changed only where that is sound.

        saved: the run's own file of settings, and run_values: what it says.  trained: what its training says of the settings
        that it fixed, as ``fixed_settings``; a file that was edited since is refused where it says something else.  A setting
        that may change with this purpose (resume, scoring) is taken from files, environment, flags and arguments; one
        that names a file not from the environment.  Any other setting that was changed in this call is refused with a
        SettingsError; the environment does not count for it.
        """
        trained_settings, values = run_settings(saved, run_values), dict(self.values)
        _refuse_edits(saved, trained_settings.settings, trained or {})
        kind = self.call_value("model.kind")
        if purpose == SCORING and trained_settings.settings.model.kind in MODELS and CUSTOM.fullmatch(str(kind)):
            del values["model.kind"]  # it allows the code of another run
        of_run = _with_origin(run_values, str(saved))
        now = _validate({**of_run, **values})
        now.refuse_unnamed_model()
        new, old, free = flat(now.settings), flat(trained_settings.settings), MAY_CHANGE[purpose]
        by_hand = {key for key, value in values.items() if not value.origin.startswith("$")}
        if refused := [key for key in KEYS if key in by_hand and key not in free and new[key] != old[key]]:
            raise SettingsError.together(
                Message(
                    f"{key} ({now.origin[key]})",
                    f"{saved.parent} was trained with {old[key]}, got {new[key]}",
                    "leave it, or train another run",
                )
                for key in refused
            )
        taken = {key: values[key] for key in free if key in values and (key in by_hand or key not in FILES)}
        return _validate({**of_run, **taken})


def run_settings(saved: Path, run_values: Mapping[str, Any]) -> LoadedSettings:
    """The settings that a run was trained with; saved: its own file of settings, and run_values: what it says."""
    return _validate(_with_origin(run_values, str(saved)))


def fixed_settings(settings: Settings) -> dict[str, Any]:
    """The settings that no resumption may change, by dotted key, as plain data: with others it is another training."""
    free = (*MAY_CHANGE[RESUME], "trainer.run_dir")
    return {key: value for key, value in flat(settings).items() if key not in free}


def _refuse_edits(saved: Path, settings: Settings, trained: Mapping[str, Any]) -> None:
    """Raise SettingsError with a line for each setting of a run's own file that is not that of its training."""
    now = flat(settings)
    edited = [key for key, value in trained.items() if key in now and now[key] != value]
    if not edited:
        return
    lines = {key: " ".join(as_yaml({key: trained[key]}).split()[1:]) for key in edited}

    def short(value: object) -> str:  # of a file that may be damaged
        return shortened(str(value), 100)

    raise SettingsError.together(
        Message(
            f"{key} ({saved})",
            f"{saved.parent} was trained with {short(trained[key])}, and the file says {short(now[key])}",
            f"write {short(lines[key])!r} there again, or train another run with {Command('train', settings=saved)}",
        )
        for key in edited
    )


def settings_here() -> Path | None:
    """The file of settings of the current folder, if there is one.  Raises SettingsError for two."""
    found = [path for path in HERE if path.is_file()]
    if len(found) > 1:
        raise SettingsError(found[1], f"{found[0]} is here too", "keep one of them")
    return found[0] if found else None


def load_settings(
    files: str | Path | Sequence[str | Path] = (),
    env: Mapping[str, str] | None = None,
    sets: str | Sequence[str] = (),
    **sections: Any,
) -> Settings:
    """Settings of YAML or TOML files, the environment (os.environ if None), ``section.key=value`` texts and sections.

    Later layers win, in this order.  Raises SettingsError with one line per wrong value.
    """
    sets = [sets] if isinstance(sets, str) else sets
    layers = ConfigLayers.read(files_in(files, "files"), os.environ if env is None else env, sets)
    return ConfigLayers.from_call(layers, sections).load().settings


def _with_origin(values: Mapping[str, Any], origin: str) -> dict[str, Value]:
    return {key: Value(value, origin) for key, value in values.items()}


def _validate(values: Values) -> LoadedSettings:
    """Settings of these values, and the default for all others.  SettingsError with one line per wrong one."""
    values = {key: each for key, each in values.items() if each.value is not None or key not in Settings.model_fields}
    if unknown := [_unknown(key, each.origin) for key, each in values.items() if key not in KEYS]:
        raise SettingsError.together(unknown)
    tree: dict[str, dict[str, Any]] = {}
    for key, each in values.items():
        section, name = key.split(".")
        may_be_unset = NoneType in typing.get_args(KEYS[key].annotation)  # the empty text of a command line unsets it
        tree.setdefault(section, {})[name] = None if each.value == "" and may_be_unset else each.value
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        wrong = [(".".join(map(str, each["loc"][:2])), each["msg"]) for each in error.errors()]
        raise SettingsError.together(
            Message(
                f"{key} ({values[key].origin})",
                f"{what.removeprefix('Value error, ')}, got {values[key].value!r}",
            )
            for key, what in wrong
        ) from None
    return LoadedSettings(settings, {key: values[key].origin if key in values else DEFAULT for key in KEYS})


def _unknown(key: str, origin: str) -> Message:
    where = f"{shortened(key, ITEM)} ({origin})"
    if key in Settings.model_fields:
        return Message(where, f"is a section; its settings are {', '.join(k for k in KEYS if k.startswith(f'{key}.'))}")
    near = _suggest(key)
    return Message(where, f"unknown setting; {near}") if near else Message(where, "unknown setting", LIST)


def _suggest(key: str) -> str:
    """``did you mean ...?`` for a key that does not exist; empty where nothing is near."""
    section, _, name = key.partition(".")
    near = difflib.get_close_matches(key, KEYS, 1, 0.75)
    near = near or [k for k in KEYS if k.endswith(f".{name or section}")]
    near = near or difflib.get_close_matches(key, KEYS, 1, 0.5)
    return f"did you mean {near[0]}?" if near else ""


def as_tree(settings: Settings) -> dict[str, dict[str, Any]]:
    """The settings as plain nested data, as a settings file holds them."""
    return settings.model_dump(mode="json")


def flat(settings: Settings) -> dict[str, Any]:
    """Dotted key -> value, as plain data."""
    return {f"{section}.{name}": value for section, names in as_tree(settings).items() for name, value in names.items()}


def to_yaml(settings: Settings) -> str:
    """All settings in the order of the tree; ``socialx train -c FILE`` reads them back.

    Without the run folder: a copy of a run is a new run, in a new place.
    """
    return as_yaml({key: value for key, value in flat(settings).items() if key != "trainer.run_dir"})


def changed_settings(settings: Settings) -> dict[str, Any]:
    """The settings whose values are not the defaults, by dotted key in the order of the tree, as plain data."""
    defaults = flat(Settings())
    return {key: value for key, value in flat(settings).items() if value != defaults[key]}


def differences(settings: Settings, other: Settings) -> str:
    """The settings that decide which windows are scored and are not the same, with both values.

    A file may be named in two ways.
    """
    mine, theirs = flat(settings), flat(other)
    for values in (mine, theirs):
        values["data.inputs"] = values["data.inputs"] or values["data.targets"]
    differ = [key for key in SCORED if mine[key] != theirs[key]]
    files = [path and Path(path).resolve() for path in (settings.data.path, other.data.path)]
    if "data.path" in differ and files[0] == files[1]:
        differ.remove("data.path")
    return ", ".join(f"{key.removeprefix('data.')} {theirs[key]}, not {mine[key]}" for key in differ)


def preset_here() -> str | None:
    """Return the preset to advise on this machine: ``mlp-small`` without a GPU, else None, the default."""
    return None if sees_card() else "mlp-small"


def sees_card() -> bool:
    """Whether the machine has the device of a card or the tool of its driver and does not hide it; without torch."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and (bool(shutil.which("nvidia-smi")) or any(Path("/dev").glob("nvidia[0-9]*")))


def command_text(value: Any) -> str:
    """A value as it is typed on a command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
