"""Memory of torch on a CPU in bytes, counted by what holds it: no allocator, no noise."""

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode


def saved_bytes(run: Callable[[], Tensor], module: nn.Module) -> int:
    """Bytes that ``run`` leaves saved for the backward pass: every storage once, those of parameters not at all."""
    own = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(storage.nbytes() for storage in kept.values())


class PeakBytes(TorchDispatchMode):
    """``peak``: the most bytes that were alive at once of what was made inside, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in _pytree.tree_leaves(out):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage not in self._known:
                self._known.add(storage)
                self._add(storage.nbytes())
                weakref.finalize(storage, self._add, -storage.nbytes())
        return out

    def _add(self, count: int) -> None:
        self.alive += count
        self.peak = max(self.peak, self.alive)


WAITS = {
    "_local_scalar_dense",
    "item",
    "nonzero",
    "nonzero_numpy",
    "masked_select",
    "equal",
    "is_nonzero",
    "unique_dim",
    "_unique2",
}


class NeverWaits(TorchDispatchMode):
    """Raises on every operation that needs the device's answer on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITS:
            raise AssertionError(f"{name} waits for the device")
        if name in ("index", "index_put", "index_put_") and any(
            isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1] if i is not None
        ):
            raise AssertionError(f"{name} by a boolean mask waits for the device")
        return func(*args, **(kwargs or {}))


class Launches(TorchDispatchMode):
    """Counts torch's operators that the host launches, by name: no views, and none while ``replaying()``."""

    def __init__(self, replaying: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._replaying, self.counts = replaying, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and not func.is_view and not self._replaying():
            self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))
