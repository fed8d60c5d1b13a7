"""Configuration layers: merged settings, and the origin of each value.

    default < --preset < socialx.yaml here < --config files, later over earlier < $SOCIALX_SECTION__KEY < --set < flags

pydantic validates each value once, after the merge. A wrong value gives the same line from any layer, and all wrong
values are reported together.
"""

from __future__ import annotations

import os
import shutil
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from types import NoneType
from typing import Any

from pydantic import ValidationError

from socialx.core.errors import ITEM, Argument, Command, Message, SettingsError, shortened
from socialx.core.notebook import files_in
from socialx.core.progress import note
from socialx.settings.conflicts import idle_settings
from socialx.settings.file import as_yaml, read_settings
from socialx.settings.kinds import CUSTOM, KNOWN, MODELS, NOTEBOOK, name_model, stands_for
from socialx.settings.schema import (
    BY_NAME,
    FILES,
    KEYS,
    MUTABLE,
    RESUME,
    SCORED,
    SCORING,
    UNPROFILED,
    WEIGHTS,
    Settings,
    flag_name,
    near_argument,
)

PREFIX = "SOCIALX_"
BEARER = "SOCIALX_TOKEN"  # read by serve; outside the settings
HERE = (Path("socialx.yaml"), Path("socialx.yml"))
LIST = "list all with socialx config"
DEFAULT, SET, ARGUMENT = "default", "--set", "argument"  # origins; the last marks an argument in a Python call
# What to write in place of a value that is gone, or that other tools take.
GONE = {"model.backend=triton": "write auto there, which computes the same", "trainer.device=gpu": "write cuda"}
_TRAINED = (
    *("pooling.neighbours", "pooling.adaptive_adjacency_rank"),
    *("loader.batch_size", "trainer.max_epochs", "trainer.weight_decay"),
)
_SMALL = ("model.patch", "model.width", "model.mlp_width", "model.dropout", *_TRAINED)
_MEDIUM = ("model.patch", "model.width", "model.blocks", "model.slstm_at", "model.dropout", *_TRAINED)
# Presets. The defaults equal xlstm-small; docs/accuracy.md has METR-LA scores for each preset.
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
    """Unvalidated value with its origin, the file, flag or argument that error lines name."""

    value: Any
    origin: str


Values = Mapping[str, Value]  # by dotted key


@dataclass(frozen=True)
class Config:
    """Merged settings, with the origin per dotted key (``default`` where unset)."""

    settings: Settings
    origin: dict[str, str]

    def in_full_precision(self, run_values: Path | None = None) -> Settings:
        """Return settings for scores and forecasts: float32, unless this call or the environment set a precision.

        run_values: the run's settings file, whose precision was for training.
        """
        unset = (DEFAULT, str(run_values) if run_values else "")
        full = {"precision": "32-true", "float32_matmul_precision": "highest"}
        update = {name: value for name, value in full.items() if self.origin[f"trainer.{name}"] in unset}
        return self.settings.model_copy(update={"trainer": self.settings.trainer.model_copy(update=update)})

    def refuse_unnamed_model(self) -> None:
        """Raise SettingsError for a custom model that only a file names: a file must not run code."""
        kind, origin = self.settings.model.kind, self.origin["model.kind"]
        if kind not in MODELS and not self.set_by_call("model.kind") and kind not in KNOWN:
            module, _, name = kind.partition(":")
            remedy = f"add {Argument('model.kind', kind)} to run this code"
            if module == NOTEBOOK:
                moved = f"write {name} into my_models.py and add {Argument('model.kind', f'my_models:{name}')}"
                remedy = f"{moved}, or in Python define {name} again and pass model={name}"
            raise SettingsError("model.own", f"model.kind ({origin})", f"{kind} is code from outside socialx", remedy)

    def note_preset(self, preset: str | None) -> None:
        """Show the user the values that a preset, if any, sets, leaving out overridden settings."""
        if preset is None:
            return
        values = {key: value for key, value in PRESETS[preset].items() if self.origin[key] == f"preset {preset}"}
        texts = {key: command_text(value) if isinstance(value, tuple) else value for key, value in values.items()}
        arguments = [str(Argument(key, text)) for key, text in texts.items()]
        note(Message("settings.preset-sets", "", f"preset {preset} sets {' '.join(arguments)}"))

    def note_unread(self) -> None:
        """Show the user which flags or arguments in this call have no effect on the model."""
        ineffective = idle_settings(self.settings)
        if idle := [str(Argument(key)) for key in KEYS if key in ineffective and self.set_by_call(key)]:
            note(Message("settings.unread", "", f"these settings have no effect on this model: {', '.join(idle)}"))

    def set_by_call(self, key: str) -> bool:
        """Return whether a flag or argument in this call set the value for a dotted key."""
        return self.origin[key] in (flag_name(key), SET, ARGUMENT)


@dataclass(frozen=True)
class ConfigLayers:
    """Unvalidated settings from all sources, from the lowest: start, preset, here, values.

    values: by dotted key, from files, environment, ``--set``, flags and arguments. here: from a settings file in the
    current folder, ignored for runs. preset: name in ``PRESETS``. start: from the run to fine-tune. files: as read.
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
        here: Path | None = None,
    ) -> ConfigLayers:
        """Read the layers of a command line; a later source wins: files, env, sets, flags. here: see class.

        files: YAML or TOML. env: environment. sets: ``section.key=value``. flags: typed values by dotted key. Raises
        SettingsError for an unreadable file and for ``sets`` lacking ``=``.
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
                remedy = f"write section.key=value, for example {SET} trainer.max_epochs=5"
                raise SettingsError("settings.no-value", "", f"{SET} {text} lacks a value", remedy)
            values[key.strip()] = Value(value, SET)
        values |= {key: Value(value, flag_name(key)) for key, value in (flags or {}).items()}
        local = _with_origin(read_settings(here), str(here)) if here else {}
        return cls(values, local, files=(*([here] if here else []), *files))

    @classmethod
    def from_call(
        cls,
        settings: Settings | ConfigLayers | None,
        arguments: Mapping[str, Any],
        preset: str | None = None,
        task: Callable[..., Any] | None = None,
    ) -> ConfigLayers:
        """Return the layers for a Python call: ``settings`` with a preset, if named, and ``arguments`` on top.

        arguments: sections such as ``model={"width": 64}``, and settings by own name, ``max_epochs=1``, or by dotted
        key; ``data`` is a section or the file, ``model`` a section, a kind, or a torch module as class or instance.
        ``None`` is skipped. task: the called function. Raises SettingsError for an unknown argument.
        """
        layers = settings if isinstance(settings, ConfigLayers) else ConfigLayers()
        layers = replace(layers, preset=preset or layers.preset)
        values: dict[str, Any] = {}
        wrong: list[Message] = []
        offered = () if isinstance(settings, ConfigLayers) or task is None else tuple(signature(task).parameters)
        keys = KEYS if getattr(task, "__name__", "profile") in ("profile", "compare") else UNPROFILED
        for name, value in arguments.items():
            key = "data.path" if name == "data" and not isinstance(value, Mapping) else BY_NAME.get(name, name)
            if value is None:
                continue
            if key in keys:
                values[key] = value
            elif key not in Settings.model_fields:
                unknown = f"{name} is an unknown argument"
                wrong.append(Message("call.unknown-argument", "", unknown, _suggest(name, offered, keys)))
            elif key == "model" and isinstance(named_model := name_model(value), str):
                values["model.kind"] = named_model
            elif not isinstance(value, Mapping):
                named = isinstance(value, str) and f"{name}.kind" in KEYS
                like = Argument(f"{name}.kind", value) if named else f"{name}={{...}}"
                problem = f"{name} must be a dict of settings, not {value!r}"
                wrong.append(Message("settings.no-dict", "", problem, f"write {like}"))
            else:
                values |= {f"{key}.{field_name}": inner for field_name, inner in value.items()}
        if wrong:
            raise SettingsError.together(wrong)
        if "model.kind" in values:
            values["model.kind"] = name_model(values["model.kind"])
        if "data.path" in values:
            files_in(values["data.path"])
        if isinstance(settings, Settings):
            for section in settings.model_fields_set:
                holder = getattr(settings, section)
                layers = layers.over({f"{section}.{name}": getattr(holder, name) for name in holder.model_fields_set})
            if "model.kind" in layers.values:  # the settings may come from somebody else's run
                layers = layers.over({"model.kind": settings.model.kind}, "settings")
        return layers.over(values)

    def over(self, values: Mapping[str, Any], origin: str = ARGUMENT) -> ConfigLayers:
        """Return these layers with values by dotted key on top; ``None`` unsets a setting. origin: for messages."""
        return replace(self, values={**self.values, **_with_origin(values, origin)})

    def argument(self, key: str) -> Any:
        """Return the value for a dotted key from a flag or argument in this call, or ``None``."""
        value = self.values.get(key)
        return value.value if value and value.origin in (flag_name(key), ARGUMENT) else None

    @property
    def data(self) -> Any:
        """Data file chosen by the user, ``None`` for the run's own; the environment is ignored for runs."""
        said = self.values.get("data.path")
        return said.value if said and not said.origin.startswith("$") else None

    def load(self) -> Config:
        """Merge, validate, and raise SettingsError for a custom model class without a flag or argument in this call."""
        loaded = self.merge()
        loaded.refuse_unnamed_model()
        return loaded

    def merge(self) -> Config:
        """Merge and validate all layers, custom models included. Raises SettingsError with one line per wrong value."""
        if self.preset is not None and self.preset not in PRESETS:
            kind = f"use {Argument('model.kind', self.preset)}, or " if self.preset in MODELS else ""
            remedy = f"{kind}choose {', '.join(PRESETS)}"
            raise SettingsError("settings.preset", "", f"{self.preset!r} is an unknown preset", remedy)
        sized = _with_origin(PRESETS[self.preset], f"preset {self.preset}") if self.preset else {}
        return _validate({**self.start, **sized, **self.here, **self.values})

    def starting_from(
        self, saved: Path, run_values: Mapping[str, Any], trained: Mapping[str, Any] | None = None
    ) -> Config:
        """Load the settings for fine-tuning: model and pooling settings from an earlier run, below all layers.

        saved, run_values, trained: see ``load_run``. A zero-shot model becomes a model for this network, with sensor
        embeddings. Raises SettingsError for a custom model, and for values that the weights do not fit.
        """
        trained_settings = run_settings(saved, run_values).settings
        _refuse_edits(saved, trained_settings, trained or {})
        if trained_settings.model.kind not in MODELS:
            reason = f"the model {trained_settings.model.kind} is code from outside socialx"
            remedy = f"pass {Argument('trainer.init_from')} a socialx model"
            raise SettingsError("settings.start-unnamed", saved.parent, reason, remedy)
        fixed = invariants(trained_settings)
        start = {key: value for key, value in fixed.items() if key.startswith(("model.", "pooling."))}
        del start["model.zero_shot"]
        loaded = replace(self, start=_with_origin(start, str(saved))).load()
        new, old = flat(loaded.settings), flat(trained_settings)
        for values in (new, old):
            values["data.inputs"] = values["data.inputs"] or values["data.targets"]
        other = [key for key in WEIGHTS if new[key] != old[key]]
        ineffective = set() if "model.kind" in other else idle_settings(loaded.settings)
        if other := [key for key in other if key not in ineffective]:
            raise SettingsError.together(
                Message(
                    "settings.start-differs",
                    f"{key} ({loaded.origin[key]})",
                    f"the weights of {saved.parent} need {old[key]}, got {new[key]}",
                    f"give {Argument(key)} that value, or drop {Argument('trainer.init_from')}",
                )
                for key in other
            )
        return loaded

    def load_run(
        self, saved: Path, run_values: Mapping[str, Any], purpose: str, trained: Mapping[str, Any] | None = None
    ) -> Config:
        """Load a run's settings with permitted changes, for resuming or scoring (purpose).

        saved: the run's settings file. run_values: its content. trained: settings fixed by training, see
        ``invariants``; an edit since then is refused. Files, environment, flags and arguments may change what the
        purpose permits; a file name never comes from the environment. Raises SettingsError for any other change in this
        call; the environment is ignored there.
        """
        trained_settings, values = run_settings(saved, run_values), dict(self.values)
        _refuse_edits(saved, trained_settings.settings, trained or {})
        kind, trained_kind = str(self.argument("model.kind")), trained_settings.settings.model.kind
        if purpose == SCORING and trained_kind in MODELS and CUSTOM.fullmatch(kind):
            del values["model.kind"]  # names code for another run
        elif kind != trained_kind and CUSTOM.fullmatch(kind) and stands_for(kind, trained_kind):
            values["model.kind"] = replace(values["model.kind"], value=trained_kind)
        saved_values = _with_origin(run_values, str(saved))
        merged = _validate({**saved_values, **values})
        merged.refuse_unnamed_model()
        new, old, free = flat(merged.settings), flat(trained_settings.settings), MUTABLE[purpose]
        by_hand = {key for key, value in values.items() if not value.origin.startswith("$")}
        if refused := [key for key in KEYS if key in by_hand and key not in free and new[key] != old[key]]:
            raise SettingsError.together(
                Message(
                    "settings.run-differs",
                    f"{key} ({merged.origin[key]})",
                    f"{saved.parent} was trained with {old[key]}, got {new[key]}",
                    "drop the setting, or train another run",
                )
                for key in refused
            )
        taken = {key: values[key] for key in free if key in values and (key in by_hand or key not in FILES)}
        return _validate({**saved_values, **taken})


def run_settings(saved: Path, run_values: Mapping[str, Any]) -> Config:
    """Return the settings that a run was trained with; saved: the run's settings file, run_values: its content."""
    return _validate(_with_origin(run_values, str(saved)))


def invariants(settings: Settings) -> dict[str, Any]:
    """Return the settings that stay fixed on resume, by dotted key, as plain data."""
    free = (*MUTABLE[RESUME], "trainer.run_dir")
    return {key: value for key, value in flat(settings).items() if key not in free}


def _refuse_edits(saved: Path, settings: Settings, trained: Mapping[str, Any]) -> None:
    """Raise SettingsError where settings, read from a run's file (saved), differ from trained, fixed by training."""
    current = flat(settings)
    edited = [key for key, value in trained.items() if key in current and current[key] != value]
    if not edited:
        return
    lines = {key: " ".join(as_yaml({key: trained[key]}).split()[1:]) for key in edited}

    def short(value: object) -> str:  # the file may be damaged
        return shortened(str(value), 100)

    raise SettingsError.together(
        Message(
            "settings.edited",
            f"{key} ({saved})",
            f"{saved.parent} was trained with {short(trained[key])}, and the file says {short(current[key])}",
            f"write {short(lines[key])!r} there again, or train another run with {Command('train', settings=saved)}",
        )
        for key in edited
    )


def settings_here() -> Path | None:
    """Return the settings file in the current folder, or ``None``. Raises SettingsError for two files."""
    files = [path for path in HERE if path.is_file()]
    if len(files) > 1:
        raise SettingsError("settings.file-here", files[1], f"{files[0]} is in this folder, too", "keep one of them")
    return files[0] if files else None


def load_settings(
    files: str | Path | Sequence[str | Path] = (),
    env: Mapping[str, str] | None = None,
    sets: str | Sequence[str] = (),
    preset: str | None = None,
    **sections: Any,
) -> Settings:
    """Load settings from files, environment (default os.environ), ``section.key=value`` texts and sections.

    sets: texts. preset, sections: as in ``train``. Later layers win. Raises SettingsError, a line per wrong value.
    """
    sets = [sets] if isinstance(sets, str) else sets
    layers = ConfigLayers.read(files_in(files, "files"), os.environ if env is None else env, sets)
    return ConfigLayers.from_call(layers, sections, preset).load().settings


def _with_origin(values: Mapping[str, Any], origin: str) -> dict[str, Value]:
    return {key: Value(value, origin) for key, value in values.items()}


def _validate(values: Values) -> Config:
    """Validate values by dotted key over the defaults. Raises SettingsError with one line per wrong value."""
    values = {key: item for key, item in values.items() if item.value is not None or key not in Settings.model_fields}
    if unknown := [_unknown(key, item.origin) for key, item in values.items() if key not in KEYS]:
        raise SettingsError.together(unknown)
    tree: dict[str, dict[str, Any]] = {}
    for key, item in values.items():
        section, name = key.split(".")
        may_be_unset = NoneType in typing.get_args(KEYS[key].annotation)  # an empty text unsets the setting
        tree.setdefault(section, {})[name] = None if item.value == "" and may_be_unset else item.value
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        wrong = [(".".join(map(str, item["loc"][:2])), item["msg"]) for item in error.errors()]
        raise SettingsError.together(
            Message(
                "settings.invalid",
                f"{key} ({values[key].origin})",
                f"{problem.removeprefix('Value error, ')}, got {values[key].value!r}",
                GONE.get(f"{key}={values[key].value}", ""),
            )
            for key, problem in wrong
        ) from None
    return Config(settings, {key: values[key].origin if key in values else DEFAULT for key in KEYS})


def _unknown(key: str, origin: str) -> Message:
    where = f"{shortened(key, ITEM)} ({origin})"
    if key in Settings.model_fields:
        keys = ", ".join(k for k in KEYS if k.startswith(f"{key}."))
        return Message("settings.section", where, f"{key} is a section with {keys}")
    return Message("settings.unknown", where, "the setting is unknown", _suggest(key) or LIST)


def _suggest(key: str, arguments: Collection[str] = (), settings: Collection[str] = tuple(KEYS)) -> str:
    """Return ``did you mean ...?`` for an unknown key, or an empty text; arguments, settings: that are offered."""
    near = near_argument(key, arguments, settings)
    return f"did you mean {near}?" if near else ""


def as_tree(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return settings as plain nested data, as in a settings file."""
    return settings.model_dump(mode="json")


def flat(settings: Settings) -> dict[str, Any]:
    """Return settings as plain data by dotted key."""
    return {f"{section}.{name}": value for section, names in as_tree(settings).items() for name, value in names.items()}


def to_yaml(settings: Settings) -> str:
    """Return all settings as YAML for ``socialx train -c FILE``, apart from the run folder, new for every run."""
    return as_yaml({key: value for key, value in flat(settings).items() if key != "trainer.run_dir"})


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Return non-default settings by dotted key, as plain data."""
    defaults = flat(Settings())
    return {key: value for key, value in flat(settings).items() if value != defaults[key]}


def differences(settings: Settings, other: Settings) -> str:
    """Return a text with the settings that differ and change the scored windows; empty if scores are comparable.

    The text has the value in ``other``, then in ``settings``. Two paths to one file are equal.
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
    """Return the preset to advise on this machine: ``mlp-small`` without a GPU, else ``None`` for the default."""
    return None if sees_gpu() else "mlp-small"


def sees_gpu() -> bool:
    """Return whether the machine shows a GPU device or driver tool, checked without torch."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and (bool(shutil.which("nvidia-smi")) or any(Path("/dev").glob("nvidia[0-9]*")))


def command_text(value: Any) -> str:
    """Return a value as typed on a command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
