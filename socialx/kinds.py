"""The kinds of model, encoder and pooling: what each is, where its class stands, and which settings it reads.

Everything that the tool says about a kind comes from here: the choices and help of its setting, the note about settings
without effect, and what ``build`` makes.  A new kind is a class in a module of ``socialx.model`` and one row here.
torch is not imported, so that ``--help`` stays quick.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One choice of a setting.

    path: module and name of the class that ``build`` calls; None where there is nothing to build.  reads: the settings
    of its section that it takes, as keyword arguments of these names; None: all.  ignores: settings that have no effect
    with it.
    """

    name: str
    what: str
    path: str | None = None
    reads: tuple[str, ...] | None = None
    ignores: tuple[str, ...] = ()

    def load(self) -> Any:
        """The class, imported when it is asked for."""
        if self.path is None:
            raise ValueError(f"{self.name}: there is nothing to build")
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)


@dataclass(frozen=True)
class Model(Kind):
    """A model.  social: it has tokens, an encoder and social layers.

    sensor_tables: the settings any of which gives it weights of its own per sensor; True: it always has some.
    """

    social: bool = False
    sensor_tables: tuple[str, ...] | bool = False


def _table(*kinds: Kind) -> dict[str, Any]:
    return {kind.name: kind for kind in kinds}


MODELS: dict[str, Model] = _table(
    Model(
        "xlstm",
        "the shared social xLSTM",
        "socialx.model.forecaster:social_forecaster",
        social=True,
        sensor_tables=("sensor_identity", "adaptive", "sensor_heads"),
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
    Kind("xlstm", "the shared xLSTM", "socialx.model.xlstm.encoder:SharedEncoder"),
    Kind(
        "mlp",
        "an MLP of the flattened window with as many parameters",
        "socialx.model.plain:WindowMlp",
        ignores=("model.impl", "model.chunk", "model.checkpointing"),
    ),
)

_NEIGHBOURS = ("pooling.neighbours", "pooling.reach_km", "pooling.distances", "pooling.strict")
_LOGITS = ("pooling.use_positional", "pooling.pair_rank")
POOLINGS: dict[str, Kind] = _table(
    Kind("attention", "weights by dot products", "socialx.model.pooling:DotAttention"),
    Kind("attention_mlp", "weights by a small network", "socialx.model.pooling:MlpAttention"),
    Kind("mean", "the mean of the neighbours", "socialx.model.pooling:Mean", ignores=_LOGITS),
    Kind("weighted_mean", "weights by distance and offset", "socialx.model.pooling:WeightedMean"),
    Kind("max", "the largest value", "socialx.model.pooling:Max", ignores=_LOGITS),
    Kind(
        "own",
        "the same layers over the sensor itself only, for comparison",
        "socialx.model.pooling:DotAttention",
        ignores=(*_NEIGHBOURS, "pooling.pair_rank"),
    ),
    Kind("none", "no social layers"),
)
