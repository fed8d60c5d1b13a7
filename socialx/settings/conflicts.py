"""Settings that conflict or have no effect. Runs without torch, so that ``--help`` stays quick."""

from __future__ import annotations

from socialx.core.errors import Argument, SettingsError, counted
from socialx.settings.kinds import ENCODERS, NEIGHBOURS, POOLINGS, CustomModel, find_model
from socialx.settings.schema import HEADS, ModelSettings, PoolingSettings, Settings

PER_SENSOR = ("model.sensor_embedding", "model.per_sensor_output", "pooling.adaptive_adjacency_rank")


def idle_settings(settings: Settings) -> set[str]:
    """Return model and pooling keys without effect on the chosen model, for a message to the user.

    A custom class is imported for its signature; neighbour settings count as used, since only the code shows their use.
    """
    model = {f"model.{name}" for name in ModelSettings.model_fields}
    pooling = {f"pooling.{name}" for name in PoolingSettings.model_fields}
    kind = find_model(settings.model.kind)
    if isinstance(kind, CustomModel):
        fields = [name for name in ModelSettings.model_fields if name != "kind"]
        taken = kind.arguments(kind.load(), fields)
        return {f"model.{name}" for name in fields if name not in taken} | (pooling - set(NEIGHBOURS))
    if not kind.social:
        return (model | pooling) - {f"model.{name}" for name in ("kind", *(kind.reads or ()))}
    pools = POOLINGS[settings.pooling.kind]
    ineffective = {*ENCODERS[settings.model.encoder].ignores, *pools.ignores}
    if settings.model.zero_shot:
        ineffective |= set(PER_SENSOR)
    if pools.path is None:
        ineffective |= pooling - {"pooling.kind"}
    if settings.pooling.mask_mode == "hard":
        ineffective |= {"pooling.learnable_radius"}
    return ineffective


def sensor_tables(settings: Settings) -> bool:
    """Return whether the model has weights per sensor, which fit a single sensor network."""
    tables = find_model(settings.model.kind).sensor_tables
    if isinstance(tables, bool):
        return tables
    if settings.model.zero_shot:
        return False
    unused = idle_settings(settings)
    pairs = settings.pooling.adaptive_adjacency_rank > 0 and "pooling.adaptive_adjacency_rank" not in unused
    return pairs or any(getattr(settings.model, name) for name in tables)


def takes_new_sensors(settings: Settings) -> bool:
    """Return whether a run forecasts sensors absent from training: sensor dropout trained the weights per sensor."""
    return settings.model.sensor_dropout > 0 and find_model(settings.model.kind).social and sensor_tables(settings)


def refuse_conflicts(settings: Settings, finer: int = 1) -> None:
    """Raise SettingsError for settings that exclude each other; finer: model steps in a step of the file."""
    model, pooling, lookback = settings.model, settings.pooling, finer * settings.data.lookback
    also, social = Argument("data.extra_data"), find_model(model.kind).social
    if settings.data.extra_data and not model.zero_shot:
        problem = f"a model with weights per sensor learns from one network, and {also} adds others"
        raise SettingsError("settings.conflict", "", problem, f"add {Argument('model.zero_shot', True)}")
    if settings.data.extra_data and settings.trainer.teacher:
        problem = f"{Argument('trainer.teacher')} forecasts one network, and {also} adds others"
        raise SettingsError("settings.conflict", "", problem, f"drop {also}")
    if social and lookback % model.patch:
        fit = [steps for steps in range(1, lookback + 1) if lookback % steps == 0]
        below = max(steps for steps in fit if steps < model.patch)
        listed = ", ".join(map(str, fit[:-1])) + f" or {lookback}" if lookback > 1 else "1"
        steps = f"{counted(lookback, 'step')} ({listed} would)"
        problem = f"model.patch {model.patch} does not divide the lookback of {steps}"
        remedy = f"use {Argument('model.patch', below)}, or another {Argument('data.lookback')}"
        raise SettingsError("settings.conflict", "", problem, remedy)
    if social and POOLINGS[pooling.kind].path is not None and model.width % HEADS:
        problem = f"model.width {model.width} must be a multiple of the {HEADS} heads in a social layer"
        remedy = f"use {Argument('model.width', model.width + -model.width % HEADS)}"
        raise SettingsError("settings.conflict", "", problem, remedy)


def pooling_in_effect(settings: Settings) -> PoolingSettings:
    """Return the section ``pooling`` with what has no effect on the model switched off."""
    off = {"distances": None, "use_positional": False, "adaptive_adjacency_rank": 0}
    idle = idle_settings(settings)
    return settings.pooling.model_copy(update={name: value for name, value in off.items() if f"pooling.{name}" in idle})
