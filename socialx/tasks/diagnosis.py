"""``doctor``: what a training needs of the machine, the settings and the data file, one line per check."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from socialx.batch import Example
from socialx.build import build, loading_of
from socialx.data.calendar import DAY_S
from socialx.data.normaliser import Moments, measure
from socialx.data.windows import split_windows
from socialx.dataset import GIB, Dataset, chosen, open_dataset, series_bytes
from socialx.environment import MIB, cpu_field, free_bytes, usable_cores
from socialx.errors import Argument, Command, Message, Part, SettingsError, SocialxError, Write, python
from socialx.files.store import SPEED, Block, Readings, Sensors, create, open_store
from socialx.options import DEFAULT, Layers, Loaded, flat
from socialx.precision import Precision, resolve_device, resolve_precision
from socialx.progress import Callback, listening, work
from socialx.settings import Settings
from socialx.tasks.training import what_computes

SCHEMA = "socialx.doctor/1"
State = Literal["ok", "warn", "fail"]
HOST = torch.device("cpu")
FLOOR = (2, 11)  # of torch
LOW_BYTES = GIB  # of memory and of disk
SHARED_BYTES = 256 * MIB  # workers pass batches through it
WORKER_S = 20  # in which a worker process answers
SIZE = 256  # of the matrices whose product is compared
MOST_SENSORS = 1024  # of the network that a step is tried on: a larger one could take all memory
MADE_UP_SENSORS = 5
# Largest relative error of a product: of a type, and of float32 by the precision of its products on CUDA.
ERRORS = {torch.float16: 2e-3, torch.bfloat16: 2e-2}
FLOAT32_ERRORS = {"highest": 1e-5, "high": 2e-3, "medium": 2e-2}
CPU_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # what a CPU that computes in bfloat16 says of itself


@dataclass(frozen=True)
class Line:
    """The answer of one check.

    state: ok; warn: training runs, but not as well as it could; fail: it does not run.  remedy: what helps, as data.
    """

    name: str
    state: State
    found: str
    remedy: tuple[Part, ...] = ()

    @property
    def message(self) -> Message:
        """The same as a message to a user."""
        return Message(self.name, self.found, self.remedy)

    def helps(self, write: Write = python) -> str:
        """The remedy as text; ``write`` says how arguments and commands look."""
        return Message("", "", self.remedy).line(write)


@dataclass(frozen=True)
class Diagnosis:
    """The answers of all checks, in the order in which they ran."""

    lines: tuple[Line, ...]

    @property
    def failed(self) -> tuple[Line, ...]:
        """Those that keep a training from running."""
        return tuple(line for line in self.lines if line.state == "fail")

    def as_dict(self, write: Write = python) -> dict[str, Any]:
        """For JSON; a remedy is text, None where nothing has to be done."""
        lines = [{**asdict(line), "remedy": line.helps(write) or None} for line in self.lines]
        return {"schema": SCHEMA, "ok": not self.failed, "lines": lines}

    def __str__(self) -> str:
        return "\n".join(f"{line.state:<5}{line.message}" for line in self.lines)


class Answer(NamedTuple):
    """What a check found."""

    state: State
    found: str
    remedy: tuple[Part, ...] = ()


@dataclass
class Asked:
    """The settings that were asked for.  unknown: the checks that have failed already, or could not be asked."""

    layers: Layers
    unknown: set[str] = field(default_factory=set)

    @cached_property
    def loaded(self) -> Loaded:
        """The merged settings.  Raises SettingsError where one is wrong."""
        return self.layers.load()

    @property
    def settings(self) -> Settings:
        """Their values."""
        return self.loaded.settings

    @cached_property
    def device(self) -> torch.device:
        """The device that training would use.  Raises SettingsError where it is not there."""
        return resolve_device(self.settings.trainer.device)

    @property
    def precision(self) -> Precision:
        """The precision that training would use."""
        return resolve_precision(self.settings.trainer.precision, self.device)


@dataclass(frozen=True)
class Check:
    """One question; ``find`` raises SocialxError where that says what is wrong and what helps.

    needs: the checks without whose success it cannot be asked.  helps: the remedy for an error that nobody expected.
    """

    name: str
    asks: str
    find: Callable[[Asked], Answer]
    needs: tuple[str, ...] = ()
    helps: tuple[Part, ...] = ("report it as a bug of socialx",)


def doctor(
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    settings: Settings | Layers | None = None,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> Diagnosis:
    """Check the machine, the packages, the settings, the data file and one small step of the configured model.

    The arguments are those of ``train``; nothing is trained and nothing is written but a temporary file.  What is wrong
    becomes a line that says what helps, and never an exception.
    """
    with listening(progress), _torch_left_as_it_was(), work("doctor", len(CHECKS), "checks") as bar:
        asked = Asked(Layers.of(settings, sections, data=data))
        lines: list[Line] = []
        for check in CHECKS:
            lines += _ask(check, asked)
            bar.advance(1, check.name)
        return Diagnosis(tuple(lines))


def _ask(check: Check, asked: Asked) -> list[Line]:
    """The answer of one check; several lines where it names several mistakes."""
    if missing := [name for name in check.needs if name in asked.unknown]:
        asked.unknown.add(check.name)
        again = (Command("doctor"), " again, once that line is ok")
        return [Line(check.name, "warn", f"not checked: it needs the line {missing[0]}", again)]
    try:
        lines = [Line(check.name, *check.find(asked))]
    except SocialxError as error:
        found = [(Message(each.where, each.what, "", each.sample).line(), each.remedy) for each in error.messages]
        lines = [Line(check.name, "fail", what, remedy or check.helps) for what, remedy in found]
    except Exception as error:  # noqa: BLE001 - whatever a machine does wrong is what is asked for
        lines = [Line(check.name, "fail", _in_short(error), check.helps)]
    if lines[0].state == "fail":
        asked.unknown.add(check.name)
    return lines


def _in_short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextmanager
def _torch_left_as_it_was() -> Iterator[None]:
    """Give back the random numbers, the precision of products and the threads, which building a model sets."""
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            torch.set_num_threads(threads)


# --- the machine ----------------------------------------------------------------------------------------------------


def _machine(asked: Asked) -> Answer:
    cores, threads = usable_cores(), _threads(asked)
    model = cpu_field("model name") or platform.processor() or platform.machine()
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    found = f"{system}, {model}, {torch.backends.cpu.get_cpu_capability()}, {_several(cores, 'usable core')}"
    if threads > cores:
        slow = f"{found}; torch takes {threads} threads, and threads that share a core wait for each other"
        return Answer("warn", slow, (Argument("trainer.threads", cores), f", or OMP_NUM_THREADS={cores}"))
    return Answer("ok", f"{found}, {_several(threads, 'thread')} of torch")


def _threads(asked: Asked) -> int:
    """Of tensor operations in training."""
    try:
        return asked.settings.trainer.threads or torch.get_num_threads()
    except SettingsError:  # which has a line of its own
        return torch.get_num_threads()


def _packages(asked: Asked) -> Answer:
    others = ", ".join(f"{name} {version(name)}" for name in ("xlstm", "numpy", "h5py", "pandas"))
    found = f"Python {platform.python_version()}, torch {torch.__version__}, {others}"
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if release < FLOOR:
        wanted = ".".join(map(str, FLOOR))
        return Answer("warn", f"{found}: socialx is made for torch {wanted}", (f"pip install 'torch>={wanted}'",))
    return Answer("ok", found)


def _settings(asked: Asked) -> Answer:
    s, loaded = asked.settings, asked.loaded
    s.refuse_conflicts()
    values, defaults = flat(s), flat(Settings())
    # A run's own file of settings names all of them: what it leaves as it is without it says nothing.
    said = [key for key, place in loaded.origin.items() if place != DEFAULT]
    idle = [key for key in said if key in s.unread() and (loaded.given(key) or values[key] != defaults[key])]
    if idle:
        listed = tuple(part for key in idle for part in (", ", Argument(key)))[1:]
        return Answer("warn", f"no effect on this model: {', '.join(idle)}", ("leave out ", *listed))
    return Answer("ok", f"{len(said)} of {len(values)} are set; they fit together and have an effect")


def _device(asked: Asked) -> Answer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns of a driver that it cannot use
        there = torch.cuda.is_available()
    reason, remedy = ("", ()) if there else _why_no_card()
    try:
        device = asked.device
    except SettingsError as error:
        message = error.messages[0]
        why = f" ({reason})" if reason else ""
        return Answer("fail", f"{message.where}: {message.what}{why}", message.remedy)
    if there:
        cards = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        kinds = Counter(f"{c.name} ({c.total_memory / GIB:.0f} GiB, capability {c.major}.{c.minor})" for c in cards)
        listed = ", ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in kinds.items())
        return Answer("ok", f"{device} of {listed}; driver {_driver() or 'not known'}, torch for {torch.version.cuda}")
    if not has_nvidia():
        build = " (this torch is a build for the CPU)" if torch.version.cuda is None else ""
        return Answer("ok", f"no CUDA device: everything runs on the CPU{build}")
    return Answer("warn", f"there is an NVIDIA card or driver, but no CUDA device: {reason}", remedy)


def has_nvidia() -> bool:
    """Whether the machine has a driver, or the device of a card."""
    return bool(_driver() or shutil.which("nvidia-smi") or any(Path("/dev").glob("nvidia[0-9]*")))


def _driver() -> str:
    try:
        found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return ""
    return found[0] if found else ""


def _why_no_card() -> tuple[str, tuple[Part, ...]]:
    """Why torch sees no CUDA device, and what helps."""
    if torch.version.cuda is None:
        return "this torch is a build for the CPU", ("install the build of torch for CUDA, which PyPI has for Linux",)
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every card", ("unset CUDA_VISIBLE_DEVICES",)
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return _in_short(error), ("nvidia-smi says whether the driver works",)
    return "torch finds none", ("nvidia-smi lists the cards",)


def _float32(asked: Asked) -> Answer:
    now, s = torch.get_float32_matmul_precision(), asked.settings
    if asked.device.type != "cuda":
        return Answer("ok", f"products of float32 in precision {now}; TF32 and cuDNN are for CUDA alone")
    wanted = s.trainer.float32_matmul_precision
    torch.set_float32_matmul_precision(wanted)  # as training does; the product below is measured with it
    means = {"highest": "exact float32", "high": "TF32", "medium": "bfloat16"}[wanted]
    library = torch.backends.cudnn.version()
    cudnn = "no cuDNN" if library is None else f"cuDNN {library}, TF32 {torch.backends.cudnn.allow_tf32}"
    return Answer("ok", f"products of float32 are {now} in torch, {wanted} ({means}) in training; {cudnn}")


def _precision(asked: Asked) -> Answer:
    device, used = asked.device, asked.precision
    if device.type == "cuda":
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        bf16 = bool(CPU_BF16 & set((cpu_field("flags") or cpu_field("Features")).split()))
    auto = resolve_precision("auto", device).name
    found = f"{used.name} on {device}, where auto is {auto}; bfloat16 {'in hardware' if bf16 else 'is emulated'}"
    if used.name == "bf16-mixed" and not bf16:
        return Answer("warn", f"{found}, which is slow", (Argument("trainer.precision", auto),))
    return Answer("ok", found)


def _memory(asked: Asked) -> Answer:
    devices = dict.fromkeys((HOST, asked.device))
    free = {device: free_bytes(device) for device in devices}
    parts = [f"{device}: {'not known' if count is None else f'{_size(count)} free'}" for device, count in free.items()]
    if any(count is not None and count < LOW_BYTES for count in free.values()):
        saving = (Argument("model.checkpointing", True), " and a smaller ", Argument("loader.batch_size"), " need less")
        return Answer("warn", ", ".join(parts), ("end other programs; ", *saving))
    return Answer("ok", ", ".join(parts))


def _disk(asked: Asked) -> Answer:
    free = shutil.disk_usage(Path.cwd()).free
    found = f"{_size(free)} free in this folder"
    if free < LOW_BYTES:
        return Answer("warn", found, ("make room, or ", Argument("trainer.run_dir", "FOLDER"), " on another disk"))
    return Answer("ok", found)


# --- the data -------------------------------------------------------------------------------------------------------


def _data(asked: Asked) -> Answer:
    s, device = asked.settings, asked.device
    path, length = s.data.path, s.data.history + s.data.horizon
    if path is None:
        helps = (Argument("data.path", "FILE.h5"), ", which ", Command("convert", "auto", "FILE"), " makes")
        return Answer("ok", "no file is given", helps)
    names = tuple(dict.fromkeys([*s.data.targets, *(s.data.inputs or ())]))
    stores = [open_store(path, name, s.data.days) for name in names]
    first = stores[0]
    rows, sensors = len(first.seconds), len(first.sensors.ids)
    windows = split_windows(first.seconds, first.step_minutes, s.data.history, s.data.horizon, s.data.split)
    for store in stores:  # a damaged part of the file shows when it is read
        store.read(slice(0, length))
        store.read(slice(rows - length, rows))
    mode = chosen(loading_of(s), path, first, len(names), device).mode
    free = free_bytes(device)
    there = "" if free is None else f" of {_size(free)} free on {device}"
    series = f"{_size(series_bytes(rows, sensors, len(names)))}{there}: loader mode {mode}"
    cut = " / ".join(f"{count:,}" for count in windows.counts.values())
    what = f"{path}: {_several(sensors, 'sensor')}, {rows:,} rows every {first.step_minutes} min, {cut} windows"
    return Answer("ok", f"{what}; the series is {series}")


# --- what computes --------------------------------------------------------------------------------------------------


def _product(asked: Asked) -> Answer:
    device, low = asked.device, asked.precision.low or torch.bfloat16
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    exact = left.double().numpy() @ right.double().numpy()  # of NumPy: the products of torch are in question
    allowed = {torch.float32: FLOAT32_ERRORS[torch.get_float32_matmul_precision()], low: ERRORS[low]}
    parts, wrong = [], False
    for dtype, most in allowed.items():
        made = torch.matmul(left.to(device, dtype), right.to(device, dtype)).double().cpu().numpy()
        error = float(np.linalg.norm(made - exact) / np.linalg.norm(exact))
        wrong |= not error <= most  # NaN too
        parts.append(f"{str(dtype).removeprefix('torch.')} {error:.1e} of at most {most:.0e}")
    found = f"relative error of a product on {device}: {', '.join(parts)}"
    if wrong:
        return Answer("fail", found, ("another build of torch, or ", Argument("trainer.device", "cpu")))
    return Answer("ok", found)


def _encoder(asked: Asked) -> Answer:
    """One forward and backward pass of the configured model for one window."""
    s = asked.settings
    with tempfile.TemporaryDirectory() as folder:
        made_up = s.data.path is None or "data" in asked.unknown
        if made_up:
            s = _with_made_up_file(s, Path(folder) / "made-up.h5")
        data = _first_rows(s, asked.device)
        problem = build(s, data)
        start = torch.zeros(1, dtype=torch.int64, device=asked.device)
        example = Example(data.series.window(start), data.series.target(start))
    model, device = problem.model.to(asked.device), asked.device
    if elsewhere := first_elsewhere(model, example, device):
        return Answer("fail", f"{elsewhere}, not on {device}", ("report it as a bug of socialx",))
    with problem.precision.autocast():
        output = model(example.batch)
    (output.float() - example.target.values).abs().mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    broken = [f"gradient of {name}" for name, gradient in gradients.items() if not gradient.isfinite().all()]
    broken = broken if output.isfinite().all() else ["forecast", *broken]
    ran = what_computes(problem)
    ran = ran if device.type == "cuda" else ran.partition(", ")[0]  # the rest is about cards
    network = _several(len(data.sensors.ids), "made-up sensor" if made_up else "sensor")
    network = f"the first {network}" if len(data.sensors.ids) == MOST_SENSORS else network
    if broken or not gradients:
        what = f"{ran}: {'not finite: ' + broken[0] if broken else 'no parameter has a gradient'}, for {network}"
        exact = (Argument("model.impl", "reference"), " or ", Argument("trainer.precision", "32-true"))
        return Answer("fail", what, (*exact, " tells whether implementation or precision do it"))
    count = sum(p.numel() for p in model.parameters())
    return Answer("ok", f"{ran}: a step for {network} is finite; {count:,} parameters and the batch are on {device}")


def _with_made_up_file(s: Settings, path: Path) -> Settings:
    """Write a small file of made-up speeds, and return the settings that read it."""
    length = s.data.history + s.data.horizon
    times = np.datetime64("2012-03-12T00:00:00") + np.arange(length) * np.timedelta64(5, "m")
    stamps = np.array([str(time).replace("T", " ") for time in times], "S19")
    speeds = np.random.default_rng(0).normal(55, 8, (length, MADE_UP_SENSORS)).astype(np.float32)

    def blocks() -> Generator[Block, None, None]:
        yield Block(stamps, speeds)

    place = np.arange(MADE_UP_SENSORS) / 100
    sensors = Sensors(tuple(f"sensor{number}" for number in range(MADE_UP_SENSORS)), 34 + place, -118 - place)
    create(path, Readings("made-up", SPEED, sensors, blocks(), "mph", 0.0, None, "made up", "made up"))
    data = {"path": path, "targets": (SPEED,), "inputs": None, "days": None}
    # A list of roads names the sensors of another file.
    parts = {"data": s.data.model_copy(update=data), "pooling": s.pooling.model_copy(update={"distances": None})}
    return s.model_copy(update=parts)


def _first_rows(s: Settings, device: torch.device) -> Dataset:
    """The rows of the first window as a data set, so that no file takes long; the moments are those of these rows."""
    d = s.data
    if d.path is None:
        raise ValueError("no data file")
    store = open_store(d.path, d.targets[0])
    last = int(store.seconds[min(d.history + d.horizon, len(store.seconds)) - 1])
    # A square matrix of distances has no ids: it fits all sensors.
    fewer = store.sensors.ids[:MOST_SENSORS] if s.pooling.distances is None else None
    data = open_dataset(
        d.path,
        targets=d.targets,
        inputs=d.inputs,
        history=d.history,
        horizon=d.horizon,
        device=device,
        split=None,
        days=last // DAY_S - int(store.seconds[0]) // DAY_S + 1,
        sensors=fewer,
    )
    try:
        moments = measure(data.source, slice(0, len(data.store.seconds)), d.path)
    except SocialxError:  # no reading on these days, which a step does not need
        moments = [Moments(0.0, 1.0)] * len(data.stores)
    return replace(data, moments=dict(zip(data.stores, moments, strict=True)))


def first_elsewhere(model: nn.Module, example: Example, device: torch.device) -> str:
    """The first parameter, buffer or tensor of a batch that is not on the device, and where it is; empty: none."""
    parts: Iterator[tuple[str, Tensor]] = chain(
        ((f"parameter {name}", tensor) for name, tensor in model.named_parameters()),
        ((f"buffer {name}", tensor) for name, tensor in model.named_buffers()),
        ((f"{name} of the batch", tensor) for name, tensor in example.batch._asdict().items()),
        ((f"{name} of the target", tensor) for name, tensor in example.target._asdict().items()),
    )
    return next((f"{name} is on {tensor.device}" for name, tensor in parts if tensor.device != device), "")


# --- other processes ------------------------------------------------------------------------------------------------


def _processes(asked: Asked) -> Answer:
    if not dist.is_available():
        return Answer("warn", "this torch has no torch.distributed", ("another build, to train in several processes",))
    backends = {"nccl": dist.is_nccl_available(), "gloo": dist.is_gloo_available()}
    backend = "nccl" if asked.device.type == "cuda" else "gloo"
    if not backends[backend]:
        missing = f"this torch has no {backend}, by which processes that train on {asked.device.type} would talk"
        return Answer("warn", missing, ("another build of torch, or train in one process",))
    return Answer("ok", f"several processes can train one model, by {backend}")


def _workers(asked: Asked) -> Answer:
    numbers = TensorDataset(torch.arange(4.0))
    try:  # a generator of its own: that of the process stays as it is
        loader = DataLoader(numbers, 4, num_workers=1, timeout=WORKER_S, generator=torch.Generator())
        (batch,) = next(iter(loader))
    except (RuntimeError, OSError) as error:  # what torch and the system say where a process does not start or answer
        state: State = "fail" if asked.settings.loader.mode == "workers" else "warn"
        without = (Argument("loader.mode", "chunk"), " needs no workers")
        return Answer(state, f"a worker process gave no batch ({_in_short(error)})", without)
    return Answer("ok", f"a worker process started and passed a batch of {len(batch)} on")


def _shared_memory(asked: Asked) -> Answer:
    shared = Path("/dev") / "shm"
    if not shared.is_dir():
        return Answer("ok", f"{sys.platform} has no {shared}")
    size = shutil.disk_usage(shared).total
    found = f"{_size(size)} in {shared}, through which workers pass batches"
    if size < SHARED_BYTES:
        without = (Argument("loader.mode", "chunk"), " needs none; a container has more with shm-size=1g")
        return Answer("warn", found, without)
    return Answer("ok", found)


def _size(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / MIB:,.1f} MiB"


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


_OTHER_DEVICE: tuple[Part, ...] = (Argument("trainer.device", "cpu"), ", or another build of torch")
_OTHER_STEP: tuple[Part, ...] = (Argument("model.impl", "reference"), ", or ", Argument("trainer.device", "cpu"))
CHECKS: tuple[Check, ...] = (
    Check("machine", "no more threads of torch than cores", _machine),
    Check("packages", "versions that socialx is made for", _packages, helps=("install socialx again with pip",)),
    Check("settings", "settings that load, fit together and have an effect", _settings, helps=("correct it there",)),
    Check("device", "the device that is asked for", _device, ("settings",), _OTHER_DEVICE),
    Check("float32", "how exact products of float32 are", _float32, ("device",), _OTHER_DEVICE),
    Check("precision", "a precision that the device computes in", _precision, ("device",), _OTHER_DEVICE),
    Check("memory", "a GiB of memory on host and device", _memory, ("device",), _OTHER_DEVICE),
    Check("disk", "a GiB of disk", _disk, helps=("change to a folder that can be read",)),
    Check("data", "a file that can be read and cut into windows", _data, ("device",), ("convert its source again",)),
    Check("product", "matrix products as they should be", _product, ("device",), _OTHER_DEVICE),
    Check("encoder", "a finite step of the model, all on one device", _encoder, ("device",), _OTHER_STEP),
    Check("processes", "a way for several processes to train together", _processes, ("device",)),
    Check("workers", "a process that makes batches", _workers, ("settings",), (Argument("loader.mode", "chunk"),)),
    Check("shared memory", "room for the batches of workers", _shared_memory),
)
