"""Sealed run files: tensors and descriptive texts with a sha256, as safetensors."""

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

# Raised for unreadable files, by safetensors or by code that interprets the content.
UNREADABLE = (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError)


def write(path: Path, tables: Mapping[str, Tensor | np.ndarray], described: Mapping[str, str]) -> None:
    """Write tensors by name and texts by name (described) to a safetensors file with a sha256, atomically."""
    tensors = {name: torch.as_tensor(table).contiguous().cpu() for name, table in tables.items()}
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(tensors, {**described, "sha256": _seal(tensors, described)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors on the host and texts from a sealed file; raises any of ``UNREADABLE``."""
    check_regular(path)
    content = path.read_bytes()  # safetensors opens UTF-8 paths only
    tensors = load(content)
    described = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
    if described.pop("sha256", None) != _seal(tensors, described):
        raise ValueError("the sha256 differs from the content")
    return tensors, described


@contextmanager
def refuse_unreadable(path: Path, problem: str, remedy: Remedy) -> Iterator[None]:
    """Raise SocialxError for ``path``, with problem and remedy as its text, if the block cannot read the file."""
    try:
        yield
    except UNREADABLE as error:
        raise SocialxError("tensors.torn", path, f"{problem} ({' '.join(str(error).split())[:120]})", remedy) from None


def _seal(tensors: Mapping[str, Tensor], described: Mapping[str, str]) -> str:
    """Return the sha256 to store in a file. Weights have no schema: only the epoch is hashed together with weights."""
    return fingerprint(tensors, as_text(described) if "schema" in described else described.get("epoch", ""))


def as_text(described: Mapping[str, Any]) -> str:
    """Return the descriptive texts as sorted JSON: the text that is hashed."""
    return json.dumps(described, sort_keys=True)


def fingerprint(tensors: Mapping[str, Tensor], text: object) -> str:
    """Return the sha256 over a text (such as an epoch) and over tensor names, types, shapes and bytes on the host."""
    digest = hashlib.sha256(str(text).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
