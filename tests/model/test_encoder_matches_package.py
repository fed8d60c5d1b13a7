"""The fused encoder is the xlstm package's stack: same parameters, same numbers, same gradients, no waiting."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from socialx.model.xlstm.exact import encode
from socialx.model.xlstm.package import xlstm
from tests.commands import python
from tests.encoders import LOOKBACK, gradients, make, relative, sequences, worst

LAYOUTS = [(2, []), (2, [1]), (2, [0, 1]), (3, [0, 2])]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize(("blocks", "slstm_at"), LAYOUTS)
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("steps", [1, 3, 12])
def test_outputs_and_gradients_are_equal(width: int, blocks: int, slstm_at: list[int], heads: int, steps: int) -> None:
    encoder, x = make(width, blocks, slstm_at, heads), sequences(5, steps, width)
    ours, theirs = encoder(x), encoder.stack(x)[:, -1]
    assert relative(ours, theirs) <= 1e-10
    assert worst(gradients(ours, x, encoder), gradients(theirs, x, encoder)) <= 1e-10


@pytest.mark.parametrize("slstm_at", [[], [1]])
def test_float32_is_as_close_to_the_truth_as_the_package(slstm_at: list[int]) -> None:
    encoder, x = make(64, 2, slstm_at), sequences(32, LOOKBACK, 64)
    truth = encoder.stack(x)[:, -1]
    exact = gradients(truth, x, encoder)
    encoder.float()
    x32 = x.detach().float().requires_grad_()
    errors = []
    for y in (encoder(x32), encoder.stack(x32)[:, -1]):
        found = {name: grad.double() for name, grad in gradients(y, x32, encoder).items()}
        errors.append((relative(y.double(), truth), worst(found, exact)))
    (ours, our_grads), (theirs, their_grads) = errors
    assert ours <= 3 * theirs + 1e-6
    assert our_grads <= 3 * their_grads + 1e-6


def _small_stack(**options: Any) -> Any:
    mlstm = xlstm.mLSTMLayerConfig(num_heads=2, conv1d_kernel_size=options.pop("mlstm_taps", 4))
    slstm = xlstm.sLSTMLayerConfig(
        backend="vanilla",
        num_heads=4,
        conv1d_kernel_size=options.pop("slstm_taps", 4),
        group_norm_weight=options.pop("group_norm_weight", True),
    )
    feedforward = xlstm.FeedForwardConfig() if options.pop("ffn", True) else None
    config = xlstm.xLSTMBlockStackConfig(
        mlstm_block=xlstm.mLSTMBlockConfig(mlstm=mlstm),
        slstm_block=xlstm.sLSTMBlockConfig(slstm=slstm, feedforward=feedforward),
        context_length=LOOKBACK,
        num_blocks=2,
        embedding_dim=40,  # the inner width of an mLSTM block, 128, is then not twice the width
        **{"slstm_at": [0], **options},
    )
    torch.manual_seed(0)
    stack = xlstm.xLSTMBlockStack(config).double()
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return stack


def test_other_numbers_of_taps() -> None:
    stack, x = _small_stack(slstm_taps=2, mlstm_taps=3), sequences(3, 5, 40)
    ours, theirs = encode(stack, x), stack(x)[:, -1]
    assert relative(ours, theirs) <= 1e-10
    assert worst(gradients(ours, x, stack), gradients(theirs, x, stack)) <= 1e-10


@pytest.mark.parametrize("backend", ["fused", "reference"])
@pytest.mark.parametrize("encoder_batch", [1, 7, 100])
def test_chunks_change_nothing(backend: str, encoder_batch: int) -> None:
    encoder, x = make(backend=backend), sequences(23, LOOKBACK, 32)
    whole = encoder(x)
    encoder.encoder_batch = encoder_batch
    parts = encoder(x)
    assert relative(parts, whole) <= 1e-12
    assert worst(gradients(parts, x, encoder), gradients(whole, x, encoder)) <= 1e-12


def test_auto_is_fused_and_reference_is_the_package() -> None:
    x = sequences(4, LOOKBACK, 32)
    auto, ours, theirs = (make(backend=backend) for backend in ("auto", "fused", "reference"))
    assert torch.equal(auto(x), ours(x))
    assert torch.equal(theirs(x), ours.stack(x)[:, -1])


def test_state_dict_is_the_packages() -> None:
    ours = make(40, 2, [0])
    stock, x = xlstm.xLSTMBlockStack(ours.stack.config).double(), sequences(3, LOOKBACK, 40)
    stock.load_state_dict({name.removeprefix("stack."): value for name, value in ours.state_dict().items()})
    assert relative(ours(x), stock(x)[:, -1]) <= 1e-10
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    ours.load_state_dict({f"stack.{name}": value for name, value in stock.state_dict().items()})
    assert relative(ours(x), stock(x)[:, -1]) <= 1e-10


@pytest.mark.parametrize("shift", [-100.0, 100.0])
@pytest.mark.parametrize("slstm_at", [[], [0, 1]])
def test_extreme_input_gates_have_finite_gradients(shift: float, slstm_at: list[int]) -> None:
    encoder = make(slstm_at=slstm_at, dtype=torch.float32)
    with torch.no_grad():
        for block in encoder.stack.blocks:
            if block.config.mlstm is not None:
                block.xlstm.mlstm_cell.igate.bias += shift
            else:
                block.xlstm.slstm_cell._bias_[:32] += shift
    x = sequences(8, LOOKBACK, 32, torch.float32)
    y = encoder(x)
    assert relative(y, encoder.stack(x)[:, -1]) <= 1e-4
    for name, grad in gradients(y, x, encoder).items():
        assert grad.isfinite().all(), name


@pytest.mark.parametrize(("low", "tolerance"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)], ids=str)
@pytest.mark.parametrize("slstm_at", [[], [1], [0, 1]])
def test_autocast_stays_close_to_float32(low: torch.dtype, tolerance: float, slstm_at: list[int]) -> None:
    encoder = make(64, 2, slstm_at, dtype=torch.float32, scale=0.1)
    x = sequences(32, LOOKBACK, 64, torch.float32)
    exact = encoder(x)
    with torch.autocast("cpu", dtype=low):
        y = encoder(x)
    assert y.dtype == torch.float32
    assert relative(y, exact) <= tolerance
    truth = gradients(exact, x, encoder)
    for name, grad in gradients(y, x, encoder).items():
        assert grad.dtype == torch.float32
        assert grad.isfinite().all(), name
        if truth[name].abs().max() > 1e-3:
            assert torch.cosine_similarity(grad.flatten(), truth[name].flatten(), dim=0) > 0.98, name


def test_dropout_acts_at_the_packages_places(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    def bent(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """In the place of dropout: what it does to an element depends on neither order nor layout."""
        shares.append(p * training)
        return 2 * x.clamp(min=-0.1)

    monkeypatch.setattr(nn.functional, "dropout", bent)
    stack, x = _small_stack(dropout=0.5).train(), sequences(3, LOOKBACK, 40)
    assert relative(encode(stack, x), stack(x)[:, -1]) <= 1e-10
    assert shares == [0.5, 0.0, 0.5] * 2  # the package gives its feed-forward part no dropout
    shares.clear()
    encode(stack.eval(), x)
    assert shares == [0.0] * 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"width": 30}, "4 heads: try width 32"),
        ({"width": 8, "heads": 8}, "at least 2"),
        ({"slstm_at": [2]}, r"slstm_at \[2\] .* 1,"),
        ({"slstm_at": [-1]}, r"slstm_at \[-1\]"),
        ({"width": 96, "heads": 32}, "multiples of 4"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**wrong)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((12, 32), "expected"), ((3, 12, 31), "expected"), ((3, 13, 32), "1 to 12"), ((3, 0, 32), "1 to 12")],
)
def test_bad_inputs_are_named(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()(torch.zeros(shape, dtype=torch.float64))


@pytest.mark.slow
def test_imports_where_a_gpu_is_seen_and_no_cuda_toolkit_is_installed() -> None:
    python(
        "import torch, torch.utils.cpp_extension as extension\n"
        "torch.cuda.is_available = lambda: True\n"
        "extension.CUDA_HOME = None\n"
        "from socialx.model.xlstm.encoder import SharedEncoder\n"
        "assert extension.CUDA_HOME is None\n"
        "from socialx.settings.schema import ModelSettings\n"
        "SharedEncoder(ModelSettings(width=32), 12)\n"
    )
