"""A run as a model repository: the card that report writes, and a snapshot as a hub leaves it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

import socialx as api
from tests.commands import refused, works


def front_matter(card: str) -> dict[str, object]:
    _, head, _ = card.split("---\n", 2)
    found: dict[str, object] = yaml.safe_load(head)
    return found


def test_the_card_has_the_scores_the_data_and_the_licence(run: Path, tmp_path: Path) -> None:
    result = works("report", run, "--card", "cc-by-4.0", "-o", tmp_path / "page.html")
    card = (run / "README.md").read_text()
    assert f"wrote {run / 'README.md'}" in result.stdout
    head, scores = front_matter(card), api.evaluate(run, baselines=True)
    assert (head["license"], head["library_name"]) == ("cc-by-4.0", "socialx")
    (index,) = head["model-index"]  # type: ignore[misc]
    ((metric,),) = [each["metrics"] for each in index["results"]]
    assert metric["value"] == pytest.approx(scores[run].overall().mae, abs=1e-4)
    row = [f"{scores[run].at(each).mae:.3f}" for each in (15, 30, 60)] + [f"{metric['value']:.3f}"]
    protocol = api.load_run(run).protocol
    for text in (
        *(f"| {' | '.join(['run', *row])} |", protocol.dataset, str(protocol.last_time), "- model.width: 8"),
        *(f"{protocol.windows['train']:,} windows", "A network that is not this one needs another run."),
        *(f"| {name} | " for name in scores.distinct_models if name != str(run)),
    ):
        assert text in card
    assert "&" not in card
    assert str(run.parent) not in card  # no path of the machine


def test_a_card_is_written_again_and_no_other_readme_is_replaced(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for licence in ("mit", "unknown"):
        works("report", run, "--card", licence, "-o", page)
        assert front_matter((run / "README.md").read_text())["license"] == licence
    (run / "README.md").write_text("# Mine\n")
    assert refused("report", run, "--card", "mit", "-o", page).code == "output.other-kind"
    assert (run / "README.md").read_text() == "# Mine\n"


@pytest.mark.parametrize("licence", ["", "MIT licence", "mit\nlicense: gpl", "x" * 50])
def test_what_is_no_licence_is_refused(licence: str, run: Path, tmp_path: Path) -> None:
    assert refused("report", run, "--card", licence, "-o", tmp_path / "p.html", code=2).code == "report.licence"
    assert not (run / "README.md").exists()


def test_a_card_is_of_one_run_of_ones_own(run: Path, trained: Path, tmp_path: Path) -> None:
    for runs, says in (((run, trained), "report.one-run"), (("metr-la",), "report.shipped")):
        assert refused("report", *runs, "--card", "mit", "-o", tmp_path / "p.html", code=2).code == says


def test_a_snapshot_of_links_forecasts_as_the_run(run: Path, data: Path, tmp_path: Path) -> None:
    works("report", run, "--card", "mit", "-o", tmp_path / "page.html")
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots/0a1b2c"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(run.iterdir())):
        if file.suffix != ".pt":  # what a forecast does not need
            shutil.copy(file, blobs / f"{number:040x}")
            (snapshot / file.name).symlink_to(f"../../blobs/{number:040x}")
    (snapshot / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    np.testing.assert_array_equal(api.predict(snapshot, data).values, api.predict(run, data).values)
    assert api.load_run(snapshot).protocol == api.load_run(run).protocol
    works("evaluate", snapshot, "--data", data, "--intervals")
