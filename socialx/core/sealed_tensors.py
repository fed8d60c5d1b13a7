"""Sealed files of a run: tensors, the texts that describe them, and the sha256 of both, as safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from socialx.core.disk import atomic_write, check_regular
from socialx.core.errors import Remedy, SocialxError

# What is raised on files that are none, by safetensors and by whoever makes something of their content.
UNREADABLE = (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError)


def write(path: Path, tables: Mapping[str, Tensor | np.ndarray], described: Mapping[str, str]) -> None:
    """Write a sealed file whole or not at all."""
    tensors = {name: torch.as_tensor(table).contiguous().cpu() for name, table in tables.items()}
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(tensors, {**described, "sha256": _seal(tensors, described)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a sealed file in the host's memory, and the texts; raises one of ``UNREADABLE``."""
    check_regular(path)
    content = path.read_bytes()  # safetensors opens no path that is not UTF-8
    tensors = load(content)
    described = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
    if described.pop("sha256", None) != _seal(tensors, described):
        raise ValueError("it does not have its sha256")
    return tensors, described


@contextmanager
def refuse_unreadable(path: Path, problem: str, remedy: Remedy) -> Iterator[None]:
    """Raise SocialxError, in one short line, where the block cannot read a file: it is ``problem``."""
    try:
        yield
    except UNREADABLE as error:
        raise SocialxError(path, f"{problem} ({' '.join(str(error).split())[:120]})", remedy) from None


def _seal(tensors: Mapping[str, Tensor], described: Mapping[str, str]) -> str:
    """The sha256 of a file.  Of weights, which have no schema, no text counts but their epoch."""
    return fingerprint(tensors, as_text(described) if "schema" in described else described.get("epoch", ""))


def as_text(described: Mapping[str, Any]) -> str:
    """What is said of tensors, as the text that is sealed."""
    return json.dumps(described, sort_keys=True)


def fingerprint(tensors: Mapping[str, Tensor], text: object) -> str:
    """sha256 of a text, such as an epoch, and of the names, types, shapes and bytes of tensors on the host."""
    digest = hashlib.sha256(str(text).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
