"""Kinds of model, encoder and pooling: description, class and settings in use.

Choices, help, notes and ``build`` all read these rows. A new kind is a class in ``socialx.model`` plus one row, or a
custom class named as ``package.module:Class``. Runs without torch, so that ``--help`` stays quick.
"""

from __future__ import annotations

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
        if self.path is None:
            raise ValueError(f"{self.name} has no class to build")
        module, _, name = self.path.partition(":")
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
            problem = f"the model cannot be built: {error}"
            raise SettingsError("model.sizes", "", problem, f"change {sizes}") from None


@dataclass(frozen=True)
class CustomModel(Model):
    """Custom class: an ``nn.Module`` that takes a ``DataSpec``, and settings by name."""

    def load(self) -> Any:
        """Import the class from the module path or the current folder. Raises SettingsError for an unsuitable name."""
        from torch import nn

        if (folder := str(Path.cwd())) not in sys.path:
            sys.path.append(folder)
        try:
            model_class = super().load()
        except (ImportError, AttributeError, SyntaxError) as error:
            remedy = "check the name; the module must be on PYTHONPATH or in the current folder"
            raise SettingsError(
                "model.import", "", f"model.kind {self.name} cannot be imported ({error})", remedy
            ) from None
        if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
            raise SettingsError(
                "model.no-module",
                "",
                f"model.kind {self.name} must be a subclass of torch.nn.Module",
                "name a subclass",
            )
        return model_class

    def arguments(self, built: Any, settings: Collection[str]) -> list[str]:
        """Return settings in the signature of built, the class. Raises SettingsError for other required arguments."""
        taken = list(inspect.signature(built).parameters.values())[1:]  # after the data spec
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        required = [item.name for item in taken if item.default is item.empty and item.kind not in variable]
        if foreign := [name for name in required if name not in settings]:
            problem = f"model.kind {self.name} takes {', '.join(foreign)}, which model settings lack"
            raise SettingsError("model.asks", "", problem, f"give the argument a default, or use {', '.join(settings)}")
        return [item.name for item in taken if item.name in settings]


def find_model(name: str) -> Model:
    """Return the description of a model kind by name; a custom class counts as a model with weights per sensor."""
    return MODELS.get(name) or CustomModel(name, "a model of your own", name, sensor_tables=True)


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
