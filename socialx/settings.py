"""The one settings tree, shared by every subcommand: data, loader, model, pooling, trainer, profile, download.

Sections are frozen and refuse unknown keys.  A field's description is its help text and its default is printed
beside it; settings that exist in Lightning keep Lightning's names.  Only ``options``, ``build`` and ``cli`` see
this tree: everything below takes plain arguments.  torch is not imported here, so ``--help`` stays quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _split_commas(value: Any) -> Any:
    """``"1,3"`` as typed on a command line or in the environment -> ``["1", "3"]``; the empty text is no item."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return value


def _off_is_a_word(value: Any) -> Any:
    """YAML reads a bare ``off`` as False."""
    return "off" if value is False else value


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Two scores of one feature would have one name."""
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise ValueError(f"{twice[0]} is named twice")
    return names


Positions = Annotated[tuple[int, ...], BeforeValidator(_split_commas)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_commas), AfterValidator(_each_once)]


class Section(BaseModel):
    """Frozen, and no key that nobody reads."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Data(Section):
    """Which file, and how it is cut into windows."""

    path: Path | None = Field(
        None, description="the HDF5 file that convert wrote", json_schema_extra={"flag": "--data"}
    )
    targets: Names = Field(("avg_speed",), min_length=1, description="features of the file that are forecast")
    inputs: Names | None = Field(None, min_length=1, description="features that the model reads; empty: the targets")
    days: int | None = Field(None, ge=1, description="use the first days of the file alone; empty: all of it")
    history: int = Field(12, ge=1, le=288, description="steps that the model sees")
    horizon: int = Field(12, ge=1, le=288, description="steps that it forecasts")
    split: Literal["canonical", "strict"] = Field(
        "canonical",
        description="canonical: windows first, then 70/10/20 as the papers do; strict: time first, no window "
        "crosses a border or a gap",
    )


class Loader(Section):
    """How windows become batches."""

    batch_size: int = Field(64, ge=1, description="windows per batch, each of all sensors")
    shuffle: bool = Field(True, description="a new seeded order of the training windows in every epoch")


class Model(Section):
    """The shared xLSTM encoder and what its tokens carry; or a plain model to compare it with."""

    kind: Literal["xlstm", "linear", "lstm", "stid"] = Field(
        "xlstm",
        description="xlstm: the shared social xLSTM; plain models for comparison, none of which pools: linear: one map "
        "from history to horizon; lstm: a shared LSTM of the values; stid: identities and an MLP",
        json_schema_extra={"flag": "--model"},
    )
    encoder: Literal["xlstm", "mlp"] = Field(
        "xlstm", description="mlp: in place of the xLSTM, the flattened window through an MLP of as many parameters"
    )
    width: int = Field(128, ge=8, le=2048, description="embedding width E, a multiple of heads")
    blocks: int = Field(4, ge=1, le=64, description="xLSTM blocks in the stack")
    slstm_at: Positions = Field((1, 3), description="which blocks are sLSTM, from 0; the others are mLSTM")
    heads: int = Field(4, ge=1, description="heads of every xLSTM block")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout of the encoder and of the social layers")
    impl: Literal["auto", "reference", "fused", "triton"] = Field(
        "auto",
        description="encoder implementation, all one function; auto: triton on CUDA where it can run, else fused; "
        "reference: the xlstm package's own forward",
    )
    chunk: int | None = Field(
        None,
        ge=1,
        description="sequences per encoder call; empty: the measured best on a CPU, all on CUDA, where a chunk saves "
        "memory: its backward pass runs it a second time",
    )
    checkpointing: bool = Field(
        False, description="keep only the blocks' inputs for the backward pass, which runs each block a second time"
    )
    time_of_day: bool = Field(True, description="a learned vector per slot of the day")
    day_of_week: bool = Field(True, description="a learned vector per weekday")
    sensor_identity: bool = Field(True, description="a learned vector per sensor; off for a network unseen in training")
    adaptive: bool = Field(True, description="a learned vector per history step and sensor; off for an unseen network")
    sensor_heads: bool = Field(False, description="a last layer per sensor on top of the shared one")


class Pooling(Section):
    """How a sensor listens to its neighbours."""

    kind: Literal["attention", "attention_mlp", "mean", "weighted_mean", "max", "own", "none"] = Field(
        "attention",
        description="attention: weights by dot products; attention_mlp: by a small network; weighted_mean: by distance "
        "and offset; own: the same layers hear the sensor itself alone, for comparison; none: no layers",
        json_schema_extra={"flag": "--pooling"},
    )
    layers: int = Field(2, ge=1, le=16, description="social layers, one after the other")
    placement: Literal["stacked", "interleaved"] = Field(
        "stacked",
        description="stacked: all layers after the encoder, on the last step; interleaved: spread over the encoder's "
        "blocks, on every step",
    )
    heads: int = Field(4, ge=1, description="heads of every social layer; the width is a multiple")
    neighbours: int | None = Field(32, ge=1, description="the K nearest sensors may be heard; empty: all within reach")
    reach_km: float | None = Field(None, gt=0, description="nobody farther away is heard; empty: no limit")
    distances: Path | None = Field(
        None, description="CSV of from,to,cost with road distances in metres, in place of straight ones"
    )
    radius_km: float = Field(5.0, gt=0, le=1000, description="where the radius starts: half weight there")
    learnable_radius: bool = Field(True, description="train a soft radius and its softness; off: they stay")
    mask_mode: Literal["soft", "hard"] = Field(
        "soft", description="soft: weights fall around the radius; hard: nobody beyond it, and it is not trained"
    )
    use_positional: bool = Field(True, description="let the weight depend on the offset (east, north) too")
    strict: bool = Field(
        True, description="refuse a file in which sensors have no position; off: those hear nobody, and it is said"
    )


class Trainer(Section):
    """The optimisation and the machine it runs on."""

    precision: Literal["auto", "32-true", "16-mixed", "bf16-mixed"] = Field(
        "auto", description="auto: bf16-mixed on CUDA, 32-true on a CPU"
    )
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto | cpu | cuda | cuda:1")
    float32_matmul_precision: Literal["highest", "high", "medium"] = Field(
        "high", description="fp32 matrix products on CUDA; high is TF32"
    )
    compile: Annotated[Literal["off", "default", "max-autotune"], BeforeValidator(_off_is_a_word)] = Field(
        "off", description="torch.compile of the forward and backward pass; where it fails, it says why and goes on"
    )
    cuda_graph: bool = Field(
        False, description="record the training step once per shape and replay it; where it fails, it says why"
    )
    max_epochs: int = Field(30, ge=1, description="the schedule ends here, early stopping may end before")
    learning_rate: float = Field(2e-3, gt=0, description="AdamW's peak learning rate")
    weight_decay: float = Field(3e-4, ge=0, description="AdamW's weight decay")
    schedule: Literal["cosine", "constant"] = Field("cosine", description="of the learning rate, after the warm-up")
    lr_warmup_steps: int = Field(100, ge=0, description="optimizer steps of linear warm-up")
    gradient_clip_val: float = Field(5.0, ge=0, description="largest gradient norm; 0: no clipping")
    accumulate_grad_batches: int = Field(1, ge=1, description="batches per optimizer step")
    patience: int = Field(10, ge=1, description="epochs without a better validation MAE before stopping")
    seed: int = Field(0, ge=0, lt=2**32, description="of weights, order and dropout")
    log_every_n_steps: int = Field(50, ge=1, description="steps between two readings of the loss, each a host sync")
    run_dir: Path | None = Field(None, description="run folder; empty: runs/DATASET-DATE-TIME")


class Profile(Section):
    """How long socialx profile looks."""

    steps: int = Field(200, ge=2, description="measured training steps")
    warmup_steps: int = Field(10, ge=0, description="steps before the measurement")
    trace_steps: int = Field(8, ge=0, description="steps under a kernel trace after it, on CUDA; 0: none")


class Download(Section):
    """Where published files come from."""

    mirror: str | None = Field(None, description="address of a folder that holds them, in place of the published one")
    retries: int = Field(5, ge=0, description="tries in a row that bring nothing before it gives up")


class Settings(Section):
    """Everything that a run depends on, apart from the data itself."""

    data: Data = Data()
    loader: Loader = Loader()
    model: Model = Model()
    pooling: Pooling = Pooling()
    trainer: Trainer = Trainer()
    profile: Profile = Profile()
    download: Download = Download()


def unread(s: Settings) -> set[str]:
    """Keys of the sections model and pooling that the chosen model does nothing with."""
    model = {f"model.{name}" for name in Model.model_fields}
    pooling = {f"pooling.{name}" for name in Pooling.model_fields}
    m, p = s.model, s.pooling
    if m.kind != "xlstm":
        plain = {"linear": (), "lstm": ("width", "blocks", "dropout"), "stid": ("width", "dropout")}
        return (model | pooling) - {f"model.{name}" for name in ("kind", *plain[m.kind])}
    found: set[str] = set()
    if m.encoder == "mlp":
        found |= {"model.impl", "model.chunk", "model.checkpointing"}
    elif p.kind != "none" and p.placement == "interleaved":  # its layers hear all sensors in the midst of the encoder
        found |= {"model.chunk"}
    if p.kind == "none":
        found |= pooling - {"pooling.kind"}
    elif p.kind == "own":
        found |= {"pooling.neighbours", "pooling.reach_km", "pooling.distances", "pooling.strict"}
    elif p.kind in ("mean", "max"):
        found |= {"pooling.use_positional"}
    if p.mask_mode == "hard":
        found |= {"pooling.learnable_radius"}
    return found


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
