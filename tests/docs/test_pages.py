"""The pages: every link leads somewhere, the index names all of them, and what they quote is in the repository."""

import json
import re
import sys
from pathlib import Path

import h5py
import pandas as pd
import pytest
import yaml

from benchmarks.accuracy import ENDED
from benchmarks.windows import RESULT, WAYS, main
from socialx.files.store.published import DATASETS
from socialx.settings.schema import KEYS
from tests.commands import ROOT
from tests.documents import blocks

DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
DECISIONS = re.split(r"^## ", (DOCS / "decisions.md").read_text(), flags=re.MULTILINE)[1:]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_the_index_names_every_page() -> None:
    named = set(re.findall(r"\]\(([^)\s]+\.md)\)", (DOCS / "README.md").read_text()))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"}
    assert pages <= named, pages - named


@pytest.mark.parametrize("text", DECISIONS, ids=lambda text: text.splitlines()[0])
def test_a_decision_is_short_and_names_its_evidence(text: str) -> None:
    assert len(text.splitlines()) <= 16
    evidence = text.partition("**Evidence:**")[2]
    assert re.search(r"`((?:tests|benchmarks|socialx|model|training)/[\w/]+\.(?:py|md))(?:::\w+)?`", evidence)
    named = re.findall(r"`((?:tests|benchmarks|socialx|model|training)/[\w/]+\.(?:py|md))(?:::\w+)?`", text)
    assert [path for path in named if not (ROOT / path).exists() and not (ROOT / "socialx" / path).exists()] == []


def test_the_numbers_of_the_decisions_are_those_of_their_sources() -> None:
    assert len(DECISIONS) == 6
    pages = {" ".join(text.split()[:2]): text for text in DECISIONS}  # by the first words
    assert "more than 60 settings" in pages["Settings have"]
    assert len(KEYS) > 60
    rows = re.findall(r"^\| ([\d,]+) \|.*\| ([\d.]+) \| ([\d.]+) \|$", results("loaders_cpu.md"), re.MULTILINE)
    measured = {number for sensors, *ratios in rows if sensors in ("207", "8,600") for number in ratios}
    assert (len(measured), [number for number in measured if number not in pages["The series"]]) == (4, [])
    performance = (DOCS / "performance.md").read_text()
    counted = json.loads(results("step_bytes.json"))
    step = f"{counted['launches']} launches and {counted['bytes'] / 1e9:.2f} GB"
    assert step in performance
    assert step in pages["The encoder"]


def results(name: str) -> str:
    return (ROOT / "benchmarks/results" / name).read_text()


def test_the_python_of_the_data_page_reads_it(excerpt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = blocks(DOCS / "data.md", "python")
    assert len(codes) == 1
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(excerpt.parent)
    names: dict = {}
    for code in codes:
        assert len([line for line in code.splitlines() if line.strip()]) <= 7
        exec(compile(code, "docs/data.md", "exec"), names)  # noqa: S102
    assert names["frame"].shape == (6048, 28)
    assert names["frame"].isna().to_numpy().mean() == pytest.approx((names["speeds"] != names["speeds"]).mean())
    assert 0 < names["frame"].isna().to_numpy().mean() < 0.2
    assert len((tmp_path / "hourly.csv").read_text().splitlines()) == 1 + 21 * 24


def test_the_tree_of_the_data_page_is_that_of_a_file(excerpt: Path) -> None:
    (tree,) = re.findall(r"```text\n(/ .*?)```", (DOCS / "data.md").read_text(), re.DOTALL)
    with h5py.File(excerpt) as opened:
        for group in ("data", "metadata"):
            for name, part in opened[group].items():
                kind = "/" if isinstance(part, h5py.Group) else " "
                assert re.search(rf"\+-- {name}{kind}", tree), name
        for attributes in (opened.attrs, opened["metadata"].attrs, opened["metadata/vd_info"].attrs):
            assert [name for name in attributes if not re.search(rf"\b{name}\b", tree)] == []
        lines = {name: re.search(rf"\+-- {name} +(\S+) \[", tree) for name in opened["metadata"]}
        for name, line in lines.items():
            if line:
                found = opened["metadata"][name].dtype
                assert line[1] == (f"S{found.itemsize}" if found.kind == "S" else str(found))
    assert len(tree.splitlines()) > 12


def test_continuous_integration_runs_targets_of_make() -> None:
    (job,) = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"].values()
    assert set(job["strategy"]["matrix"]["python"]) == {"3.11", "3.12", "3.13"}
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    run = set(re.findall(r"^\s*step make ([a-z-]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE))
    assert {"lint", "type", "test-all", "docs", "wheel"} <= run <= targets


def test_the_table_of_times_has_those_that_were_measured() -> None:
    record, page = json.loads(results("sizes.json")), results("sizes.md")
    cell = r" \| ([\d.,]+)"
    rows = re.findall(rf"^\| (\d+) \| `([-\w]+)`{4 * cell} \|$", page, re.MULTILINE)
    sizes = {(n, s) for n, of in record["sensors"].items() for s in of}
    assert {(sensors, size) for sensors, size, *_ in rows} == sizes
    for sensors, size, *cells in rows:
        of = record["sensors"][sensors][size]
        parameters, step, cpu, gib = (float(cell.replace(",", "")) for cell in cells)
        assert (parameters, step) == (of["parameters"], pytest.approx(of["step_cpu_s"], abs=0.006))
        assert cpu == pytest.approx(of["epoch_cpu_minutes"], rel=0.06)
        assert gib == pytest.approx(of["peak_mib"] / 1024, abs=0.06)
    assert f"was {record['load_before']:.1f} at the " in page


def test_the_scores_of_the_sizes_are_those_of_their_runs() -> None:
    runs = json.loads(results("accuracy.json"))["runs"]
    accuracy = (DOCS / "accuracy.md").read_text()
    row = r"^([\w ]+), (re-run|published) \|.*?" + r" (\d.\d\d) \|" * 2 + r" (\d.\d\d)\b"
    others = {(score.model, score.source.partition(":")[0], score.mae) for score in DATASETS["metr-la"].scores}
    for page, least in ((accuracy, 8), ((ROOT / "README.md").read_text(), 4)):
        rows = re.findall(row, page, re.MULTILINE)
        assert len(rows) >= least
        assert {(model, label, tuple(map(float, cells))) for model, label, *cells in rows} <= others
    tables = accuracy.split("\nreads 12 steps and past days | ")
    for seeds, row in (
        (("mlp-small",), "**`mlp-small`**"),
        (("xlstm-small",), "**`xlstm-small`**"),
        (("metr_la",), "**`metr-la`**, 6 epochs"),
        (("mlp", "mlp_1", "mlp_2"), "MLP, a step in a token, three seeds"),
    ):
        for scores, text in zip((ENDED, "scores"), tables, strict=True):
            means = [sum(mae_at(runs[of][scores], at) for of in seeds) / len(seeds) for at in (15, 30, 60, "all")]
            assert f"\n{row} | {' | '.join(f'{mae:.3f}' for mae in means)}" in text
    for run, way in (("xlstm-small", ENDED), ("metr_la", ENDED), ("metr_la", "scores")):
        whole = runs[run][way]["all"]
        assert f" | {whole['mae']:.3f} | {whole['rmse']:.3f} | {whole['mape']:.2f} %\n" in accuracy
    maes = [mae_at(runs["mlp-small"]["scores"], at) for at in (15, 30, 60)]
    copied = re.search(r"^naive \| ([\d.]+) \| [\d.]+ \| ([\d.]+)$", accuracy, re.MULTILINE)
    assert copied
    first, last = (100 * (1 - mae / float(of)) for mae, of in zip((maes[0], maes[2]), copied.groups(), strict=True))
    comparing = (DOCS / "compare-a-model.md").read_text()
    assert f"`mlp-small` | {first:.0f} % | {last:.0f} %\n" in comparing
    demo = re.findall(r"^(?:naive|demo/run) ((?:\| [\d.]+ ?){3})$", comparing, re.M)
    before, after = ([float(number) for number in row.split("|")[1:]] for row in demo)
    first, last = (100 * (1 - new / old) for new, old in ((after[0], before[0]), (after[2], before[2])))
    assert f"`make demo` | {first:.0f} % | {last:.0f} %\n" in comparing


def test_the_window_errors_are_those_of_the_shipped_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, run = pd.read_csv(RESULT), json.loads(results("accuracy.json"))["runs"]["metr_la"]
    assert (len(table), int((table["valid"] == 0).sum())) == (6850, 531)
    for way, scores in zip(WAYS, (ENDED, "scores"), strict=True):
        mean = (table[way] * table["valid"]).sum() / table["valid"].sum()
        assert mean == pytest.approx(mae_at(run[scores], "all"), abs=1e-4)
    worse = table.assign(mae=table["training days"] + 0.125)[["origin", "mae"]]
    worse[::-1].to_csv(tmp_path / "theirs.csv", index=False)
    monkeypatch.setattr(sys, "argv", ["windows", str(tmp_path / "theirs.csv")])
    main()
    assert "training days: 0.1250 mph, 95 % from 0.1250 to 0.1250, 24 days" in capsys.readouterr().out


def mae_at(scores: dict, minutes: int | str) -> float:
    return scores[str(minutes)]["mae"]
