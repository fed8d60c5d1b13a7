"""``doctor``: checks of the machine, settings and data file before training, one line per check.

A check is a function that returns a state, facts and a remedy.  A SocialxError counts as a failed check.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import torch
from torch.utils.data import DataLoader, TensorDataset

from socialx.core.batch import TrainingBatch
from socialx.core.environment import MIB, cpu_field, free_bytes, usable_cores
from socialx.core.errors import Argument, Command, Message, Remedy, SettingsError, SocialxError, counted
from socialx.core.notebook import ResultRepr
from socialx.core.precision import gpu_problem, resolve_device, resolve_precision
from socialx.core.progress import Callback, subscribe, work
from socialx.data.calendar import DAY_S
from socialx.data.scaler import MeanStd, measure
from socialx.dataset import Dataset, Fit, find_windows, read_dataset
from socialx.dataset.loaders import GIB, choose_mode, series_bytes
from socialx.files.store.quantities import SPEED
from socialx.files.store.store import open_store
from socialx.settings.arguments import SettingsArguments
from socialx.settings.conflicts import idle_settings, refuse_conflicts
from socialx.settings.layers import DEFAULT, Config, ConfigLayers, flat, sees_gpu
from socialx.settings.schema import Settings
from socialx.tasks.build import build, choose_climatology_days
from socialx.tasks.train import describe_compute
from socialx.training.run_folder import TRAINED

SCHEMA = "socialx.doctor/1"
State = Literal["ok", "warn", "fail"]
LOW_BYTES = GIB  # of memory and of disk
SHARED_BYTES = 256 * MIB  # workers pass batches through it
WORKER_S = 20  # timeout for a worker process
MOST_SENSORS = 1024  # limit for the trial step: a larger network could take all memory
CPU_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # CPU flags for bfloat16 in hardware
PRODUCTS = {"highest": "exact float32", "high": "TF32", "medium": "bfloat16"}  # of float32 on CUDA, by the setting
EXCERPT = TRAINED / "metr-la" / "last_two_days.h5"  # comes with the package, and is as long as the longest window

ON_CPU = Argument("trainer.device", "cpu")
BUG = "report it as a bug of socialx"


@dataclass(frozen=True)
class DoctorLine:
    """The result of one check.

    state: ok; warn: training runs below its best; fail: training stops.  remedy: the next step for the user.
    """

    name: str
    state: State
    facts: str
    remedy: Remedy = ""

    def text(self) -> str:
        """Return the state, the facts and, on a second line, the remedy."""
        return f"{self.state:<4} {self.message.text()}"

    @property
    def message(self) -> Message:
        """The result as a message to a user."""
        return Message(f"doctor.{self.name.replace(' ', '-')}", self.name, self.facts, self.remedy)


@dataclass(frozen=True, repr=False)
class DoctorResult(ResultRepr):
    """The results of all checks, in order."""

    lines: tuple[DoctorLine, ...]

    @property
    def failures(self) -> tuple[DoctorLine, ...]:
        """The lines that keep training from running."""
        return tuple(line for line in self.lines if line.state == "fail")

    def headline(self) -> str:
        """Return how many checks are in each state."""
        states = [line.state for line in self.lines]
        return ", ".join(f"{states.count(state)} {state}" for state in get_args(State))

    def table(self) -> list[dict[str, Any]]:
        """Return the state and text of every line."""
        return [{"state": line.state, "what": line.message.line()} for line in self.lines]

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON; a remedy is text, or None."""
        lines = [
            {"name": line.name, "state": line.state, "found": line.facts, "remedy": line.message.advice() or None}
            for line in self.lines
        ]
        return {"schema": SCHEMA, "ok": not self.failures, "lines": lines}

    def __str__(self) -> str:
        return "\n".join(line.text() for line in self.lines)


@dataclass
class Setup:
    """The settings of a planned training.  unknown: the checks that failed or were skipped."""

    layers: ConfigLayers
    unknown: set[str] = field(default_factory=set)

    @cached_property
    def loaded(self) -> Config:
        """The merged settings.  Raises SettingsError for a wrong setting."""
        return self.layers.load()

    @property
    def settings(self) -> Settings:
        """The settings values."""
        return self.loaded.settings

    @cached_property
    def device(self) -> torch.device:
        """The training device.  Raises SettingsError for an absent device."""
        return resolve_device(self.settings.trainer.device)


Answer = tuple[State, str] | tuple[State, str, Remedy]  # state, facts and remedy


def doctor(
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Settings | ConfigLayers | None = None,
    preset: str | None = None,
    progress: Callback | None = None,
    **sections: Unpack[SettingsArguments],
) -> DoctorResult:
    """Check the machine, packages, settings, data file and one small step of the configured model.

    The arguments are as in ``train``; nothing is trained or written.  Without a data file the step reads the bundled
    excerpt.  Returns a line with a remedy for every problem, in place of an exception.
    """
    # Building a model sets matmul precision, threads and random state, which are restored here.
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    with subscribe(progress), torch.random.fork_rng(devices=[]), work("doctor", len(CHECKS), "checks") as bar:
        setup = Setup(ConfigLayers.from_call(settings, {**sections, "data": data}, preset, task=doctor))
        lines: list[DoctorLine] = []
        try:
            for name in CHECKS:
                lines += _run_check(name, setup)
                bar.advance(1, name)
        finally:
            torch.set_float32_matmul_precision(precision)
            torch.set_num_threads(threads)
        return DoctorResult(tuple(lines))


def _run_check(name: str, setup: Setup) -> list[DoctorLine]:
    """Run one check, and return a line, or several for several errors."""
    find, needs, text = CHECKS[name]
    helps = text.format(
        ON_CPU, reference=Argument("model.backend", "reference"), sharded=Argument("loader.mode", "sharded")
    )
    if needs in setup.unknown:
        setup.unknown.add(name)
        again = f"run {Command('doctor')} again once that line is ok"
        return [DoctorLine(name, "warn", f"this check waits for the line {needs}", again)]
    try:
        lines = [DoctorLine(name, *find(setup))]
    except SocialxError as error:
        problems = [(message.sentence(), message.remedy) for message in error.messages]
        lines = [DoctorLine(name, "fail", problem, remedy or helps) for problem, remedy in problems]
    except Exception as error:  # noqa: BLE001 - whatever a machine does wrong is what is asked for
        lines = [DoctorLine(name, "fail", _in_short(error), helps)]
    if lines[0].state == "fail":
        setup.unknown.add(name)
    return lines


def _machine(setup: Setup) -> Answer:
    """Check that torch has at most as many threads as cores."""
    cores, threads = usable_cores(), torch.get_num_threads()
    with suppress(SettingsError):  # reported by the settings check
        threads = setup.settings.trainer.threads or threads
    model = cpu_field("model name") or platform.processor() or platform.machine()
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    facts = f"{system}, {model}, {torch.backends.cpu.get_cpu_capability()}, {counted(cores, 'usable core')}"
    if threads > cores:
        slow = f"{facts}; torch takes {threads} threads, and threads that share a core wait for each other"
        return "warn", slow, f"use {Argument('trainer.threads', cores)}, or OMP_NUM_THREADS={cores}"
    return "ok", f"{facts}, {counted(threads, 'thread')} of torch"


def _packages(setup: Setup) -> Answer:
    others = ", ".join(f"{name} {version(name)}" for name in ("xlstm", "numpy", "h5py", "pandas"))
    return "ok", f"Python {platform.python_version()}, torch {torch.__version__}, {others}"


def _settings(setup: Setup) -> Answer:
    """Check that the settings load, fit together and have an effect."""
    settings, loaded = setup.settings, setup.loaded
    refuse_conflicts(settings)
    values, defaults, without = flat(settings), flat(Settings()), idle_settings(settings)
    named = [key for key, source in loaded.origin.items() if source != DEFAULT]
    # A run's settings file names every setting, so default values there do not count.
    if idle := [key for key in named if key in without and (loaded.set_by_call(key) or values[key] != defaults[key])]:
        listed = ", ".join(str(Argument(key)) for key in idle)
        return "warn", f"settings have no effect on this model: {', '.join(idle)}", f"leave out {listed}"
    return "ok", f"{len(named)} of {len(values)} are set; they fit together and have an effect"


def _device(setup: Setup) -> Answer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns of a driver that it cannot use
        available = torch.cuda.is_available()
    reason, remedy = (gpu_problem(torch.device("cuda", 0)), "install another torch") if available else _why_no_gpu()
    try:
        device = setup.device
    except SettingsError as error:
        message = error.messages[0]
        why = f" ({reason})" if reason and not available else ""
        facts = ": ".join(filter(None, (message.where, message.problem)))
        return "fail", f"{facts}{why}", message.remedy
    built = torch.version.cuda or torch.version.hip
    if available and not reason:
        cards = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        kinds = Counter(f"{c.name} ({c.total_memory / GIB:.0f} GiB, capability {c.major}.{c.minor})" for c in cards)
        listed = ", ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in kinds.items())
        return "ok", f"{device} of {listed}; driver {_driver() or 'not known'}, torch for {built}"
    if not available and not has_nvidia():
        build = " (this torch is a build for the CPU)" if built is None else ""
        return "ok", f"everything runs on the CPU, without a CUDA device{build}"
    return "warn", f"there is an NVIDIA GPU or driver, but no CUDA device: {reason}", remedy


def _why_no_gpu() -> tuple[str, str]:
    """Return why CUDA is unavailable in torch, and a remedy."""
    if torch.version.cuda is None:
        return "this torch is a build for the CPU", "install the build of torch for CUDA, which PyPI has for Linux"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return _in_short(error), "run nvidia-smi to test the driver"
    return "torch finds no GPU", "run nvidia-smi to list the GPUs"


def has_nvidia() -> bool:
    """Return whether the machine has an NVIDIA driver or GPU."""
    return bool(_driver()) or sees_gpu()


def _driver() -> str:
    try:
        release = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return ""
    return release[0] if release else ""


def _precision(setup: Setup) -> Answer:
    """Check that the device supports the precision in hardware."""
    device, trainer, products = setup.device, setup.settings.trainer, ""
    used = resolve_precision(trainer.precision, device)
    if device.type == "cuda":
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        products = f"; products of float32 in {PRODUCTS[trainer.float32_matmul_precision]}"
    else:
        bf16 = bool(CPU_BF16 & set((cpu_field("flags") or cpu_field("Features")).split()))
    auto = resolve_precision("auto", device).name
    facts = f"{used.name} on {device}, where auto is {auto}{products}; bfloat16"
    if used.name == "bf16-mixed" and not bf16:
        return "warn", f"{facts} is emulated, which is slow", f"use {Argument('trainer.precision', auto)}"
    return "ok", f"{facts} {'in hardware' if bf16 else 'is emulated'}"


def _free_space(setup: Setup) -> Answer:
    """Check for a GiB free in memory, on host and device, and on disk."""
    memory = {str(device): free_bytes(device) for device in (torch.device("cpu"), setup.device)}
    free = {**memory, "this folder": shutil.disk_usage(Path.cwd()).free}
    facts = ", ".join(f"{k}: {'not known' if v is None else f'{_size(v)} free'}" for k, v in free.items())
    low = {name for name, count in free.items() if count is not None and count < LOW_BYTES}
    saving = f"{Argument('model.activation_checkpointing', True)} and a smaller {Argument('loader.batch_size')}"
    helps = [f"end other programs, or use {saving}"] if low & set(memory) else []
    helps += [f"make room, or use {Argument('trainer.run_dir', 'FOLDER')} elsewhere"] if "this folder" in low else []
    return ("warn", facts, "; ".join(helps)) if low else ("ok", facts)


def _data(setup: Setup) -> Answer:
    """Check that the file is readable and yields windows."""
    settings, device = setup.settings, setup.device
    section = settings.data
    path, length = section.path, section.lookback + section.horizon
    if path is None:
        helps = f"add {Argument('data.path', 'FILE.h5')}, which {Command('convert', 'auto', 'FILE')} makes"
        return "ok", "a data file was not given", helps
    names = tuple(dict.fromkeys([*settings.data.targets, *(settings.data.inputs or ())]))
    stores = [open_store(path, name, settings.data.days) for name in names]
    first = stores[0]
    rows, sensors = len(first.seconds), len(first.sensors.ids)
    windows = find_windows(first, section)
    for store in stores:  # a damaged part of the file shows when it is read
        store.read(slice(0, length))
        store.read(slice(rows - length, rows))
    mode = choose_mode(settings.loader, path, (rows, sensors, len(names)), device).mode
    free = free_bytes(device)
    room = "" if free is None else f" of {_size(free)} free on {device}"
    series = f"{_size(series_bytes(rows, sensors, len(names)))}{room}: loader mode {mode}"
    cut = " / ".join(f"{count:,}" for count in windows.counts.values())
    facts = f"{path}: {counted(sensors, 'sensor')}, {rows:,} rows every {first.step_minutes} min, {cut} windows"
    return "ok", f"{facts}; the series is {series}"


def _step(setup: Setup) -> Answer:
    """Check one forward and backward pass for one window: finite, and all on one device."""
    settings, device, path = setup.settings, setup.device, setup.settings.data.path
    if path is None or "data" in setup.unknown:
        settings, path = _use_excerpt(settings), EXCERPT
    data = _first_rows(settings, path, device)
    experiment = build(settings, data)
    start = torch.zeros(1, dtype=torch.int64, device=device)
    series = data.loaders.series()
    example = TrainingBatch(series.window(start), series.target(start))
    model = experiment.model.to(device)
    for words, tensors in (
        ("parameter {}", model.named_parameters()),
        ("buffer {}", model.named_buffers()),
        ("{} of the batch", example.batch._asdict().items()),
        ("{} of the target", example.target._asdict().items()),
    ):
        for name, tensor in tensors:
            if tensor.device != device:
                return "fail", f"{words.format(name)} is on {tensor.device}, not on {device}", BUG
    with experiment.precision.autocast():
        output = model(example.batch)
    (output.float() - example.target.values).abs().mean().backward()
    parts = {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    broken = [name for name, part in {"forecast": output, **parts}.items() if not part.isfinite().all()]
    ran = describe_compute(experiment) if device.type == "cuda" else describe_compute(experiment).partition(", ")[0]
    network = counted(len(data.sensors.ids), "sensor")
    network = f"the first {network}" if len(data.sensors.ids) == MOST_SENSORS else network
    network += " of the readings that come with socialx" if path == EXCERPT else ""
    if broken or not parts:
        problem = f"{ran}: {broken[0] + ' is not finite' if broken else 'all gradients are lacking'}, for {network}"
        exact = f"{Argument('model.backend', 'reference')} or {Argument('trainer.precision', '32-true')}"
        return "fail", problem, f"try {exact}, to tell implementation from precision"
    count = sum(p.numel() for p in model.parameters())
    return "ok", f"{ran}: a step for {network} is finite; {count:,} parameters and the batch are on {device}"


def _use_excerpt(settings: Settings) -> Settings:
    """Return the settings for the bundled excerpt, without roads, which name sensors of another file."""
    data = settings.data.model_copy(update={"path": EXCERPT, "targets": (SPEED,), "inputs": None})
    pooling = settings.pooling.model_copy(update={"distances": None})
    return settings.model_copy(update={"data": data, "pooling": pooling})


def _first_rows(settings: Settings, path: Path, device: torch.device) -> Dataset:
    """Return the rows of the first window as a small data set, scaled by these rows."""
    section, store = settings.data, open_store(path, settings.data.targets[0])
    last = int(store.seconds[section.lookback + section.horizon - 1])
    # A square matrix of distances has no ids: it fits all sensors.
    fewer = store.sensors.ids[:MOST_SENSORS] if settings.pooling.distances is None else None
    days = last // DAY_S - int(store.seconds[0]) // DAY_S + 1
    section = section.model_copy(update={"path": path, "days": days})
    data = read_dataset(section, None, device, choose_climatology_days(settings), Fit(sensors=fewer))
    try:
        moments = measure(data.source, slice(0, len(data.store.seconds)), path)
    except SocialxError:  # a step needs no observations
        moments = [MeanStd(0.0, 1.0)] * len(data.stores)
    return replace(data, moments=dict(zip(data.stores, moments, strict=True)))


def _worker(setup: Setup) -> Answer:
    """Check that a worker process makes batches, with enough shared memory."""
    numbers = TensorDataset(torch.arange(4.0))
    try:  # a separate generator leaves the random state of the process unchanged
        loader = DataLoader(numbers, 4, num_workers=1, timeout=WORKER_S, generator=torch.Generator())
        (batch,) = next(iter(loader))
    except (RuntimeError, OSError) as error:  # errors of a process that fails to start or answer
        state: State = "fail" if setup.settings.loader.mode == "workers" else "warn"
        without = f"use {Argument('loader.mode', 'sharded')}, which needs no workers"
        return state, f"a worker process gave no batch ({_in_short(error)})", without
    facts = f"a worker process started and passed a batch of {len(batch)} on"
    shared = Path("/dev") / "shm"
    if shared.is_dir() and (size := shutil.disk_usage(shared).total) < SHARED_BYTES:
        without = f"use {Argument('loader.mode', 'sharded')}, or start the container with shm-size=1g"
        return "warn", f"{facts}, through {shared}, which has {_size(size)}", without
    return "ok", facts


def _size(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / MIB:,.1f} MiB"


def _in_short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


# A line of the answer: the check, the line that must be ok first, and what helps with an error that nobody expects.
CHECKS: dict[str, tuple[Callable[[Setup], Answer], str, str]] = {
    "machine": (_machine, "", BUG),
    "packages": (_packages, "", "install socialx again with pip"),
    "settings": (_settings, "", "correct the setting"),
    "device": (_device, "settings", "use {}, or another build of torch"),
    "precision": (_precision, "device", "use {}, or another build of torch"),
    "memory and disk": (_free_space, "device", "use a readable folder, or {}"),
    "data": (_data, "device", "convert its source again"),
    "one step": (_step, "device", "use {reference}, or {}"),
    "worker": (_worker, "settings", "use {sharded}"),
}
