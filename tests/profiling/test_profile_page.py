"""The page of a profile: well-formed, escaped, readable in both colour schemes, and drawn by a browser."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import escape

from socialx.profiling.page import STYLES, ProfileView, page
from socialx.profiling.profile import Finding, Profile, Trial
from socialx.profiling.sections import (
    Bubble,
    Copy,
    Device,
    Fluctuation,
    Host,
    Idle,
    Kernels,
    LoaderFacts,
    Memory,
    Operators,
    Phases,
    StepTimes,
    Sync,
    Throughput,
    Timeline,
    Top,
    Window,
)
from tests.pages import CHROMIUM, Outline, colours_of, contrast, drawn, everywhere, refuse_network, well_formed

ODD = "<script>alert('x')</script>&\"\u202e\x00\udcff"
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>(" + "Params, " * 20


def cuda() -> Profile:
    """A CUDA device that waits for four workers in lock-step."""
    busy = [max(0.0, min(1.0, (0.94 if at % 38 > 20 else 0.02) + 0.04 * math.sin(at))) for at in range(240)]
    step_ms = [2412.0 + 40 * math.sin(at) + (7000 if at % 4 == 0 else 0) for at in range(120)]
    tops = [
        Top(GEMM, 0.412, 461_200.4, 24),
        Top("void at::native::elementwise_kernel<128, 4>", 0.187, 209_300.1, 1204),
        Top("slstm_forward", 0.131, 146_700.0, 2),
        Top("triton_poi_fused_add_mul_0", 0.0004, 3.2, 0.125),
    ]
    return Profile(
        window=Window(120, 283.4, 12, "device"),
        shares=Phases(0.536, 0.0104, 0.4504, 0.0032, 0.422, 0.0284),
        step_ms=StepTimes(2412.0, 9480.1, 9502.7, [118, 4]),
        throughput=Throughput(27.1, 1_122_000.0),
        gpu_busy=0.4324,
        sm_efficiency=0.71,
        bubble=Bubble(0.021, 0.0071, 0.0003, 0.0, 0.0),
        idle=Idle(0.578, 0.0211, 0.0003, 0.5459, 0.5359, 0.0068, 0.0032, 0.0107, 0.0),
        kernels=Kernels(1400, 11.2, 0.034, 1390, 8, 1.21, tops),
        sync=Sync(1.0, ["/code/social x/training/loop.py:212"]),
        copy=Copy(1.3e7, True),
        memory=Memory(6_900_000_000, 150_100_000_000, 7_400_000_000, 0, 0.0, 0.5),
        device=Device(0.46, 0.0, 1.0, 0.98, None),
        why={"operators": "a CUDA device has kernels", "host.gc": "not timed"},
        loader=LoaderFacts("workers", 404, 4, 2, making_s=9.5, supply=0.47),
        host=Host(8, 16),
        fluctuation=Fluctuation(0.25, 0.46, 0.0, 0.98, 98.0, 9.5, 0.97, 3.9, "loader.num_workers (4)"),
        timeline=Timeline(0.25, busy, 1, step_ms),
        verdict="INPUT-BOUND",
        summary="The GPU idles 54% of the time waiting for batches. A perfect fix makes training 2.15x as fast.",
        findings=[
            Finding(
                "loader.late",
                "critical",
                0.536,
                2.155,
                "4 workers make 0.42 batches/s, the GPU takes 0.89 of them per second.",
                {"loader.mode": "on_device", "loader.pin_memory": True},
                [{"loader.num_workers": 11}],
                "The whole series has 0.06 GiB, 133 GiB are free.",
                "loader.prefetch_factor: a deeper queue cannot raise the mean supply.",
            ),
            Finding("sync.per_step", "warn", 0.06, 1.064, "1.0 sync per step", {"trainer.log_every_n_steps": 50}),
            Finding("fluctuation.periodic", "info", 0.54, None, "The GPU swings between 0% and 98% busy."),
        ],
        environment={"device": "cuda", "device_name": "NVIDIA H200", "precision": "bf16-mixed", "torch": "2.15.0"},
        settings={"loader": {"batch_size": 64, "num_workers": 4}, "trainer": {"precision": "bf16-mixed"}},
        origin={"loader.batch_size": "--set", "loader.num_workers": "base.yaml", "trainer.precision": "base.yaml"},
    )


def cpu() -> Profile:
    """A CPU with few threads."""
    tops = [
        Top("aten::mm", 0.478, 51_200.0, 96),
        Top("aten::copy_", 0.12, 12_900.0, 402),
        Top("aten::native_layer_norm_backward", 0.061, 6_530.5, 8),
    ]
    return replace(
        bare(),
        window=Window(200, 21.94, 10, "host"),
        shares=Phases(0.0006, 0.0, 0.9931, 0.0063),
        step_ms=StepTimes(107.3, 121.8, 148.9, [17]),
        throughput=Throughput(583.4, 1_450_000.0),
        operators=Operators(tops),
        host=Host(8, 16, 7.34, 0.02, 0.001),
        memory=Memory(2_410_000_000, 137_400_000_000, growth_bytes_per_step=1200.0),
        loader=LoaderFacts("on_device", 404, series_bytes=64_000_000, free_bytes=120_000_000_000),
        trials=[
            Trial(1.342, 1.301, 1.384, "host.threads", 16),
            Trial(1.012, 0.991, 1.034, "loader.batch_size", 128),
            Trial(0.71, 0.69, 0.73, "host.threads", 4),
        ],
        fluctuation=Fluctuation(0.22, 0.993, 0.97, 1.0, 3.0),
        timeline=Timeline(
            0.22,
            [0.99 + 0.01 * math.sin(at) for at in range(100)],
            1,
            [107 + 6 * math.sin(at * at) for at in range(200)],
        ),
        verdict="COMPUTE-BOUND",
        summary="The processor computes 99% of the time. The next step is the model itself.",
        findings=[Finding("host.threads", "warn", 0.25, 1.34, "16 threads were 1.34x as fast.", {"host.threads": 16})],
        environment={"device": "cpu", "device_name": "x86_64", "precision": "32-true", "torch": "2.15.0+cpu"},
        settings={"trainer": {"accelerator": "cpu"}},
        origin={"trainer.accelerator": "command line"},
        why=dict.fromkeys(("gpu_busy", "sm_efficiency", "kernels", "sync", "copy"), "no CUDA device")
        | {"device": "nvidia-ml-py is not installed: pip install nvidia-ml-py"},
    )


def bare() -> Profile:
    """Nearly everything is None."""
    return Profile(
        window=Window(5, 1.0, 0, "host"),
        shares=Phases(0.25, 0.0, 0.5, 0.25),
        step_ms=StepTimes(200.0, 200.0, 200.0),
        throughput=Throughput(64.0),
        loader=LoaderFacts("on_device", 404),
        host=Host(1, 1),
        fluctuation=Fluctuation(0.2, 0.5, 0.5, 0.5, 0.0),
        timeline=Timeline(0.2, [], 1, []),
        why={"memory": "not known"},
    )


BUILT = {"cuda": cuda, "cpu": cpu, "bare": bare}
names = pytest.mark.parametrize("name", BUILT)


@names
def test_the_document_is_well_formed_and_can_be_heard(name: str) -> None:
    text = page(BUILT[name]())
    outline = well_formed(text)
    assert len(outline.named("title")) - len(outline.named("svg")) == 1
    assert bool(outline.named("svg")) == (name != "bare")
    assert all(picture["role"] == "img" for picture in outline.named("svg"))
    assert {attributes["scope"] for attributes in outline.named("th")} == {"col", "row"}
    assert not outline.named("script")
    assert len(text.encode()) < 200_000
    refuse_network(text)
    parts = re.findall("<h2>(.*?)</h2>", text)
    assert name != "bare" or [part.split()[-1] for part in parts] == ["cause", "steps", "Rates"]  # the measured ones
    assert not re.search(r"\b(None|nan|inf|infinity|null)\b", outline.text, re.IGNORECASE)


@pytest.mark.parametrize("scheme", [0, 1])
def test_every_text_can_be_read(scheme: int) -> None:
    """WCAG 2: a contrast of 4.5 for text; keys are the other way round."""
    colours = colours_of(STYLES, scheme)
    pairs = [(ink, ground) for ink in ("Ink", "Soft") for ground in ("Page", "Card", "Code")]
    pairs += [(ink, "Card") for ink in ("C1", "C2", "C3", "C4", "C5", "Critical", "Warn")]
    assert all(contrast(colours[ink], colours[ground]) >= 4.5 for ink, ground in pairs)


def test_a_number_that_is_none_or_not_a_number_does_not_show() -> None:
    nothing = {"low": None, "rate": math.nan}
    profile = replace(
        cuda(),
        window=Window(120, math.nan, 12, "device"),
        shares=Phases(0.5, math.nan, 0.5, 0.0),
        throughput=Throughput(math.nan, math.inf),
        timeline=Timeline(0.25, [0.5, math.nan, 1.0], 1, [10.0, math.nan, 12.0]),
        fluctuation=Fluctuation(0.25, math.nan, 0.0, 1.0, 100.0, math.nan, None, None, None),
        findings=[Finding("x", "info", 0.1, math.nan, "evidence", nothing, [nothing])],
        settings={"a": nothing, "b": None},
        origin={"a.low": "here", "a.rate": "here", "c.low": "here"},
        environment={"device_name": None, "precision": None},
    )
    text = page(profile)
    assert not re.search(r"\b(None|null|Infinity)\b|nan\b|NaN", text)
    assert "low = -" in text


def test_texts_of_a_profile_are_no_markup() -> None:
    for build in BUILT.values():
        plain, odd = build(), everywhere(build(), lambda text: ODD + text)
        text = page(odd)
        assert "<script" not in text
        assert not set(ODD) & set("\u202e\x00\udcff") & set(text)
        text.encode()
        kinds = [tag for tag, _, _ in Outline(page(replace(plain, bubble=None))).elements]
        assert kinds == [tag for tag, _, _ in Outline(page(replace(odd, bubble=None))).elements]
    assert escape("<script>alert('x')</script>&\"") in page(replace(cuda(), verdict=ODD))


def test_every_finding_is_told() -> None:
    profile = cuda()
    text = Outline(page(profile)).text
    for finding in profile.findings:
        assert finding.evidence in text
        assert finding.rule in text
        assert finding.severity in text
    assert "2.15x as fast" in text
    assert "at best: 1,096\u00a0ms" in text
    for said in (
        "at most 2.15x as fast",
        "loader.mode = on_device",
        "loader.pin_memory = true",
        "loader.num_workers = 11",
    ):
        assert said in text
    assert "Will not help" in text
    assert profile.findings[0].will_not_help in text
    assert "1.00x" not in text


def test_a_device_is_told_by_its_kernels() -> None:
    text = Outline(page(cuda())).text
    names = ("kernels running", "no kernel running", "host late", "nothing asked for", "996.62", "waiting for input")
    for said in (*names, "53.6%"):
        assert said in text
    assert "training step " not in text.replace("a training step", "")
    assert "not known" not in text  # it took no time
    for said in ("NVIDIA H200", "bf16-mixed", "2.15.0", "120 steps in 283 s", "socialx profile", "INPUT-BOUND"):
        assert said in text
    for said in ("every 9.50 s = 3.90 steps", "loader.num_workers (4)", "/code/social x/training/loop.py:212"):
        assert said in text
    assert "4.6% of 140 GiB" in text
    for said in ("slstm_forward", "461,200.4", "1,204", "base.yaml", "loader.batch_size"):
        assert said in text


def test_a_processor_is_told_by_its_operators() -> None:
    text = Outline(page(cpu())).text
    for said in ("training step", "aten::mm", "51,200.0", "7.34", "of 16", "gpu_busy, sm_efficiency, kernels, sync"):
        assert said in text
    assert "kernels running" not in text
    for said in ("host.threads = 16", "1.34x as fast (1.30 to 1.38)", "no difference larger than 3.4 %", "as slow"):
        assert said in text
    assert "It repeats" not in text
    assert text.count("no CUDA device") == 1


def test_a_step_that_waits_is_no_utilisation() -> None:
    """One scale for the device, and one for the step: what a step waits for is not computed."""
    text = Outline(page(replace(cpu(), host=Host(1, 2, 0.4, 0.63, 0.0, others_used=1.6), verdict="WAIT-BOUND"))).text
    assert "utilisation" not in text.lower()
    for said in ("training step, computing", "36.3%", "training step, waiting", "63.0%", "1.6 of 2 cores"):
        assert said in text
    assert "of other programs" in text


def test_trials_say_their_interval_and_their_threads() -> None:
    trials = [Trial(2.5, 2.4, 2.6, "loader.batch_size", 8, threads=1), Trial(1.3, 0.9, 1.9, "trainer.threads", 4)]
    (batch, gain), threads = ProfileView(replace(cpu(), trials=trials)).trials()
    assert (gain, threads) == (str(trials[0]), ("trainer.threads = 4", str(trials[1])))
    assert batch.startswith("loader.batch_size = 8, ")
    assert batch.endswith(" trainer.threads = 1")


@pytest.mark.parametrize("points", [1, 2, 2000])
def test_short_and_long_timelines(points: int) -> None:
    line = Timeline(0.5, [at / points for at in range(points)], 3, [100.0 + at for at in range(points)])
    text = page(replace(cuda(), timeline=line))
    Outline(text)
    assert len(text.encode()) < 400_000


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_draws_it_at_any_width(tmp_path: Path) -> None:
    """All pages in frames of two widths, and once more as they are, with their policy against scripts."""
    long = everywhere(cuda(), lambda text: text if text in {"critical", "warn", "info"} else text + "x" * 80)
    profiles = {**{name: build() for name, build in BUILT.items()}, "long": long}
    for name, _, seen in drawn({name: page(profile) for name, profile in profiles.items()}, tmp_path):
        assert profiles[name].verdict in seen["text"]
        assert profiles[name].summary in seen["text"]
