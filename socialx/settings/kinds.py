"""The kinds of model, encoder and pooling: what each is, where its class stands, and which settings it reads.

Everything that the tool says about a kind comes from here: the choices and help of its setting, the note about settings
without effect, and what ``build`` makes.  A new kind is a class in a module of ``socialx.model`` and one row here,
or a class of the user's own, named as ``package.module:Class``.  torch is not imported, so that ``--help`` stays quick.
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

from socialx.core.errors import SettingsError

CUSTOM = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")  # the name of a class that is not of socialx


@dataclass(frozen=True)
class Kind:
    """One choice of a setting.

    path: module and name of the class that ``build`` calls; None where there is nothing to build.  reads: the settings
    of its section that it takes, as keyword arguments of these names; None: all.  ignores: settings that have no effect
    with it.
    """

    name: str
    description: str
    path: str | None = None
    reads: tuple[str, ...] | None = None
    ignores: tuple[str, ...] = ()

    def load(self) -> Any:
        """The class, imported when it is asked for."""
        if self.path is None:
            raise ValueError(f"{self.name}: there is nothing to build")
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)

    def arguments(self, built: Any, settings: Collection[str]) -> list[str]:
        """Which of these settings of its section the class takes."""
        return [name for name in settings if self.reads is None or name in self.reads]


@dataclass(frozen=True)
class Model(Kind):
    """A model.  social: it has tokens, an encoder and social layers.

    sensor_tables: the settings any of which gives it weights of its own per sensor; True: it always has some.
    """

    social: bool = False
    sensor_tables: tuple[str, ...] | bool = False


@dataclass(frozen=True)
class CustomModel(Model):
    """A class of the user's own: an ``nn.Module`` that takes a ``DataSpec``, and settings by their names."""

    def load(self) -> Any:
        """The class, from the module path or the current folder.  Raises SettingsError where it is none."""
        from torch import nn

        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        try:
            model_class = super().load()
        except (ImportError, AttributeError, SyntaxError) as error:
            helps = "check the name; modules are looked for on PYTHONPATH and in the current folder"
            raise SettingsError(f"model.kind {self.name}", f"cannot be imported ({error})", helps) from None
        if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
            raise SettingsError(f"model.kind {self.name}", "no class of torch.nn.Module", "name a class that is one")
        return model_class

    def arguments(self, built: Any, settings: Collection[str]) -> list[str]:
        """Those that its signature names.  Raises SettingsError for an argument without default that is no setting."""
        taken = list(inspect.signature(built).parameters.values())[1:]  # after the network
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        required = [
            parameter.name
            for parameter in taken
            if parameter.default is parameter.empty and parameter.kind not in variable
        ]
        if foreign := [name for name in required if name not in settings]:
            reason = f"takes {', '.join(foreign)}, which is no setting of the model"
            raise SettingsError(f"model.kind {self.name}", reason, f"give it a default, or use {', '.join(settings)}")
        return [parameter.name for parameter in taken if parameter.name in settings]


def find_model(name: str) -> Model:
    """The row of a model; of a class of the user's own a new one, tied to its network: it may have tables of it."""
    return MODELS.get(name) or CustomModel(name, "a model of your own", name, sensor_tables=True)


def _table(*kinds: Kind) -> dict[str, Any]:
    return {kind.name: kind for kind in kinds}


MODELS: dict[str, Model] = _table(
    Model(
        "social",
        "one shared encoder and social pooling",
        "socialx.model.forecaster:social_forecaster",
        social=True,
        sensor_tables=("sensor_embedding", "per_sensor_output"),
    ),
    Model("linear", "one linear map from history to horizon", "socialx.model.plain:Linear", reads=()),
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
    Kind("xlstm", "the shared xLSTM", "socialx.model.xlstm.encoder:SharedEncoder", ignores=("model.mlp_width",)),
    Kind(
        "mlp",
        "an MLP of the flattened window",
        "socialx.model.plain:WindowMlp",
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
