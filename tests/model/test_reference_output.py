"""A large model computes the function that is stored here: no change of structure may change it unseen.

``python -m tests.model.test_reference_output`` writes the reference anew, for a change of the function that is meant.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import socialx
from socialx.core.batch import Batch, Target
from socialx.tasks.build import build
from tests.commands import ROOT

REFERENCE = Path(__file__).parent / "reference_output.json"


def computed() -> dict[str, object]:
    """Forecast, loss and gradients of a large model in float64, from two windows of the pretrained run's data."""
    data = ROOT / "socialx/trained/metr-la/last_two_days.h5"
    model = {"width": 128, "blocks": 4, "slstm_at": (1, 3), "backend": "fused", "dropout": 0.0, "patch": 1}
    pooling = {"neighbours": 32, "adaptive_adjacency_rank": 0}
    experiment = build(socialx.load_settings(env={}, data={"path": data}, model=model, pooling=pooling))
    model = experiment.model.double().eval()
    batch, target = next(iter(experiment.data.loader("test", 2).epoch(0)))
    batch = Batch(*(part.double() if part.is_floating_point() else part for part in batch))
    target = Target(*(part.double() if part.is_floating_point() else part for part in target))
    forecast = model(batch)
    loss = torch.where(target.valid, (forecast - target.values).abs(), 0.0).sum() / target.valid.sum()
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {
        "forecast_mph": forecast[0, ::6, ::50, 0].tolist(),
        "loss_mph": loss.item(),
        # Of every gradient its norm, and its product with a fixed vector, so that a permutation is noticed too.
        "gradients": {
            name: [grad.norm().item(), (grad.flatten() * torch.arange(grad.numel()).double().cos()).sum().item()]
            for name, grad in gradients.items()
        },
    }


def test_a_large_model_computes_the_stored_function() -> None:
    stored, found = json.loads(REFERENCE.read_text()), computed()
    np.testing.assert_allclose(found["forecast_mph"], stored["forecast_mph"], rtol=1e-9)
    assert found["loss_mph"] == pytest.approx(stored["loss_mph"], rel=1e-9)
    assert set(found["gradients"]) == set(stored["gradients"])
    for name, (norm, product) in stored["gradients"].items():
        now = found["gradients"][name]
        assert now == pytest.approx([norm, product], rel=1e-7, abs=1e-7 * norm + 1e-15), name


if __name__ == "__main__":
    REFERENCE.write_text(json.dumps(computed(), indent=1) + "\n")
