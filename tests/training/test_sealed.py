"""Sealed files: what is written is read again, with the same seal as in the runs that come with socialx."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from socialx.core import sealed_tensors as sealed
from socialx.training.run_folder import TRAINED
from tests.commands import refuses


def seal(path: Path) -> str:
    with safe_open(path, "pt") as file:
        return file.metadata()["sha256"]


@pytest.mark.parametrize("file", sorted(TRAINED.rglob("*.safetensors")), ids=lambda at: f"{at.parent.name}-{at.stem}")
def test_files_of_the_package_keep_their_seal(file: Path, tmp_path: Path) -> None:
    tensors, described = sealed.read(file)
    sealed.write(tmp_path / "again", tensors, described)
    assert seal(tmp_path / "again") == seal(file)
    again, texts = sealed.read(tmp_path / "again")
    assert texts == described
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_texts_and_tensors_are_sealed_and_of_weights_the_epoch(tmp_path: Path) -> None:
    one, other, weights = tmp_path / "one", tmp_path / "other", tmp_path / "weights"
    sealed.write(one, {"a": np.ones(3, np.float32)}, {"schema": "s/1", "unit": "mph"})
    sealed.write(other, {"a": np.ones(3, np.float32)}, {"schema": "s/1", "unit": "mps"})
    assert seal(one) != seal(other)
    one.write_bytes(one.read_bytes().replace(b"mph", b"mps"))
    with refuses("tensors.torn") as caught, sealed.refuse_unreadable(one, "no table", ""):
        sealed.read(one)
    assert "one: no table (" in str(caught.value)
    assert "sha256" in str(caught.value)
    sealed.write(weights, {"a": torch.ones(3)}, {"epoch": "7", "by": "mine"})
    weights.write_bytes(weights.read_bytes().replace(b"mine", b"ours"))
    assert sealed.read(weights)[1] == {"epoch": "7", "by": "ours"}
    weights.write_bytes(weights.read_bytes().replace(b'"7"', b'"8"'))
    with pytest.raises(ValueError, match="sha256"):
        sealed.read(weights)
