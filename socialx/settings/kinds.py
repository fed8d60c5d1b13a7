"""Kinds of model, encoder and pooling: description, class and settings in use.

Choices, help, notes and ``build`` all read these rows. A new kind is a class in ``socialx.model`` plus one row, or a
custom class named as ``package.module:Class``. Runs without torch, so that ``--help`` stays quick.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from socialx.core.errors import Argument, SettingsError

CUSTOM = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")  # name of a class outside socialx
NOTEBOOK = "__main__"  # module of a class that a notebook or script defines
PAGE = "docs/compare-a-model.md"
KNOWN: dict[str, Any] = {}  # user classes and modules that this process has named, by class; None: by name alone


@dataclass(frozen=True)
class Kind:
    """Choice by name for a setting such as ``model.kind``; the help shows the description.

    path: module and class for ``build``, ``None`` without a class. reads: settings in its section that the class takes
    as keyword arguments, ``None`` for all. ignores: settings without effect for this kind.
    """

    name: str
    description: str
    path: str | None = None
    reads: tuple[str, ...] | None = None
    ignores: tuple[str, ...] = ()

    def load(self) -> Any:
        """Import and return the class."""
        module, _, name = str(self.path).partition(":")
        return getattr(import_module(module), name)

    def arguments(self, built: Any, settings: Collection[str]) -> list[str]:
        """Return the names among ``settings`` that the class (built) takes as keyword arguments."""
        return [name for name in settings if self.reads is None or name in self.reads]


@dataclass(frozen=True)
class Model(Kind):
    """Model kind. social: has tokens, encoder and social layers.

    sensor_tables: settings that add weights per sensor; ``True`` if the model always has such weights.
    """

    social: bool = False
    sensor_tables: tuple[str, ...] | bool = False

    def build(self, network: Any, model: Any, pooling: Any) -> Any:
        """Build the model for a network from the sections ``model`` and ``pooling``, with fresh weights.

        Raises SettingsError for sizes that do not go together.
        """
        built = self.load()
        try:
            if self.social:
                return built(network, model, pooling)
            reads = self.arguments(built, [name for name in type(model).model_fields if name != "kind"])
            return built(network, **{name: getattr(model, name) for name in reads})
        except ValueError as error:  # a combination of sizes that cannot be built
            sizes = ", ".join(str(Argument(f"model.{name}")) for name in ("width", "blocks", "slstm_at"))
            raise SettingsError("model.sizes", "", f"the model cannot be built: {error}", f"change {sizes}") from None


@dataclass(frozen=True)
class CustomModel(Model):
    """Custom model: an ``nn.Module``, as a class or an instance.

    A forward whose argument is called ``batch``, or annotated ``Batch``, takes a ``Batch``; the class takes a
    ``DataSpec``, and settings by name. Any other forward makes a plain module, see ``PlainModule``.
    """

    def load(self) -> Any:
        """Return the class or instance that this process knows, or import it from the module path or current folder.

        Raises SettingsError for an unsuitable name, and for a constructor or forward with other arguments.
        """
        if (folder := str(Path.cwd())) not in sys.path:
            sys.path.append(folder)
        try:
            loaded = super().load() if (named := KNOWN.get(self.name)) is None else named
        except (ImportError, AttributeError, SyntaxError) as error:
            remedy = "check the name; the module must be on PYTHONPATH or in the current folder"
            problem = f"model.kind {self.name} cannot be imported ({error})"
            raise SettingsError("model.import", "", problem, remedy) from None
        if not _is_module(loaded):
            problem = f"model.kind {self.name} must be a torch.nn.Module, as a class or an instance"
            raise SettingsError("model.no-module", "", problem, "name a subclass")
        needed = _required(inspect.signature(loaded).parameters.values()) if isinstance(loaded, type) else []
        if needed and not self.reads_batch(loaded):
            problem = f"{self.name} needs {', '.join(needed)} to be built, and forward takes no batch"
            remedy = f"pass an instance, or call the argument of forward batch ({PAGE})"
            raise SettingsError("model.two-readings", "", problem, remedy)
        return loaded

    def reads_batch(self, loaded: Any) -> bool:
        """Return whether forward takes a ``Batch``. Raises SettingsError unless forward needs at most one argument."""
        taken = list(inspect.signature(loaded.forward).parameters.values())[isinstance(loaded, type) :]
        first = taken[0] if taken and taken[0].kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD else None
        if first is None or set(_required(taken)) - {first.name}:
            problem = f"the forward of {self.name} takes {', '.join(map(str, taken)) or 'nothing'}, not one argument"
            raise SettingsError("model.signature", "", problem, f"write forward(x) or forward(batch) ({PAGE})")
        kind = getattr(first.annotation, "__name__", str(first.annotation))
        return first.name == "batch" or kind.rpartition(".")[2] == "Batch"

    def build(self, network: Any, model: Any, pooling: Any) -> Any:
        """Build a class as ``Model`` does, a plain class without arguments; copy an instance with its weights."""
        loaded = self.load()
        if not isinstance(loaded, type):
            return copy.deepcopy(loaded)
        takes_sizes = self.reads_batch(loaded) and inspect.signature(loaded).parameters
        return super().build(network, model, pooling) if takes_sizes else loaded()

    def arguments(self, built: Any, settings: Collection[str]) -> list[str]:
        """Return settings in the signature of built, the class. Raises SettingsError for other required arguments."""
        if not isinstance(built, type) or not self.reads_batch(built):
            return []
        taken = list(inspect.signature(built).parameters.values())[1:]  # after the data spec
        if foreign := [name for name in _required(taken) if name not in settings]:
            problem = f"model.kind {self.name} takes {', '.join(foreign)}, which model settings lack"
            remedy = f"give the argument a default, or use {', '.join(settings)} ({PAGE})"
            raise SettingsError("model.asks", "", problem, remedy)
        return [item.name for item in taken if item.name in settings]


def find_model(name: str) -> Model:
    """Return the description of a model kind by name; a custom class counts as a model with weights per sensor."""
    return MODELS.get(name) or CustomModel(name, "a model of your own", name, sensor_tables=True)


def name_model(model: Any) -> Any:
    """Return ``module:Class`` for a user's class or instance, known from now on; return any other model unchanged."""
    if _is_module(model):
        KNOWN[name := _class_name(model)] = model
        return name
    if isinstance(model, str) and CUSTOM.fullmatch(model):
        KNOWN.setdefault(model, None)
    return model


def stands_for(name: str, trained: str) -> bool:
    """Return whether a user's model has the class that a run was trained with, and know it by that name then.

    A class from a notebook may have moved into a file; a file may name an instance.
    """
    if trained in MODELS:
        return False
    named, (module, _, kind) = _class_name(loaded := find_model(name).load()), trained.partition(":")
    same = named == trained or (module == NOTEBOOK and named.endswith(f":{kind}"))
    if same:
        KNOWN[trained] = loaded
    return same


def _is_module(value: Any) -> bool:
    """Return whether a value is a torch module, as a class or an instance; torch is loaded if there is one."""
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(value if isinstance(value, type) else type(value), torch.nn.Module)


def _class_name(model: Any) -> str:
    kind = model if isinstance(model, type) else type(model)
    return f"{kind.__module__}:{kind.__name__}"


def _required(taken: Collection[inspect.Parameter]) -> list[str]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [item.name for item in taken if item.default is item.empty and item.kind not in variable]


def _table(*kinds: Kind) -> dict[str, Any]:
    return {kind.name: kind for kind in kinds}


MODELS: dict[str, Model] = _table(
    Model(
        "social",
        "one shared encoder and social pooling",
        "socialx.model.forecaster:Forecaster",
        social=True,
        sensor_tables=("sensor_embedding", "per_sensor_output"),
    ),
    Model("linear", "one linear map from lookback to horizon", "socialx.model.plain:Linear", reads=()),
    Model(
        "lstm",
        "one LSTM of the values, shared by all sensors",
        "socialx.model.plain:SharedLstm",
        reads=("width", "blocks", "dropout"),
    ),
    Model(
        "stid",
        "a vector per sensor and time, and an MLP",
        "socialx.model.plain:Stid",
        reads=("width", "dropout"),
        sensor_tables=True,
    ),
)

ENCODERS: dict[str, Kind] = _table(
    Kind("xlstm", "the shared xLSTM", ignores=("model.mlp_width",)),
    Kind(
        "mlp",
        "an MLP of the flattened window",
        ignores=tuple(
            f"model.{name}" for name in ("blocks", "slstm_at", "backend", "encoder_batch", "activation_checkpointing")
        ),
    ),
)

NEIGHBOURS = ("pooling.neighbours", "pooling.max_distance_km", "pooling.distances", "pooling.require_locations")
_LOGITS = ("pooling.use_positional", "pooling.adaptive_adjacency_rank")
POOLINGS: dict[str, Kind] = _table(
    Kind("attention", "weights by dot products", "socialx.model.pooling:DotAttention"),
    Kind("attention_mlp", "weights by a small network", "socialx.model.pooling:MlpAttention"),
    Kind("mean", "the mean of the neighbours", "socialx.model.pooling:Mean", ignores=_LOGITS),
    Kind("weighted_mean", "weights by distance and offset", "socialx.model.pooling:WeightedMean"),
    Kind("max", "the largest value", "socialx.model.pooling:Max", ignores=_LOGITS),
    Kind(
        "self_only",
        "the same layers over the sensor itself only, for comparison",
        "socialx.model.pooling:DotAttention",
        ignores=(*NEIGHBOURS, "pooling.adaptive_adjacency_rank"),
    ),
    Kind("none", "no social layers"),
)
