"""Settings tree shared by all commands: data, loader, model, pooling, trainer, profile.

Sections are frozen and refuse unknown keys. A field has default, help and limits; the tables below the tree say which
commands have a flag for a setting and when its value may differ from training. Lightning's settings keep Lightning's
names. ``model`` and ``data`` take frozen sections; only ``layers``, ``tasks`` and ``cli`` read the
whole tree. The defaults equal ``--preset xlstm-small``. Runs without torch, so that ``--help`` stays quick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from socialx.core.notebook import names_in, near_name
from socialx.settings.kinds import CUSTOM, ENCODERS, MODELS, POOLINGS, Kind


def setting(default: Any, description: str, panel: str = "", **limits: Any) -> Any:
    """Return a field with help text and pydantic limits. panel: heading in a command's help, if not its section's."""
    return Field(default, description=description, json_schema_extra={"panel": panel}, **limits)


_hardware = partial(setting, panel="Hardware")


def _split_commas(value: Any) -> Any:
    """Split ``"1,3"`` from a command line or the environment into ``["1", "3"]``; empty text gives an empty list."""
    return names_in(value) if isinstance(value, str) else value


def _refuse_duplicates(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names unchanged. Raises ValueError for a repeated name, since scores are keyed by name."""
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise ValueError(f"{twice[0]} is named twice")
    return names


def _choice(kinds: Collection[str], custom: bool = False) -> AfterValidator:
    """Return a validator for names in ``kinds``, in pydantic's wording; custom: accept ``package.module:Class`` too."""

    def check(name: str) -> str:
        if name not in kinds and not (custom and CUSTOM.fullmatch(name)):
            *first, last = (*(repr(kind) for kind in kinds), *(["package.module:Class"] if custom else []))
            raise ValueError(f"Input should be {', '.join(first)} or {last}")
        return name

    return AfterValidator(check)


def _kinds(table: Mapping[str, Kind]) -> str:
    return "; ".join(f"{kind.name}: {kind.description}" for kind in table.values())


Positions = Annotated[tuple[int, ...], BeforeValidator(_split_commas)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_commas), AfterValidator(_refuse_duplicates)]


MOST_STEPS = 288  # that a model reads or forecasts: a day of five minutes
SLSTM_AT = (1, 3)  # as far as there are blocks
HEADS = 4  # of every xLSTM block and every social layer
LAYERS = 2  # social layers, one after the other
TEACHER_WEIGHT = 0.5  # share of the loss that compares with the teachers


class Section(BaseModel):
    """Frozen section; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSettings(Section):
    """Data file, and the split into windows."""

    path: Path | None = setting(None, "HDF5 file that convert wrote")
    extra_data: Annotated[tuple[Path, ...], BeforeValidator(_split_commas)] = setting(
        (), "files of other networks that a zero-shot model learns from too, in turn"
    )
    targets: Names = setting(("avg_speed",), "features of the file to forecast", min_length=1)
    inputs: Names | None = setting(None, "features that the model reads; not set: the targets", min_length=1)
    days: int | None = setting(None, "use only the first N days of the file; not set: all of it", ge=1)
    lookback: int = setting(12, "time steps that the model reads", ge=1, le=MOST_STEPS)
    horizon: int = setting(12, "time steps that the model forecasts", ge=1, le=MOST_STEPS)
    holidays: str | None = setting(
        None,
        "days with the traffic of another weekday: public holidays of a country or region, such as US-CA, which "
        "resemble Sundays; or a CSV file of dates and weekdays. Not set: none",
    )
    split_method: Literal["canonical", "strict"] = setting(
        "canonical",
        "canonical: cut windows, then split them 70/10/20 as the papers do; strict: split the rows first, so that no "
        "window crosses a border",
    )


class LoaderSettings(Section):
    """Loader, which turns windows into batches."""

    batch_size: int = setting(16, "windows per batch, each of all sensors", ge=1)
    mode: Literal["auto", "on_device", "sharded", "workers"] = setting(
        "auto",
        "on_device: the whole series on the device; sharded: a shard of it there, the next one read meanwhile; "
        "workers: processes make batches; auto: on_device where the series fits into half of the free memory, else "
        "sharded",
    )
    shard_gb: float | None = setting(
        None,
        "GiB of a shard, up to three of which are on the device; at least 1,020 windows. The shuffled order is made of "
        "shards, in every mode. Not set: an eighth of the free memory, on a CPU at most 0.125; on_device: no shards",
        gt=0,
    )
    num_workers: int | None = setting(
        None, "processes of mode workers; not set: one less than there are CPUs, at most 8", ge=0, le=256
    )
    prefetch_factor: int = setting(2, "batches that each worker makes ahead", ge=1)
    pin_memory: bool = setting(True, "workers hand CUDA devices batches in pinned memory")


class ModelSettings(Section):
    """Model: shared xLSTM encoder and token embeddings, or a plain model for comparison."""

    @model_validator(mode="before")
    @classmethod
    def _slstm_within_the_blocks(cls, values: Any) -> Any:
        """Limit the default sLSTM positions to the number of blocks."""
        if not isinstance(values, dict) or "slstm_at" in values or not str(values.get("blocks", "")).isdecimal():
            return values
        return {**values, "slstm_at": tuple(index for index in SLSTM_AT if index < int(values["blocks"]))}

    kind: Annotated[str, _choice(MODELS, custom=True)] = setting(
        "social",
        f"{_kinds(MODELS)}. Only the first uses neighbours. package.module:Class: a class of your own, which every "
        "command that uses its run must name",
    )
    encoder: Annotated[str, _choice(ENCODERS)] = setting("xlstm", _kinds(ENCODERS))
    patch: int = setting(6, "steps of the lookback in one token, a divisor of the lookback", ge=1, le=MOST_STEPS)
    width: int = setting(64, f"embedding width E, a multiple of the {HEADS} heads", ge=8, le=2048)
    mlp_width: int = setting(76, "units of the hidden layer of encoder mlp", ge=1, le=65536)
    blocks: int = setting(2, "xLSTM blocks in the stack", ge=1, le=64)
    slstm_at: Positions = setting(
        (1,), "which blocks are sLSTM, from 0; the others are mLSTM. Not set: 1 and 3, as far as there are"
    )
    dropout: float = setting(0.0, "dropout of the encoder and of the social layers", ge=0, lt=1)
    backend: Literal["auto", "fused", "reference"] = setting(
        "auto",
        "implementation of the encoder, of the same function. auto: fused, the faster one; reference: the forward pass "
        "of the xlstm package",
    )
    encoder_batch: int | None = setting(
        None,
        "sequences that the encoder processes at once. Not set: 384 times the patch on a CPU, all on CUDA. On CUDA a "
        "smaller number saves memory and costs one extra forward pass",
        ge=1,
    )
    activation_checkpointing: bool = setting(
        False,
        "keep only the inputs of blocks and social layers for the backward pass, which then runs each a second time",
    )
    sensor_embedding: bool = setting(
        True, "learn vectors per sensor, and per sensor and token; turn it off to forecast an unseen network"
    )
    per_sensor_output: bool = setting(False, "learn a last layer per sensor on top of the shared one")
    sensor_dropout: float = setting(
        0.0,
        "leave out the weights of single sensors, for this share of sensors in each step; with 0.2 the run also "
        "forecasts sensors that are new to it",
        ge=0,
        lt=1,
    )
    zero_shot: bool = setting(
        False, "forecast networks that training does not see: no weights per sensor or time, and context of any length"
    )
    climatology: bool = setting(
        True,
        "read the climatology, the mean of each sensor at each time of the week, from the days before",
    )


class PoolingSettings(Section):
    """Social pooling over neighbours."""

    kind: Annotated[str, _choice(POOLINGS)] = setting("attention", _kinds(POOLINGS))
    neighbours: int | None = setting(64, "use the K nearest sensors; an empty value: all within reach", ge=1)
    max_distance_km: float | None = setting(None, "use no sensor that is farther away; not set: no limit", gt=0)
    distances: Path | None = setting(
        None,
        "CSV of from,to,cost with road distances in metres, or a square matrix of them, in place of straight distances",
    )
    gate_radius_km: float = setting(5.0, "distance at which the attention gate starts at one half", gt=0, le=1000)
    learnable_radius: bool = setting(True, "train the gate radius and the gate width")
    mask_mode: Literal["soft", "hard"] = setting(
        "soft", "soft: weights fall around the radius; hard: no weight beyond it, and no training of it"
    )
    use_positional: bool = setting(True, "let the weights depend on the offset (east, north) too")
    adaptive_adjacency_rank: int = setting(
        10,
        "rank of a trained bias of every directed pair of sensors, which ties the model to its network; 0: none",
        ge=0,
        le=256,
    )
    require_locations: bool = setting(
        True, "refuse a file in which sensors have no position; off: those sensors use no neighbours, with a warning"
    )


def _on_or_off(value: Any) -> Any:
    """Map YAML's bare ``on`` and ``off``, read as booleans, back to text."""
    return ("off", "on")[value] if isinstance(value, bool) else value


# A run, as a folder or as the value that ``train`` returned, as text.
RunName = Annotated[str | None, BeforeValidator(lambda value: None if value is None else str(value))]


class TrainerSettings(Section):
    """Optimisation, and the machine that trains or forecasts."""

    precision: Literal["auto", "32-true", "16-mixed", "bf16-mixed"] = _hardware(
        "auto", "auto: for training bf16-mixed on CUDA and 32-true on a CPU, for scores and forecasts 32-true"
    )
    device: str = _hardware("auto", "auto, cpu, cuda, or one GPU such as cuda:1", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    threads: int | None = _hardware(
        None,
        "threads of tensor operations on a CPU; not set: $OMP_NUM_THREADS, or as many as there are cores",
        ge=1,
        le=1024,
    )
    float32_matmul_precision: Literal["highest", "high", "medium"] = setting(
        "high", "float32 matrix products on CUDA; high is TF32; scores and forecasts use highest"
    )
    compile: Annotated[Literal["auto", "off", "default", "max-autotune"], BeforeValidator(_on_or_off)] = _hardware(
        "auto", "torch.compile of the training step; auto: on CUDA, for 40,000 steps or more; a failure is a warning"
    )
    cuda_graph: Annotated[Literal["auto", "on", "off"], BeforeValidator(_on_or_off)] = _hardware(
        "auto", "record the training step as a CUDA graph and replay it; auto: on CUDA, for a model of socialx"
    )
    max_epochs: int = setting(5, "epochs after which the schedule ends; early stopping may end before", ge=1)
    learning_rate: float = setting(2e-3, "peak learning rate of AdamW", gt=0)
    weight_decay: float = setting(0.1, "weight decay of AdamW", ge=0)
    lr_warmup_steps: int = setting(100, "optimizer steps of linear warm-up", ge=0)
    gradient_clip_val: float = setting(5.0, "largest gradient norm; 0: no clipping", ge=0)
    accumulate_grad_batches: int = setting(1, "batches per optimizer step", ge=1)
    patience: int = setting(10, "epochs without a better validation MAE before training stops", ge=1)
    seed: int = setting(0, "seed of weights, order and dropout", ge=0, lt=2**32)
    log_every_n_steps: int = setting(
        50, "steps between two readings of the loss; each reading waits for the device", ge=1
    )
    loggers: Annotated[tuple[Literal["tensorboard", "wandb", "mlflow"], ...], BeforeValidator(_split_commas)] = setting(
        (), "send epochs to tensorboard, wandb or mlflow, in addition to metrics.jsonl and metrics.csv", "Output"
    )
    init_from: RunName = setting(
        None, "run whose weights, model settings and units this training starts from; not set: fresh weights", "Model"
    )
    teacher: Names = setting(
        (), "runs on the same data whose mean forecast the model learns to repeat, in addition to the target"
    )
    run_dir: Path | None = setting(None, "run folder; not set: runs/DATASET-DATE-TIME", "Output")


class ProfileSettings(Section):
    """Length and content of a profile, which times training steps."""

    steps: int = setting(200, "measured training steps", ge=2)
    warmup_steps: int = setting(10, "steps before the measurement", ge=0)
    max_seconds: float = setting(
        30.0, "seconds after which one process on its own ends the measurement, with at least 8 steps", gt=0
    )
    trace_steps: int = setting(
        8, "steps under a trace after it, of kernels on CUDA, of operators on a CPU, at most 2 there; 0: none", ge=0
    )
    trials: bool = setting(True, "try other numbers of threads and larger batches for a few steps")


class Settings(Section):
    """All settings for a run, by section."""

    data: DataSettings = DataSettings()
    loader: LoaderSettings = LoaderSettings()
    model: ModelSettings = ModelSettings()
    pooling: PoolingSettings = PoolingSettings()
    trainer: TrainerSettings = TrainerSettings()
    profile: ProfileSettings = ProfileSettings()


# Every setting by its dotted key, in the order of the tree.
KEYS: dict[str, FieldInfo] = {
    f"{section}.{name}": field
    for section, holder in Settings.model_fields.items()
    for name, field in cast(type[Section], holder.annotation).model_fields.items()
}
# Those that name a file or a folder.
FILES = tuple(key for key, field in KEYS.items() if Path in (field.annotation, *get_args(field.annotation)))
UNPROFILED = tuple(key for key in KEYS if not key.startswith("profile."))
_NAMES = Counter(key.split(".")[1] for key in KEYS)
# Those whose own name is that of no other one, by it.
BY_NAME = {key.split(".")[1]: key for key in KEYS if _NAMES[key.split(".")[1]] == 1}
# Where they are no Literal.
CHOICES: dict[str, Mapping[str, Kind]] = {"model.kind": MODELS, "model.encoder": ENCODERS, "pooling.kind": POOLINGS}


def _keys(**sections: str) -> tuple[str, ...]:
    """Return dotted keys in tree order. sections: names separated by spaces, as in ``data="path days"``; ``*``: all."""
    named = {section: names.split() for section, names in sections.items()}
    return tuple(key for key in KEYS if {key.split(".")[1], "*"} & set(named.get(key.split(".")[0], ())))


# What decides which windows are scored.
SCORED = _keys(data="path targets inputs days lookback horizon split_method")
# Weights that were trained with one value of these fit no other.
WEIGHTS = _keys(
    data="targets inputs lookback horizon",
    model="kind encoder patch width mlp_width blocks slstm_at climatology",
    pooling="kind gate_radius_km use_positional",
)
# What may differ from the settings that a run was trained with, when it goes on and when it is scored or forecasts.
RESUME, SCORING = "resume", "scoring"
_MACHINE = {
    "loader": "mode num_workers prefetch_factor pin_memory",
    "model": "backend encoder_batch activation_checkpointing",
}
_LENGTH = "compile cuda_graph max_epochs patience log_every_n_steps loggers teacher"
MUTABLE = {
    RESUME: _keys(
        data="path extra_data", pooling="distances", trainer=f"device threads {_LENGTH}", profile="*", **_MACHINE
    ),
    SCORING: _keys(
        data="path extra_data holidays",
        loader=f"batch_size shard_gb {_MACHINE['loader']}",
        model=_MACHINE["model"],
        pooling="distances require_locations",
        trainer="precision device threads float32_matmul_precision",
        profile="*",
    ),
}
# The flags of settings that ``--help`` shows; ``--help-all`` shows all.
SHORT = _keys(
    data="path days",
    loader="batch_size",
    model="encoder width blocks zero_shot",
    pooling="neighbours",
    trainer="precision device max_epochs learning_rate seed init_from run_dir",
)
# The settings that have a flag, by command: those that it reads.  Of how a machine scores, ``--set`` says the rest.
_STEP = "precision device threads compile cuda_graph gradient_clip_val accumulate_grad_batches"
_OF_RUN = {"data": "path holidays", "model": "kind"}
_SCORING = {"loader": "batch_size", "trainer": "precision device", "pooling": "distances require_locations", **_OF_RUN}
# Those that few change have no flag anywhere.
_BY_SET = _keys(
    loader="prefetch_factor pin_memory",
    model="mlp_width slstm_at",
    pooling="learnable_radius mask_mode use_positional adaptive_adjacency_rank",
    trainer="float32_matmul_precision",
)
_SHOWN = {
    "config": tuple(key for key in SHORT if key not in ("trainer.init_from", "trainer.run_dir")),
    "train": _keys(data="*", loader="*", model="*", pooling="*", trainer="*"),
    "profile": _keys(
        data="path targets inputs days lookback horizon holidays split_method",
        loader="*",
        model="*",
        pooling="*",
        trainer=f"{_STEP} seed log_every_n_steps",
        profile="*",
    ),
    "evaluate": _keys(**{**_SCORING, "data": "path targets inputs days lookback horizon holidays split_method"}),
    **dict.fromkeys(("explain", "calibrate", "report", "predict"), _keys(**_SCORING)),
    "export": _keys(pooling="distances require_locations", **_OF_RUN),
    "serve": _keys(loader="batch_size", trainer="precision device", **_OF_RUN),
    "doctor": _keys(data="path", model="kind backend", trainer="precision device"),
}
FLAGGED = frozenset(key for keys in _SHOWN.values() for key in keys) - set(_BY_SET)
_FLAGS = {"data.path": "data", "model.kind": "model", "pooling.kind": "pooling"}


def flag_keys(command: str) -> tuple[str, ...]:
    """Return the settings with a flag in this command; ``--set`` takes every setting."""
    return tuple(key for key in _SHOWN.get(command, ()) if key in FLAGGED)


def flag_name(key: str) -> str:
    """Return the flag for a setting: its own name if unique in the tree, else ``--section-name``."""
    name = key.split(".")[1]
    flag = _FLAGS.get(key, name if name in BY_NAME else key)
    return "--" + flag.replace("_", "-").replace(".", "-")


# Words of other tools for settings and for arguments of tasks: of what a command or a task offers, the last one counts.
WORDS = {
    "trainer.learning_rate": "lr max_lr base_lr",
    "trainer.lr_warmup_steps": "warmup warmup_epochs num_warmup_steps warmup_iters",
    "trainer.max_epochs": "epochs num_epochs n_epochs train_epochs epoch num_train_epochs",
    "trainer.compile": "torch_compile jit use_compile",
    "trainer.seed": "random_state random_seed manual_seed seed_everything",
    "trainer.weight_decay": "wd l2",
    "trainer.gradient_clip_val": "clip grad_clip clip_grad clip_norm grad_clip_norm max_norm max_grad_norm",
    "trainer.accumulate_grad_batches": "gradient_accumulation_steps grad_accum accumulation_steps accum_iter",
    "trainer.patience": "early_stopping early_stop early_stopping_patience",
    "trainer.device": "gpu gpus cuda cpu accelerator no_cuda use_cuda use_gpu gpu_id",
    "trainer.precision": "amp fp16 bf16 half use_amp mixed_precision dtype",
    "trainer.loggers": "logger logger_name wandb tensorboard mlflow use_wandb wandb_project",
    "trainer.log_every_n_steps": "log_interval print_freq log_every log_steps logging_steps",
    "trainer.init_from": "pretrained from_pretrained finetune checkpoint load_checkpoint initial_checkpoint_dir",
    "trainer.run_dir": "output_dir out_dir save_dir log_dir default_root_dir save_path name run_name exp_name",
    "loader.batch_size": "batch bs global_batch_size micro_batch_size train_batch_size per_device_train_batch_size "
    "val_batch_size test_batch_size eval_batch_size",
    "loader.num_workers": "workers n_workers",
    "model.kind": "arch architecture model_name model_type",
    "model.dropout": "dropout_rate drop p_drop dropout_p",
    "model.width": "hidden_size hidden_dim hidden_units hidden embedding_dim embed_dim d_model n_embd nhid",
    "model.blocks": "num_layers num_blocks n_layers n_layer nlayers layers depth",
    "model.activation_checkpointing": "gradient_checkpointing",
    "pooling.neighbours": "neighbors num_neighbors k top_k",
    "data.lookback": "seq_len seq_length sequence_length history history_len input_len input_size context_length",
    "data.horizon": "pred_len prediction_length output_len out_len forecast_horizon",
    "data.path": "dataset dataset_name data_path data_dir data_root data_file root_path input csv file filename",
    "data.split_method": "split_ratio train_ratio val_ratio test_ratio train_val_test_ratio",
    "pooling.distances": "adj adj_mx adjacency adjacency_matrix graph graph_pkl adj_path",
    "settings": "config cfg config_file",
    "config": "settings cfg config_file",
    "resume": "ckpt ckpt_path resume_from_checkpoint resume_from",
    "devices": "gpus num_gpus n_gpus ngpus num_devices nproc_per_node world_size strategy ddp",
    "output": "latex to_latex csv out out_file save_to output_file output_path",
    "run": "ckpt checkpoint model_path weights",
    "at": "timestamp issue_time t0 origin time date when",
    "interval": "confidence quantiles quantile level alpha",
    "baselines": "baseline reference references",
    "below": "threshold",
    "by": "group_by groupby",
    "compare": "significance p_value difference",
    "forecasts": "forecast predictions preds y_pred",
    "sensors": "sensor nodes ids columns",
    "horizon": "h n_steps ahead",
    "progress": "callback callbacks progress_bar",
    "": "heads num_heads horizons",  # near other names, but without a counterpart
}


def near_argument(name: str, arguments: Collection[str] = (), settings: Collection[str] = tuple(KEYS)) -> str:
    """Return the argument or setting, by dotted key, that an unknown name may mean, of those offered; else ''."""
    names = {word: key for key in reversed([*settings]) for word in (key, key.split(".")[1])}
    names |= dict(zip(arguments, arguments, strict=True))
    words = {word: key for key, several in WORDS.items() if key in ("", *names.values()) for word in several.split()}
    return near_name(name, names, words) or near_name(name.rpartition(".")[2], names, words)
