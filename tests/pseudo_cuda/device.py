"""A CUDA device in host memory: ``torch.cuda`` of a CPU build of torch, so that its branches run on every machine.

Whoever imports this before torch has the device: ``device.cpp`` is compiled once and loaded, and what torch leaves out
of a CPU build is filled in.  It changes torch for the whole process, so that tests use it in processes of their own.
Numbers, autograd, autocast, the gradient scaler and the optimizer are torch's.  What it cannot show: times, races,
NCCL, CUPTI, and the code of Inductor.
"""

import atexit
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SOURCE = Path(__file__).parent / "device.cpp"
NAME = "Pseudo CUDA device"
MEMORY = 4 << 30  # bytes
SYNC_DEBUG = ("default", "warn", "error")


def load() -> None:
    """Compile the device, unless that was done, and load it: before torch is imported, which asks for devices once.

    CalledProcessError where it does not compile.
    """
    assert "torch" not in sys.modules, "the device must be there before torch"
    found = find_spec("torch")
    assert found is not None
    assert found.origin is not None
    torch_folder = Path(found.origin).parent
    key = sha256(SOURCE.read_bytes() + version("torch").encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"pseudo_cuda_{os.getuid()}_{key}.so"
    if not library.exists():
        made, include = library.with_suffix(f".{os.getpid()}"), torch_folder / "include"
        headers = [f"-I{include}", f"-I{include / 'torch/csrc/api/include'}"]
        command = ["c++", "-O1", "-std=c++20", "-fPIC", "-shared", *headers, str(SOURCE), "-o", str(made)]
        links = [f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu"]
        subprocess.run([*command, *links], check=True, capture_output=True, text=True)
        made.rename(library)
    for each in (torch_folder / "lib/libtorch_cpu.so", library):
        ctypes.CDLL(str(each), ctypes.RTLD_GLOBAL)


load()

import torch  # noqa: E402

ops = torch.ops.pseudo_cuda


def new_stream(device: Any = None, priority: int = 0) -> torch.Stream:
    return torch.Stream(device="cuda", priority=priority)


def new_event(enable_timing: bool = False, blocking: bool = False) -> torch.Event:
    return torch.Event(device="cuda", enable_timing=enable_timing)


class Generator:
    """The generator of the device, which is that of the host."""

    def clone_state(self) -> Any:
        return torch.default_generator.get_state()

    def graphsafe_set_state(self, state: Any) -> None:
        torch.default_generator.set_state(state)
        ops.end_generator()


class CUDAGraph:
    """Operators of a stream; a replay runs all of them again."""

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self._number = ops.begin_recording(capture_error_mode == "global")

    def capture_end(self) -> None:
        ops.end_recording()

    def replay(self) -> None:
        ops.replay(self._number)

    def reset(self) -> None:
        ops.drop(self._number)


@contextmanager
def graph(graph: CUDAGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global") -> Iterator[None]:
    """What ``torch.cuda.graph`` does: a recording that fails is ended, which raises again."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.current_stream()
    torch.cuda.set_stream(stream or new_stream())
    graph.capture_begin(pool, capture_error_mode)
    try:
        yield
    finally:
        graph.capture_end()  # where it raises, the stream of the recording stays current
        torch.cuda.set_stream(before)


@contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    before = ops.stream()
    ops.set_stream(stream.stream_id if stream is not None else before)
    try:
        yield
    finally:
        ops.set_stream(before)


def current_stream(device: Any = None) -> torch.Stream:
    return torch.Stream(stream_id=ops.stream(), device_index=0, device_type=1)


def empty_cache() -> None:
    if ops.pool_is_open():
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED: a recording did not end its pool")


def _to_card(storage: Any, location: str) -> Any:
    """A storage that was read from a file, where it is asked for on the device."""
    if not location.startswith("cuda"):
        return None
    return torch.empty(0, dtype=torch.uint8).set_(storage).to("cuda").untyped_storage()


def install() -> None:
    """Stand in for what torch.cuda asks of a CUDA build."""
    sizes = {"major": 8, "minor": 0, "warp_size": 32, "multi_processor_count": 2, "total_memory": MEMORY}
    sizes |= {"regs_per_multiprocessor": 65536, "shared_memory_per_multiprocessor": 65536, "L2_cache_size": 1 << 20}
    properties = SimpleNamespace(name=NAME, uuid="pseudo", max_threads_per_multi_processor=2048, **sizes)

    def set_sync_debug_mode(mode: int | str) -> None:
        ops.set_sync_debug(mode if isinstance(mode, int) else SYNC_DEBUG.index(mode))

    stand_ins: dict[str, Any] = {
        "CUDAGraph": CUDAGraph,
        "Event": new_event,
        "Stream": new_stream,
        "current_stream": current_stream,
        "default_generators": (Generator(),),
        "default_stream": lambda device=None: torch.Stream(stream_id=0, device_index=0, device_type=1),
        "empty_cache": empty_cache,
        "get_device_capability": lambda device=None: (8, 0),
        "get_device_name": lambda device=None: NAME,
        "get_device_properties": lambda device=None: properties,
        "get_rng_state": lambda device=None: torch.default_generator.get_state(),
        "get_rng_state_all": lambda: [torch.default_generator.get_state()],
        "get_sync_debug_mode": ops.sync_debug,
        "graph": graph,
        "graph_pool_handle": lambda: (0, 1),
        "is_current_stream_capturing": ops.records,
        "mem_get_info": lambda device=None: (MEMORY - ops.used(), MEMORY),
        "memory_stats": lambda device=None: {"num_alloc_retries": 0, "num_ooms": 0},
        "reset_peak_memory_stats": lambda device=None: ops.forget_most_used(),
        "set_per_process_memory_fraction": lambda share, device=None: ops.set_limit(int(share * MEMORY)),
        "set_rng_state": lambda state, device=None: torch.default_generator.set_state(state),
        "set_stream": lambda stream: ops.set_stream(stream.stream_id),
        "set_sync_debug_mode": set_sync_debug_mode,
        "stream": on_stream,
        "synchronize": lambda device=None: torch.accelerator.synchronize(),
    }
    answers: dict[str, Any] = {
        **dict.fromkeys(("init", "_lazy_init", "set_device", "manual_seed", "manual_seed_all"), None),
        **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), True),
        "device_count": 1,
        **dict.fromkeys(("current_device", "_exchange_device", "_maybe_exchange_device", "_is_in_bad_fork"), 0),
    }
    stand_ins |= {name: lambda *given, answer=answer, **options: answer for name, answer in answers.items()}
    stand_ins |= dict.fromkeys(("memory_allocated", "memory_reserved"), lambda device=None: ops.used())
    stand_ins |= dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), lambda device=None: ops.most_used())
    for name, stand_in in stand_ins.items():
        setattr(torch.cuda, name, stand_in)
    plain_clone = torch.UntypedStorage.clone

    def clone(storage: Any) -> Any:
        if storage.device.type != "cuda":
            return plain_clone(storage)
        return torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage).clone().untyped_storage()

    torch.UntypedStorage.clone = clone  # type: ignore[method-assign]
    torch.serialization.register_package(5, lambda storage: None, _to_card)
    atexit.register(time.sleep, 0.2)  # autograd's thread of the device drops its last Python objects


install()
