"""A device that is of use, the words of memory that runs out, and the first scale of fp16."""

import re

import pytest
import torch

from socialx.core.errors import SettingsError
from socialx.core.precision import Precision, gpu_problem, is_out_of_memory, resolve_device
from socialx.core.progress import Event, Note, subscribe
from tests.commands import refuses
from tests.networks import CPU, example, forecaster, network, trainer

BUILD = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


OUT_OF_MEMORY = [
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "Triton Error [CUDA]: out of memory",
    "CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation: out of memory",
    "CUDA Error: cudaErrorMemoryAllocation",
    "HIP out of memory. Tried to allocate 2.00 GiB",
    "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    "unable to mmap 4096 bytes from file: Cannot allocate memory (12)",
]
OTHER_FAULTS = [
    "shape '[2]' is invalid for input of size 3",
    "out of resource: shared memory, Required: 147456, Hardware limit: 101376",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: no kernel image is available for execution on the device",
    "mat1 and mat2 must have the same dtype",
]


@pytest.mark.parametrize("words", OUT_OF_MEMORY + OTHER_FAULTS)
def test_memory_that_runs_out_is_known_by_its_words(words: str) -> None:
    assert is_out_of_memory(RuntimeError(words)) == (words in OUT_OF_MEMORY)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A card of a capability, seen by a torch with code for some architectures."""
    capability, built = request.param
    answers = {"is_available": True, "device_count": 1, "get_device_name": "Card 7"}
    answers |= {"get_device_capability": capability, "get_arch_list": built}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)


OF_USE = [
    ((8, 0), BUILD),
    ((8, 9), BUILD),  # by the code of an earlier one of its generation
    ((9, 0), ["sm_90a"]),
    ((10, 3), BUILD),
    ((13, 0), BUILD),  # by the portable form
    ((11, 0), ["compute_90"]),
    ((9, 4), ["gfx90a", "gfx942"]),
    ((9, 0), []),
]
NOT_OF_USE = [
    ((7, 0), BUILD),
    ((6, 1), BUILD),
    ((7, 2), ["sm_75"]),  # later code of its generation
    ((8, 0), ["sm_86", "sm_90"]),
    ((11, 0), ["sm_100", "sm_120"]),
    ((7, 5), ["sm_80", "compute_80"]),
]


@pytest.mark.parametrize("card", OF_USE, indirect=True)
def test_a_card_with_code_is_used(card: None) -> None:
    assert gpu_problem(torch.device("cuda", 0)) == ""
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda", 0)


@pytest.mark.parametrize("card", NOT_OF_USE, indirect=True)
def test_without_code_for_the_card_auto_is_the_cpu_with_a_note(card: None) -> None:
    heard: list[Event] = []
    with subscribe(heard.append):
        assert resolve_device("auto") == CPU
    (said,) = [event.message for event in heard if isinstance(event, Note)]
    assert said.code == "device.cpu-instead"
    assert re.match("cuda:0: .* Card 7, capability ", said.sentence())
    assert said.advice() == "socialx.doctor()"
    for asked in ("cuda", "cuda:0"):
        with refuses("device.unfit", SettingsError) as caught:
            resolve_device(asked)
        assert "Card 7" in str(caught.value)


def test_the_first_steps_in_fp16_are_taken() -> None:
    """The model as it is made, in the type whose largest number is 65,504."""
    from socialx.training.learner import Learner

    made = Learner(forecaster(width=64, social=2), network(), Precision("16-mixed", CPU), trainer(learning_rate=1e-3))
    for seed in range(6):
        assert torch.isfinite(made.step([example(seed=seed)]))
    assert made.count_skipped() == 0
