"""The commands from end to end on a small real file: what they print, write and return."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from socialx.core.batch import TrainingBatch
from socialx.dataset.loaders import gather
from socialx.profiling.analysis import PARTS
from socialx.settings import file as settings_file
from socialx.training.run_folder import NAMES
from tests.commands import LOCATIONS, ROOT, SMALL, cut_csv, python, refused, small_file, small_run, socialx, works


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    return small_run(data, "run2", "--max-epochs", "2", "--seed", "7")


@pytest.mark.parametrize("command", ["", "convert", "inspect", "config", "train", "evaluate", "explain", "profile"])
def test_help_needs_no_torch(command: str) -> None:
    code = (
        "import sys, socialx.cli as c\n"
        f"try: c.app({[*command.split(), '--help']!r})\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "heavy = {'torch', 'numpy', 'pandas', 'h5py', 'xlstm', 'yaml', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert "Usage:" in python(code)


def test_the_list_of_commands_needs_no_settings() -> None:
    code = "import sys, runpy, atexit; atexit.register(lambda: print('@', *sys.modules)); sys.argv[1:] = ['--help']"
    code += "; runpy.run_module('socialx', run_name='__main__')"
    shown, loaded = python(code).rsplit("@", 1)
    assert re.search(r"^  train  +[A-Z]\w+ ", shown, re.MULTILINE)
    assert not {"pydantic", "socialx.settings.layers", "socialx.cli.training_commands"} & set(loaded.split())


@pytest.mark.slow
def test_a_notebook_needs_no_command_line() -> None:
    code = "import sys, socialx; socialx.load_settings(env={}); socialx.train, socialx.evaluate, socialx.Settings"
    python(code + "; assert not {'typer', 'click', 'rich'} & set(sys.modules)")


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_command_parses_the_settings_of_a_run_once(command: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    load = yaml.load
    monkeypatch.setattr(yaml, "load", lambda text, **how: parsed.append(text) or load(text, **how))
    settings_file._yaml.cache_clear()
    works(command, run)
    assert parsed == [(run / "settings.yaml").read_text()]


def test_the_version_is_printed() -> None:
    assert re.fullmatch(r"socialx \d+\.\d+\.\d+\n", socialx("--version").stdout)


def test_convert_says_what_it_wrote(tmp_path: Path) -> None:
    source = cut_csv(tmp_path / "s.csv", 50)
    arguments = ["convert", "METR_LA", "--data-csv", source, "--meta-csv", LOCATIONS, "--output-h5", tmp_path / "o.h5"]
    result = works(*arguments, "--validate")
    assert re.search("50 rows x 4 sensors x 3 .* 2012-05-03 00:00:00 .. 2012-05-03 04:05:00, 0 gaps", result.stdout)
    assert "valid: " in result.stdout
    assert "--overwrite" in refused(*arguments)
    works(*arguments, "--overwrite")


def test_inspect_prints_a_table_or_json_of_one_shape_for_any_file(data: Path, tmp_path: Path) -> None:
    assert "metr_la" in socialx("inspect", data).stdout
    ours = json.loads(socialx("inspect", data, "--json").stdout)
    assert (ours["rows"], ours["sensors"], ours["problems"]) == (400, 4, [])
    assert (ours["kind"], ours["next"]) == ("current", None)
    raw = json.loads(socialx("inspect", cut_csv(tmp_path / "raw.csv", 9), "--json").stdout)
    assert (list(raw), raw["kind"], raw["path"], raw["rows"]) == (list(ours), "csv", str(tmp_path / "raw.csv"), None)
    assert raw["next"].startswith("socialx convert auto")


def test_config_prints_values_and_origins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("socialx.yaml").write_text("trainer: {seed: 5, patience: 3}")
    monkeypatch.setenv("SOCIALX_TRAINER__PATIENCE", "4")
    rows = json.loads(socialx("config", "--json", "--precision", "16-mixed").stdout)
    assert rows["trainer.seed"] == {"value": 5, "origin": "socialx.yaml"}
    assert rows["trainer.patience"] == {"value": 4, "origin": "$SOCIALX_TRAINER__PATIENCE"}
    assert rows["trainer.precision"] == {"value": "16-mixed", "origin": "--precision"}
    assert rows["trainer.max_epochs"]["origin"] == "default"
    assert re.search(r"seed +│ 5 +│ socialx.yaml", socialx("config").stdout)


def test_train_leaves_a_run_that_can_be_repeated(run: Path, data: Path) -> None:
    assert {path.name for path in run.iterdir()} == set(NAMES) - {"job.txt", "holidays.csv"}
    assert json.loads((run / "settings_sources.json").read_text())["trainer.seed"] == "--seed"
    (environment,) = json.loads((run / "environment.json").read_text())
    assert environment["precision"] == "32-true"
    assert {"torch", "xlstm", "numpy", "commit", "command"} <= set(environment)
    assert json.loads((run / "protocol.json").read_text())["windows"] == {"train": 264, "validation": 38, "test": 75}
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    again = run.parent / "again"
    works("train", "-c", run / "settings.yaml", "--run-dir", again)
    weights = [torch.load(folder / "last.pt", weights_only=True)["learner"]["model"] for folder in (run, again)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_precision_in_effect_is_printed_and_stored(data: Path, tmp_path: Path) -> None:
    done = works("train", "--precision=16-mixed", "--data", data, "--run-dir", tmp_path / "r", "--max-epochs=1", *SMALL)
    assert "precision 16-mixed" in done.stderr
    assert json.loads((tmp_path / "r/environment.json").read_text())[0]["precision"] == "16-mixed"


def test_evaluate_prints_the_run_beside_the_baselines(run: Path) -> None:
    result = works("evaluate", run, "--baselines")
    split = "DCRNN split 70/10/20: 264 / 38 / 75 windows of 12 + 12 steps"
    for expected in ("naive", "historical average", "run", "15 min", "60 min", split, "32-true"):
        assert expected in result.stdout


def test_evaluate_as_json_holds_every_step_and_the_protocol(run: Path) -> None:
    printed = json.loads(socialx("evaluate", run, "--json", "--split", "validation").stdout)
    assert printed["split"] == "validation"
    scores = printed["scores"][str(run)]["avg_speed"]
    assert [step["minutes"] for step in scores["by_step"]] == list(range(5, 65, 5))
    assert set(scores["by_step"][0]) == {"minutes", "mae", "rmse", "mape", "r2", "count"}
    assert set(scores["all"]) == {"mae", "rmse", "mape", "r2", "count"}
    assert printed["protocol"]["precision"] == "32-true"
    low = json.loads(socialx("evaluate", run, "--json", "--precision", "bf16-mixed").stdout)
    assert low["protocol"]["precision"] == "bf16-mixed"


def test_the_baselines_need_no_run_and_the_strict_split_is_stated(data: Path) -> None:
    result = works("evaluate", "--baselines", "--data", data, "--split-method", "strict")
    assert "historical average" in result.stdout
    assert "strict split" in result.stdout


QUICK = ("--steps", "6", "--warmup-steps", "1", "--trace-steps", "0", "--no-trials", "--device", "cpu")
# The training process makes each batch itself.
INLINE = ("--model", "linear", "--mode", "workers", "--num-workers", "0", "--batch-size", "4")


@pytest.fixture
def slow_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes so long that the loader takes most of the time, also where a step waits for a busy processor."""

    def slowly(*arguments: Any) -> TrainingBatch:
        time.sleep(0.03)
        return gather(*arguments)

    monkeypatch.setattr("socialx.dataset.loaders.gather", slowly)


@pytest.mark.slow
def test_profile_partitions_the_step(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "p.json"
    result = works("profile", "--data", data, "--steps=5", "--warmup-steps", "1", "--json", "--output", output, *SMALL)
    profile = json.loads(result.stdout)
    assert (profile, next(iter(profile.items()))) == (json.loads(output.read_text()), ("schema", "socialx.profile/4"))
    assert sum(profile["shares"][name] for name in ("input", "transfer", "span", "hooks")) == pytest.approx(1)
    assert sum(profile["shares"][name] for name in PARTS.values()) == pytest.approx(profile["shares"]["span"])
    assert (profile["window"]["steps"], profile["window"]["clock"]) == (5, "host")
    assert profile["gpu_busy"] is None
    assert profile["why"]["gpu_busy"] == "no CUDA device"
    assert all(rate > 0 for rate in profile["throughput"].values())
    assert profile["step_ms"]["p50"] <= profile["step_ms"]["p95"] <= profile["step_ms"]["p99"]
    assert profile["operators"]["top"][0]["share"] > 0
    assert {trial["setting"] for trial in profile["trials"]} <= {"trainer.threads", "loader.batch_size"}
    assert profile["trials"]
    assert profile["verdict"]
    assert (profile["settings"]["model"]["width"], profile["origin"]["model.width"]) == (8, "--width")
    assert "trainer.seed" not in profile["origin"]


@pytest.mark.usefixtures("slow_batches")
def test_a_profile_is_printed_in_ascii_and_100_columns(data: Path) -> None:
    result = works("profile", "--data", data, "--steps", "4", "--trace-steps", "1", "--no-trials", *INLINE)
    assert result.stdout.isascii()
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    printed = ("waiting for input", "training step", "windows/s", "operator", "loader.late", "   set  loader.mode")
    assert [words for words in printed if words not in result.stdout] == []
    (line,) = (line for line in lines if line.startswith("not measured"))
    assert line.endswith("need a CUDA device")
    assert "--tuned tuned.yaml " in result.stderr


def test_profile_fails_on_a_limit_that_is_not_met_or_not_measured(data: Path) -> None:
    arguments = ["profile", "--data", data, *QUICK, "--json", *SMALL]
    works(*arguments, "--fail-unless", "throughput.windows_per_s>=0.001,shares.span<=1")
    missed = socialx(*arguments, "--fail-unless", "gpu_busy>=0.8,shares.span<=0,shares.input>=0")
    assert (missed.exit_code, json.loads(missed.stdout)["window"]["steps"]) == (3, 6)
    assert missed.codes[-2:] == ("profile.unmeasured", "profile.missed")
    busy, span = missed.stderr.splitlines()[-2:]
    assert re.fullmatch(r"error: gpu_busy: .* >= 0\.8\.", busy)
    share = json.loads(missed.stdout)["shares"]["span"]
    assert re.fullmatch(rf"error: shares\.span: {share:.4g}, .* <= 0\.", span)
    assert refused("profile", "--data", "missing.h5", "--fail-unless", "gpu_busy", code=2).code == "profile.limit-form"


@pytest.mark.usefixtures("slow_batches")
@pytest.mark.parametrize(
    ("names", "code"), [("loader", 3), ("transfer,loader.late", 3), ("warn", 3), ("transfer,compute", 0)]
)
def test_profile_fails_on_findings_that_are_named(names: str, code: int, data: Path) -> None:
    result = socialx("profile", "--data", data, *QUICK, *INLINE, "--fail-on", names, "--json")
    assert result.exit_code == code, result.stderr
    found = [each for each in json.loads(result.stdout)["findings"] if each["rule"] == "loader.late"]
    assert len(found) == 1
    assert (f"error: loader.late: {found[0]['evidence']}." in result.stderr.splitlines()) == (code == 3)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--fail-on", "loaders"], "profile.no-finding", "--fail-on: 'loaders' "),
        (["--fail-on", ""], "profile.no-finding", "--fail-on: '' "),
        (["--fail-unless", "gpu_buzy>=1"], "profile.limit", "mean gpu_busy?"),
    ],
)
def test_what_profile_does_not_understand_is_refused_first(arguments: list[str], code: str, says: str) -> None:
    assert (error := refused("profile", "--data", "missing.h5", *arguments, code=2)).code == code
    assert says in error


@pytest.mark.usefixtures("slow_batches")
def test_tuned_settings_are_those_that_the_findings_change(data: Path, tmp_path: Path) -> None:
    tuned, output = tmp_path / "tuned.yaml", tmp_path / "p.json"
    result = works("profile", "--data", data, *QUICK, *INLINE, "--tuned", tuned, "--output", output)
    assert f"--compare {tuned}" in result.stderr
    wanted: dict[str, object] = {}
    findings = json.loads(output.read_text())["findings"]
    for finding in findings:
        if finding["severity"] != "info" and not set(finding["patch"]) & set(wanted):
            wanted |= finding["patch"]
    assert wanted["loader.mode"] == "on_device"
    rows = json.loads(socialx("config", "--json", "-c", tuned).stdout)
    assert {key: row["value"] for key, row in rows.items() if row["origin"] == str(tuned)} == wanted
    comment = next(finding["evidence"] for finding in findings if finding["rule"] == "loader.late")
    assert f"# loader.late: {comment}"[:90] in tuned.read_text()
    again = works("profile", "--data", data, *QUICK, "--model", "linear", "-c", tuned, "--json")
    assert json.loads(again.stdout)["loader"]["mode"] == "on_device"


@pytest.mark.usefixtures("slow_batches")
def test_a_page_and_a_trace_are_written(data: Path, tmp_path: Path) -> None:
    html, trace = tmp_path / "page.html", tmp_path / "trace.json.gz"
    works("profile", "--data", data, *QUICK, *INLINE, "--trace-steps", "1", "--html", html, "--trace", trace)
    page = html.read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "loader.late" in page
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert any(event.get("cat") == "cpu_op" for event in events)
    assert sorted(tmp_path.iterdir()) == [html, trace]


def made_up_comparison(monkeypatch: pytest.MonkeyPatch, gain: float, rounds: int = 6) -> None:
    from socialx.profiling.profile import Gain
    from socialx.tasks.compare import Comparison, Side

    sides = Side(100.0, 0.25, 0.0, None), Side(100.0 * gain, 0.01, 0.0, None)
    interval = (0.99 * gain, 1.01 * gain) if rounds > 4 else (None, None)
    changes = {"loader.mode": ("workers", "on_device")}
    found = Comparison(Gain(gain, *interval), *sides, changes, rounds, interrupted=rounds < 6)
    monkeypatch.setattr("socialx.compare", lambda **_: found)


@pytest.mark.parametrize(
    ("gain", "most", "code"), [(1.9, "0", 0), (0.9, "5", 3), (0.9, "12", 0), (0.9, None, 0), (1.0, "0", 0)]
)
def test_a_comparison_fails_where_it_is_slower(
    gain: float, most: str | None, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made_up_comparison(monkeypatch, gain)
    limit = [] if most is None else ["--fail-slower", most]
    result = socialx("profile", "--data", "d.h5", "--compare", tmp_path / "other.yaml", *limit)
    assert result.exit_code == code, result.stderr
    assert "workers -> on_device" in result.stdout
    words = "no difference larger than" if gain == 1 else "1.90x as fast" if gain > 1 else "1.11x as slow"
    assert words in result.stdout
    assert result.stdout.isascii()
    assert re.search(r"for input +25\.0% +1\.0%", result.stdout)
    if code:
        assert result.codes == ("profile.slower",)
        assert re.fullmatch(f"error: {tmp_path}/other.yaml: 1.11x .* 5 % .*\n", result.stderr)
    found = json.loads(socialx("profile", "--data", "d.h5", "--compare", tmp_path / "other.yaml", "--json").stdout)
    assert (found["gain"]["gain"], found["changes"]) == (gain, {"loader.mode": ["workers", "on_device"]})


def test_a_limit_of_a_comparison_needs_one() -> None:
    assert socialx("profile", "--data", "d.h5", "--fail-slower", "2").codes == ("profile.no-compare",)


@pytest.mark.parametrize("rounds", [1, 5])
def test_a_stopped_comparison_prints_what_it_has(rounds: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And exits as an interrupted training does, with a limit too."""
    made_up_comparison(monkeypatch, 0.5, rounds)
    result = socialx("profile", "--data", "d.h5", "--compare", tmp_path / "other.yaml", "--fail-slower", "2")
    assert result.exit_code == 130
    few = f"the others: 2.00x as slow, too few rounds for an interval over {rounds} round of new processes"
    assert (few if rounds == 1 else "95 % interval over 5 rounds") in " ".join(result.stdout.split())


@pytest.mark.parametrize("text", ["loader: {batch_size: 0}", "loader: {batch_sise: 3}", "- 3"])
def test_wrong_settings_to_compare_with_are_named_by_their_file(text: str, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(text)
    assert str(other) in refused("profile", "--data", "d.h5", "--compare", other, code=2)


@pytest.mark.parametrize(
    "option", ["--output", "--html", "--trace", "--fail-unless", "--fail-on", "--tuned", "--devices"]
)
def test_what_a_comparison_would_not_do_is_refused(option: str, tmp_path: Path) -> None:
    """A gate that is not looked at would always be met."""
    value = "2" if option == "--devices" else tmp_path / "file"
    error = refused("profile", "--data", "d.h5", "--compare", tmp_path / "other.yaml", option, value, code=2)
    assert error.code == "profile.idle-flag"
    assert f"{option} " in error
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ctrl_c_leaves_a_run_that_scores_and_resumes(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "socialx", "train", "--data", str(data), "--run-dir", str(folder)]
    options = ["--max-epochs", "500", "--patience", "500", *SMALL, "--batch-size", "8"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([*command, *options], env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 150
    while not (folder / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=100)
    assert child.returncode == 130, err
    assert f"socialx train --resume {folder}" in err
    assert f"socialx evaluate {folder}" in out
    assert "Traceback" not in err
    assert not list(folder.glob(".*.tmp"))
    works("evaluate", folder, "--baselines")
    epochs = len((folder / "metrics.jsonl").read_text().splitlines())
    works("train", "--resume", folder, "--max-epochs", str(epochs + 2))
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == epochs + 2


@pytest.mark.parametrize(
    ("arguments", "status", "code", "says"),
    [
        (["train"], 2, "data.none", "--data FILE.h5"),
        (["train", "--data", "nowhere.h5"], 1, "file.missing", "nowhere.h5"),
        (["train", "--batch-size", "0"], 2, "settings.invalid", "loader.batch_size (--batch-size): "),
        (["train", "--set", "trainer.precison=1"], 2, "settings.unknown", "trainer.precision?"),
        (["train", "--set", "nonsense"], 2, "settings.no-value", "nonsense"),
        (["train", "--device", "cuda:7", "--data", "x"], 2, "device.unseen", "cuda:7"),
        (["train", "--resume", "nowhere"], 1, "run.not", "nowhere: "),
        (["evaluate"], 2, "score.nothing", "--baselines"),
        (["evaluate", "nowhere"], 1, "run.not", "nowhere: "),
        (["evaluate", "--baselines", "--split", "tests"], 2, "split.unknown", "--split tests"),
        (
            ["convert", "pems-boy", "--data-csv", "a", "--meta-csv", "b", "--output-h5", "c.h5"],
            2,
            "convert.unknown-format",
            "pems-bay",
        ),
        (
            ["convert", "metr-la", "--data-csv", "nowhere.csv", "--meta-csv", "b", "--output-h5", "c.h5"],
            1,
            "file.missing",
            "nowhere.csv",
        ),
        (["inspect", "nowhere.h5"], 1, "file.missing", "nowhere.h5"),
    ],
)
def test_a_user_error_is_one_line_and_its_exit_code(
    arguments: list[str], status: int, code: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "cuda:7" in arguments and torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    monkeypatch.chdir(tmp_path)
    error = refused(*arguments, code=status)
    assert error.code == code
    assert says in error
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_only_as_it_was(run: Path, data: Path, tmp_path: Path) -> None:
    other = small_file(tmp_path, rows=380)
    for change, code, says in (
        (["--batch-size", "9"], "settings.run-differs", "loader.batch_size (--batch-size): "),
        (["--seed", "9"], "settings.run-differs", "with 7, got 9"),
        (["--precision", "16-mixed"], "settings.run-differs", "trainer.precision (--precision): "),
        (["--run-dir", str(tmp_path / "x")], "settings.run-differs", "trainer.run_dir (--run-dir): "),
        (["--overwrite"], "train.overwrite", "--overwrite"),
        (["--data", str(other)], "run.with-other", str(other)),
        ([], "resume.complete", f" 2 epochs.\n  try: socialx train --resume {run} --max-epochs 4"),
    ):
        before = {p.name: p.read_bytes() for p in run.iterdir()}
        result = socialx("train", "--resume", run, *change)
        assert (result.exit_code in (1, 2), result.codes) == (True, (code,))
        assert says in result.stderr
        assert result.stderr.count("\n") <= 2
        assert {p.name: p.read_bytes() for p in run.iterdir()} == before


def test_resuming_keeps_where_the_settings_came_from(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    works("train", "--data", data, "--run-dir", folder, "--max-epochs", "1", "--seed", "3", *SMALL)
    works("train", "--resume", folder, "--max-epochs", "2")
    origin = json.loads((folder / "settings_sources.json").read_text())
    named = [origin[key] for key in ("trainer.seed", "model.width", "trainer.max_epochs")]
    assert named == ["--seed", "--width", "--max-epochs"]
    assert len(json.loads((folder / "environment.json").read_text())) == 2
    assert "max_epochs: 2" in (folder / "settings.yaml").read_text()


def test_a_run_is_scored_as_it_was_trained(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for change in (
        ["--horizon", "6"],
        ["--split-method", "strict"],
        ["--set", "model.width=16"],
        ["--set", "trainer.seed=3"],
    ):
        assert f"{run} was trained with" in refused("evaluate", run, *change, code=2)
    monkeypatch.setenv("SOCIALX_TRAINER__SEED", "5")
    assert json.loads(socialx("evaluate", run, "--json").stdout)["protocol"]["seed"] == 7


def test_other_data_of_the_same_network_is_scored_and_said(run: Path, tmp_path: Path) -> None:
    result = works("evaluate", run, "--data", small_file(tmp_path, rows=390))
    assert "trained on other" in result.stdout
    assert "may have seen" in result.stdout  # of the same days
    refused("evaluate", run, "--targets", "latitude", code=2)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_killed_in_its_first_epoch_is_no_dead_end(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "socialx", "train", "--data", str(data), "--run-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    training = subprocess.Popen([*command, *SMALL, "--batch-size", "1"], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 150
    while not (folder / "last.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    training.kill()
    training.wait()
    assert not (folder / "best.safetensors").exists()
    assert "before the first" in socialx("evaluate", folder).stdout
    works("train", "--resume", folder, "--max-epochs", "1")


@pytest.mark.parametrize("option", ["--output", "--html", "--trace", "--tuned"])
@pytest.mark.parametrize("place", [".", "file/p.json"])
def test_a_profile_that_cannot_be_written_is_said_first(option: str, place: str, data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused("profile", "--data", data, option, tmp_path / place, "--steps", "9999999", *SMALL)


def test_swapped_tables_and_strange_run_folders_are_recognised(tmp_path: Path, data: Path) -> None:
    source = cut_csv(tmp_path / "s.csv", 30)
    arguments = ["--data-csv", LOCATIONS, "--meta-csv", source, "--output-h5", tmp_path / "o.h5"]
    swapped = refused("convert", "metr-la", *arguments)
    assert swapped.code == "table.places"
    assert f"READINGS --meta-csv {os.path.relpath(LOCATIONS)}" in swapped
    assert refused("train", "--data", data, "--run-dir", tmp_path, *SMALL).code == "run.other-files"
    assert [p.name for p in tmp_path.iterdir()] == ["s.csv"]


@pytest.mark.parametrize("missing", ["fcntl", "resource"])
@pytest.mark.parametrize("words", ["--help", "--version", "train --help", "doctor", "inspect city.h5"])
def test_a_system_without_locks_is_told_what_to_use(words: str, missing: str) -> None:
    """As Windows, which has neither module."""
    code = f"import sys; sys.modules[{missing!r}] = None; sys.argv[1:] = {words.split()!r}; import socialx.__main__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    said = "error: socialx runs on Linux and macOS.\n  try: use WSL2\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
