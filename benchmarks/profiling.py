"""How true a profile is: its rules in simulated loops, and settings that are slow on purpose.

python benchmarks/profiling.py rules             400 simulated loops with known truth
python benchmarks/profiling.py tour              four slow settings: found, foretold, changed, measured
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import torch

import socialx
from benchmarks.common import head, line, machine, parser
from benchmarks.simulated_loop import draw, profile_of, truth
from socialx.profiling.rules import RULES, joint_patch, with_findings
from socialx.settings.file import as_yaml
from socialx.settings.layers import ConfigLayers

EXAMPLES = Path(__file__).parents[1] / "examples"
SEEDS = range(9000, 9400)  # none of them was looked at while the rules were written
NOT_STALLS = ("compute.", "memory.")
SMALL = {"model": {"kind": "lstm", "width": 16}, "loader": {"batch_size": 16}}
XLSTM = {"model": {"width": 16, "blocks": 1, "slstm_at": []}, "profile": {"steps": 60}}
TOUR: dict[str, dict[str, Any]] = {
    "starved loader": {
        "model": {"kind": "linear"},
        "loader": {"batch_size": 64, "mode": "workers", "num_workers": 1},
        "trainer": {"threads": 1},
    },
    "the loss read in every step": {**SMALL, "trainer": {"log_every_n_steps": 1, "threads": 1}},
    "too many threads": {**XLSTM, "loader": {"batch_size": 32}, "trainer": {"threads": 8}},
    "tiny batches": {**XLSTM, "loader": {"batch_size": 1}, "trainer": {"accumulate_grad_batches": 32, "threads": 1}},
}


def rules() -> None:
    """First findings against the truth of simulated loops."""
    drawn, right, said = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    words = {row.name: row.word for row in RULES}
    for seed in SEEDS:
        loop = draw(Random(seed))
        true, _ = truth(loop)
        found = with_findings(profile_of(loop)).findings
        first = next((f for f in found if f.severity != "info" and not f.rule.startswith(NOT_STALLS)), None)
        word = words[first.rule].removesuffix("-BOUND") if first else "healthy"
        drawn[true] += 1
        right[true] += word == true
        if word != true:
            said[true, word] += 1
    print(head("truth", "loops", "first finding is it"))
    for name in sorted(drawn):
        print(line([name, drawn[name], f"{right[name] / drawn[name]:.1%}"]))
    print(line(["all", drawn.total(), f"{right.total() / drawn.total():.1%}"]), end="\n\n")
    mistaken = ", ".join(f"{true} for {word} {n}x" for (true, word), n in said.most_common())
    print(f"taken for another: {mistaken or 'none'}")
    healthy = drawn["healthy"]
    print(f"false alarms: {healthy - right['healthy']} of {healthy} healthy loops")


def tour(data: str) -> None:
    """Slow settings: what the profile names and foretells, and what its settings bring."""
    columns = ("verdict", "first finding", "changed", "foretold", "measured", "brought of the gain foretold")
    print(head("problem", *columns))
    slow = {"all together": None, **TOUR}
    for name, sections in slow.items():
        files = (EXAMPLES / "slow_on_purpose.yaml",) if sections is None else ()
        layers = ConfigLayers.from_call(ConfigLayers.read(files), {**(sections or {}), "data": data})
        found = socialx.profile(settings=layers)
        first = next((each for each in found.findings if each.severity != "info"), None)
        patch = joint_patch(found.findings) if sections is None else dict(first.patch) if first else {}
        if first is None or not patch:
            print(line([name, found.verdict, first.rule if first else "none", *"----"]), flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            tuned = Path(folder, "tuned.yaml")
            tuned.write_text(as_yaml(patch, {}))
            gain = socialx.compare(settings=layers, other=tuned).gain
        expected = first.trial.gain if first.trial else first.ceiling or 1.0
        foretold = f"{expected:.2f}x" if sections is not None else "-"
        brought = (gain.gain - 1) / (expected - 1)
        change = ", ".join(f"{key} = {value}" for key, value in patch.items())
        measured = f"{gain.gain:.2f}x ({gain.low:.2f} to {gain.high:.2f})"
        share = f"{brought:.0%}" if sections is not None else "-"
        print(line([name, found.verdict, first.rule, change, foretold, measured, share]), flush=True)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("what", choices=["rules", "tour"])
    arguments.add_argument("--data", help="of tour: a converted file; without it the excerpt in examples/data")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    print(machine(), end="\n\n", flush=True)
    if given.what == "rules":
        rules()
        return
    with tempfile.TemporaryDirectory() as folder:
        data = given.data or Path(folder, "metr_la.h5")
        if not given.data:
            locations = EXAMPLES / "data/sensor_locations.csv"
            socialx.convert("metr-la", EXAMPLES / "data/METR-LA-excerpt.csv", data, meta_csv=locations)
        tour(str(data))


if __name__ == "__main__":
    main()
