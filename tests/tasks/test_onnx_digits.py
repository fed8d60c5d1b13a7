"""What ONNX lacks or rounds away is written in other operations."""

from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from socialx.tasks.export_formats import as_onnx, write_onnx


class Both(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([F.logsigmoid(x), x.cummax(-1).values])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of torch's exporter
def test_onnx_keeps_the_digits_of_torch(tmp_path: Path) -> None:
    """Far from 0 too: onnxruntime's own log(sigmoid(-18)) is -inf."""
    torch.manual_seed(0)
    x = torch.cat([torch.linspace(-200, 200, 401), torch.linspace(-30, 30, 399)])[torch.randperm(800)].view(8, 100)
    program = torch.export.export(Both(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    write_onnx(tmp_path / "both.onnx", as_onnx(program, ["x"], "y"), "a text")
    session = onnxruntime.InferenceSession(tmp_path / "both.onnx")
    assert session.get_modelmeta().custom_metadata_map == {"socialx": "a text"}
    for rows in (1, 2, 8):
        (found,) = session.run(None, {"x": x[:rows].numpy()})
        torch.testing.assert_close(torch.from_numpy(found), Both()(x[:rows]), rtol=1e-6, atol=1e-6)
