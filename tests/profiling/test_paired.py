"""Two ways in turns: the gain, its interval, and what drifts cancels."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from socialx.profiling.profile import Gain
from socialx.profiling.trials import T_99, gain, in_turns


def density(t: float, degrees: int) -> float:
    """Of Student's t distribution."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    return scale * (1 + t * t / degrees) ** (-(degrees + 1) / 2)


@pytest.mark.parametrize("degrees", range(1, len(T_99) + 1))
def test_the_table_holds_the_quantiles_of_students_t(degrees: int) -> None:
    at = np.linspace(0, T_99[degrees - 1], 20_001)
    within = 2 * np.trapezoid([density(t, degrees) for t in at.tolist()], at)
    assert within == pytest.approx(0.99, abs=1e-4)


def test_the_gain_of_numbers_on_paper() -> None:
    """Logarithms of the ratios 2, 2, 2, 4, 4, 4: mean 1.5 ln 2, deviation ln 2 x sqrt(0.3)."""
    found = gain([2, 4, 6, 8, 4, 4], [1, 2, 3, 2, 1, 1])
    reach = 4.032 * math.log(2) * math.sqrt(0.3 / 6)
    assert found.gain == pytest.approx(2**1.5)
    assert found.low == pytest.approx(2**1.5 * math.exp(-reach))
    assert found.high == pytest.approx(2**1.5 * math.exp(reach))


@pytest.mark.parametrize("pairs", [3, 6, 8])
@pytest.mark.parametrize("truth", [1.0, 1.04, 3.0])
def test_the_interval_covers_the_truth_in_99_of_100_cases(truth: float, pairs: int) -> None:
    random, covered = np.random.default_rng(pairs), 0
    for _ in range(2000):
        before, after = np.exp(random.normal(0, 0.05, (2, pairs)))
        found = gain(truth * before, after)
        covered += found.low <= truth <= found.high
    assert 0.98 <= covered / 2000 <= 0.998


@pytest.mark.parametrize(("pairs", "wanted"), [(1, "AB"), (2, "ABBA"), (6, "ABBAABBAABBA")])
def test_the_order_is_a_b_b_a(pairs: int, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    def way(name: str) -> Callable[[], float]:
        return lambda: order.append(name) or float(len(order))

    seen = []
    monkeypatch.setattr("socialx.profiling.trials.gain", lambda before, after: seen.append((before, after)))
    in_turns(way("A"), way("B"), pairs)
    assert "".join(order) == wanted
    ((before, after),) = seen
    assert [wanted[int(at) - 1] for at in before] == ["A"] * pairs
    assert [wanted[int(at) - 1] for at in after] == ["B"] * pairs
    assert all({int(a), int(b)} == {2 * n + 1, 2 * n + 2} for n, (a, b) in enumerate(zip(before, after, strict=True)))


def test_noise_and_drift_are_no_difference() -> None:
    """A drift of 6 % over all blocks, and 2 % of noise."""
    random, said = np.random.default_rng(0), 0
    for _ in range(500):
        drift = iter(np.linspace(1, 1.06, 12))

        def run(drift=drift) -> float:
            return float(next(drift) * math.exp(random.normal(0, 0.02)))

        said += in_turns(run, run, 6).differs
    assert said <= 15


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Gain(1.94, 1.91, 1.97), "1.94x as fast (1.91 to 1.97)"),
        (Gain(0.5, 0.4, 0.8), "2.00x as slow (1.25 to 2.50)"),
        (Gain(1.001, 0.995, 1.006), "no difference larger than 0.6 %"),
        (Gain(1.0, 0.8, 1.1), "no difference larger than 25.0 %"),
        (Gain(1.0, 1.0, 1.0), "no difference larger than 0.0 %"),
        (Gain(0.38, 0.08, 1.9), "not decided, from 0.08x to 1.90x as fast"),
        (Gain(1.6, 0.9, 2.9), "not decided, from 0.90x to 2.90x as fast"),
    ],
)
def test_a_gain_in_words(found: Gain, words: str) -> None:
    assert str(found) == words
    assert found.differs == (("as" in words) and "not decided" not in words)


@pytest.mark.parametrize(
    ("found", "decided"),
    [
        (Gain(6.3, 6.1, 6.5), True),
        (Gain(0.55, 0.53, 0.57), True),
        (Gain(1.0, 0.96, 1.04), True),
        (Gain(0.38, 0.08, 1.9), False),
        (Gain(1.04, 1.01, 1.07), False),
        (Gain(0.81, 0.55, 1.18), False),
    ],
)
def test_a_gain_is_decided_where_it_is_worth_a_change_or_is_not(found: Gain, decided: bool) -> None:
    assert found.decided == decided


@pytest.mark.parametrize("last", [2, 3, 6])
def test_blocks_end_when_they_are_enough(last: int) -> None:
    blocks = []
    found = in_turns(
        lambda: blocks.append("A") or 2.0, lambda: blocks.append("B") or 1.0, 6, lambda before, _: len(before) == last
    )
    assert "".join(blocks) == "ABBAABBAABBA"[: 2 * last]
    assert found.gain == pytest.approx(2)
