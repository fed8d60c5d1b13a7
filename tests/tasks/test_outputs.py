"""Outputs of every command: none replaces a file of another kind, such as what the command reads."""

import gzip
import shutil
import typing
from pathlib import Path
from typing import Annotated

import pytest

import socialx
from socialx.core.errors import SettingsError
from tests.commands import LOCATIONS, cut_csv, refused, refuses, registered, small_file, small_run, works
from tests.commands import socialx as command

PROFILE = ["profile", "--data", "{data}"]
# command, option of an output, what stands before the option, the suffix that it must have
CASES = {
    ("convert", "--output-h5"): (["convert", "metr-la", "{csv}", "--meta-csv", "{meta}", "--overwrite"], ".h5"),
    ("inspect", "--plot"): (["inspect", "{data}"], ".png"),
    ("inspect", "--geojson"): (["inspect", "{data}"], ".geojson"),
    ("evaluate", "--save-scores"): (["evaluate", "{run}", "--data", "{data}", "--overwrite"], ""),
    ("evaluate", "--save-forecasts"): (["evaluate", "{run}", "--data", "{data}", "--overwrite"], ".h5"),
    ("explain", "--plot"): (["explain", "{run}", "--data", "{data}"], ".png"),
    ("explain", "--geojson"): (["explain", "{run}", "--data", "{data}"], ".geojson"),
    ("report", "--output"): (["report", "{run}", "--data", "{data}"], ".html"),
    ("predict", "--output"): (["predict", "{run}", "--data", "{data}", "--overwrite"], ".h5"),
    ("predict", "--plot"): (["predict", "{run}", "--data", "{data}", "--overwrite"], ".png"),
    ("export", "output"): (["export", "{run}", "--data", "{data}", "--overwrite"], ".pt2"),
    ("profile", "--output"): (PROFILE, ".json"),
    ("profile", "--html"): (PROFILE, ".html"),
    ("profile", "--trace"): (PROFILE, ".json.gz"),
    ("profile", "--tuned"): (PROFILE, ".yaml"),
}
# Those that are replaced only with --overwrite; a picture of predict is replaced as all pictures are.
ASKS = {case for case, (words, _) in CASES.items() if "--overwrite" in words} - {("predict", "--plot")}
# Paths that a command reads, or folders that it makes and that it refuses to fill where other files are in them.
NO_OUTPUTS = {
    *("--data-csv", "--meta-csv", "--ids", "path", "data", "paths", "--meta-csv", "run", "runs", "--resume"),
    *("--compare", "--token-file", "--alert-program", "--folder", "--table"),
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A table, locations, a file and a run."""
    folder = tmp_path_factory.mktemp("there")
    csv = cut_csv(folder / "METR-LA.csv", 400)
    found = {"csv": csv, "meta": folder / "meta.csv", "data": small_file(folder), "run": folder / "run"}
    shutil.copy(LOCATIONS, found["meta"])
    small_run(found["data"])
    return found


def typed(case: tuple[str, str], there: dict[str, Path], output: Path) -> list[str]:
    words = [word.format(**there) for word in CASES[case][0]]
    return [*words, *([case[1]] if case[1].startswith("--") else []), str(output)]


def test_every_output_of_every_command_is_one_of_the_cases() -> None:
    found = set()
    for each in registered():
        for name, hint in typing.get_type_hints(each.callback, include_extras=True).items():
            kind, *said = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
            if said and Path in (kind, *typing.get_args(kind)):
                flag = said[0].default if isinstance(said[0].default, str) else name
                if flag not in NO_OUTPUTS:
                    found.add((each.name, flag))
    assert found == set(CASES)


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_no_output_replaces_an_input(case: tuple[str, str], there: dict[str, Path], tmp_path: Path) -> None:
    inputs = [there["csv"], there["meta"]] if case[0] == "convert" else [there["data"]]
    if "{run}" in CASES[case][0]:
        inputs += [there["run"] / name for name in ("best.safetensors", "settings.yaml", "metrics.csv")]
    for number, path in enumerate(inputs):
        before = path.read_bytes()
        linked = tmp_path / f"{number}{CASES[case][1]}"  # the suffix is right, and it is the same file
        linked.symlink_to(path)
        done = command(*typed(case, there, linked))
        assert done.exit_code in (1, 2), done.output
        assert done.codes[-1] in ("output.input", "output.other-kind")
        assert path.read_bytes() == before
        assert linked.is_symlink()


@pytest.mark.parametrize("case", sorted(set(CASES) - {("convert", "--output-h5")}), ids=" ".join)
def test_a_file_of_another_kind_stays(case: tuple[str, str], there: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / f"mine{CASES[case][1]}"
    path.write_text("data:\n  lookback: 12\n")
    assert refused(*typed(case, there, path)).code == "output.other-kind"
    assert path.read_text() == "data:\n  lookback: 12\n"
    if case in ASKS and case != ("predict", "--output"):
        return
    other = tmp_path / "mine.txt"
    done = command(*typed(case, there, other))
    assert (done.exit_code, "'.txt'" in done.stderr) == (2, True)
    assert done.codes in (("output.suffix",), ("picture.suffix",))
    assert not other.exists()


@pytest.mark.parametrize("case", sorted(ASKS), ids=" ".join)
def test_data_is_replaced_only_with_overwrite(case: tuple[str, str], there: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / f"mine{CASES[case][1]}"
    path.write_text("mine")
    done = command(*(word for word in typed(case, there, path) if word != "--overwrite"))
    assert (done.exit_code, path.read_text()) == (1, "mine")
    assert (done.codes, "--overwrite" in done.stderr) == (("output.exists",), True)


@pytest.mark.slow
def test_pages_pictures_and_maps_replace_older_ones(there: dict[str, Path], tmp_path: Path) -> None:
    plot, geojson, svg = tmp_path / "a.png", tmp_path / "a.geojson", tmp_path / "a.svg"
    for _ in range(2):
        socialx.inspect(there["data"], plot=plot, geojson=geojson)
        socialx.inspect(there["data"], plot=svg)
        socialx.report([there["run"]], output=tmp_path / "a.html")
    quick = ["--steps", "2", "--warmup-steps", "0", "--trace-steps", "1", "--no-trials", "--preset", "mlp-small"]
    written = {"--output": "p.json", "--html": "p.html", "--trace": "p.json.gz", "--tuned": "p.yaml"}
    files = [word for flag, name in written.items() for word in (flag, str(tmp_path / name))]
    for _ in range(2):
        works("profile", "--data", there["data"], *quick, *files)
    assert b"traceEvents" in gzip.decompress((tmp_path / "p.json.gz").read_bytes())


def test_the_methods_of_results_keep_what_was_read(there: dict[str, Path], tmp_path: Path) -> None:
    data = shutil.copy(there["data"], tmp_path / "v.h5")
    before, forecast = Path(data).read_bytes(), socialx.predict(there["run"], data)
    scores = socialx.evaluate([there["run"]], data)
    for write in (forecast.write, forecast.select(list(forecast.sensors[:1])).to_csv, scores.to_csv):
        with refuses("output.other-kind"):
            write(data, overwrite=True)
    assert Path(data).read_bytes() == before


def test_advice_that_is_a_setting_of_the_call_stays(there: dict[str, Path], tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("# advised by socialx profile\ntrainer:\n  seed: 1\n")
    assert command("profile", "--data", there["data"], "-c", mine, "--tuned", mine).codes == ("output.input",)


def test_a_teacher_is_no_folder_to_train_in(there: dict[str, Path]) -> None:
    settings, trainer = socialx.load_run(there["run"]).settings, {"teacher": [str(there["run"])]}
    with refuses("train.is-teacher", SettingsError):
        socialx.train(there["data"], settings=settings, trainer=trainer, run_dir=there["run"], overwrite=True)


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".parquet", ".h5"])
def test_a_forecast_replaces_an_older_one_and_no_other(suffix: str, there: dict[str, Path], tmp_path: Path) -> None:
    forecast, path = socialx.predict(there["run"], there["data"]), tmp_path / f"a{suffix}"
    for overwrite in (False, True):
        forecast.write(path, overwrite)
    with refuses("output.exists"):
        forecast.write(path)
    other = tmp_path / f"b{suffix}"
    shutil.copy(there["csv"] if suffix == ".csv" else there["data"], other)
    with refuses("output.other-kind"):
        forecast.write(other, overwrite=True)


def test_two_outputs_of_one_name_are_refused(there: dict[str, Path], tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    done = command("evaluate", there["run"], "--save-scores", output, "--save-forecasts", output)
    assert (done.exit_code, done.codes, output.exists()) == (2, ("output.two",), False)
