"""Settings: which layer wins, where values come from, and that a wrong key or value is one helpful line."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from socialx.core.errors import SettingsError
from socialx.core.progress import subscribe
from socialx.settings.conflicts import idle_settings
from socialx.settings.file import as_yaml, read_settings
from socialx.settings.layers import Config, ConfigLayers, as_tree, differences, load_settings, to_yaml
from socialx.settings.schema import KEYS, RESUME, SCORING, Settings, flag_name
from tests.commands import refused, refuses, small_file, works

MODEL, POOLING = ({key for key in KEYS if key.startswith(section)} for section in ("model.", "pooling."))
NO_POOLING = {"model.mlp_width"} | POOLING - {"pooling.kind"}
XLSTM = {f"model.{name}" for name in ("blocks", "slstm_at", "backend", "encoder_batch", "activation_checkpointing")}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def load(
    files: Sequence[Path] = (),
    env: Mapping[str, str] | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, str] | None = None,
) -> Config:
    return ConfigLayers.read(files, env, sets, flags).load()


def of_run(saved: Path, purpose: str, **said: Any) -> Config:
    """The settings of a run whose own file this is, as a command line changes them."""
    return ConfigLayers.read(**said).load_run(saved, read_settings(saved), purpose)


def test_the_defaults_are_the_recipe_medium() -> None:
    assert ConfigLayers(preset="xlstm-small").load().settings == Settings()
    small = {"model": {"encoder": "mlp"}, "loader": {"batch_size": 16}, "trainer": {"weight_decay": 0.1}}
    assert ConfigLayers(preset="mlp-small").load().settings == load_settings(env={}, **small)
    large = ConfigLayers(preset="xlstm-large").load().settings
    assert (large.model.width, large.model.blocks, large.model.slstm_at) == (128, 4, (1, 3))


def test_a_size_is_below_all_that_is_said(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "model: {width: 48}")
    loaded = replace(ConfigLayers.read([file], flags={"model.blocks": "3"}), preset="mlp-small").load()
    assert (loaded.settings.model.width, loaded.settings.model.blocks) == (48, 3)
    assert (loaded.settings.model.encoder, loaded.origin["model.encoder"]) == ("mlp", "preset mlp-small")
    with refuses("settings.preset", SettingsError) as caught:
        ConfigLayers(preset="tiny").load()
    assert "mlp-small, " in str(caught.value)


def test_a_size_says_what_it_sets(tmp_path: Path) -> None:
    data = small_file(tmp_path, rows=300, sensors=3)
    command = ("train", "--data", data, "--preset", "mlp-small", "--max-epochs", 1, "--width", 16, "--device", "cpu")
    result = works(*command, "--run-dir", tmp_path / "run")
    (line,) = [line for line in result.stderr.splitlines() if "preset mlp-small sets" in line]
    assert "--encoder mlp" in line
    assert "--width" not in line


def test_each_layer_wins_over_the_ones_below(tmp_path: Path) -> None:
    first = write(
        tmp_path / "a.yaml",
        "trainer: {learning_rate: 1e-4, max_epochs: 1, seed: 1, patience: 1, lr_warmup_steps: 1}\nmodel:\n",
    )
    second = write(tmp_path / "b.toml", "[trainer]\nmax_epochs = 2\nseed = 2\npatience = 2\nlr_warmup_steps = 2\n")
    env = {
        "SOCIALX_TRAINER__SEED": "3",
        "SOCIALX_TRAINER__PATIENCE": "3",
        "SOCIALX_TRAINER__LR_WARMUP_STEPS": "3",
        "PATH": "x",
    }
    typed = ["trainer.patience=4", "trainer.lr_warmup_steps=4"]
    loaded = load([first, second], env, typed, {"trainer.lr_warmup_steps": "5"})
    t = loaded.settings.trainer
    assert (t.learning_rate, t.max_epochs, t.seed, t.patience, t.lr_warmup_steps) == (1e-4, 2, 3, 4, 5)
    assert t.weight_decay == Settings().trainer.weight_decay
    assert {k: v for k, v in loaded.origin.items() if v != "default"} == {
        "trainer.learning_rate": str(first),
        "trainer.max_epochs": str(second),
        "trainer.seed": "$SOCIALX_TRAINER__SEED",
        "trainer.patience": "--set",
        "trainer.lr_warmup_steps": "--lr-warmup-steps",
    }
    assert set(loaded.origin) == set(KEYS)


@pytest.mark.parametrize(
    ("key", "code", "says"),
    [
        ("trainer.precison", "settings.unknown", "mean trainer.precision?"),
        ("traner.precision", "settings.unknown", "mean trainer.precision?"),
        ("precision", "settings.unknown", "mean trainer.precision?"),
        ("model.embedding", "settings.unknown", "mean model.sensor_embedding?"),
        ("hidden_size", "settings.unknown", "mean model.width?"),
        ("trainer", "settings.section", "with trainer.precision, "),
        ("zzz.qqq", "settings.unknown", "socialx config"),
    ],
)
def test_an_unknown_key_is_refused_with_a_near_miss(key: str, code: str, says: str) -> None:
    with refuses(code, SettingsError) as caught:
        load((), {}, [f"{key}=1"])
    assert str(caught.value).startswith(f"{key} (--set): ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "flag", "says"),
    [
        ("trainer.precision", "16-mixd", "--precision", "'32-true'"),
        ("loader.batch_size", "0", "--batch-size", "equal to 1, got '0'"),
        ("trainer.learning_rate", "fast", "--learning-rate", "valid number"),
        ("trainer.seed", "99999999999999999999", "--seed", "less than 4294967296"),
        ("trainer.learning_rate", "inf", "--learning-rate", "finite number"),
        ("trainer.device", "gpu", "--device", "match pattern"),
    ],
)
def test_a_wrong_value_names_the_flag_and_what_it_should_be(key: str, value: str, flag: str, says: str) -> None:
    with refuses("settings.invalid", SettingsError) as caught:
        load((), {}, (), {key: value})
    message = str(caught.value)
    assert message.startswith(f"{key} ({flag}): ")
    assert says in message
    assert message.count("\n") <= 1


def test_all_wrong_values_are_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load((), {}, ["loader.batch_size=0", "trainer.max_epochs=-1", "model.dropout=2"])
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("name", "text", "code", "says"),
    [
        ("s.yaml", "trainer: {seed: 1, seed: 2}", "settings.twice", "seed"),
        ("s.yaml", "trainer: [", "settings.yaml", "FILE: "),
        ("s.yaml", "- 1", "settings.sections", "FILE: "),
        ("s.yaml", "trainer: 5", "settings.section", "trainer (FILE): "),
        ("s.yaml", "trainer: {seed: {a: 1}}", "settings.invalid", "trainer.seed (FILE): "),
        ("s.yaml", "model: {backend: triton}", "settings.invalid", "got 'triton'.\n  try: write auto "),
        ("s.yaml", "!!python/object/apply:os.system ['echo']", "settings.yaml", "FILE: "),
        ("s.toml", "a = ", "settings.toml", "FILE: "),
        ("s.toml", "a = " + "9" * 5000, "settings.toml", "(Exceeds the limit"),
        ("nowhere.yaml", None, "settings.unreadable", "FILE: "),
    ],
)
def test_a_broken_file_is_one_line(name: str, text: str | None, code: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / name if text is None else write(tmp_path / name, text)
    with refuses(code, SettingsError) as caught:
        load([path], {})
    assert says in str(caught.value).replace(str(path), "FILE")
    assert str(caught.value).count("\n") <= 1


def test_flags_are_unique_and_short_where_they_can_be() -> None:
    flags = [flag_name(key) for key in KEYS]
    assert (len(set(flags)), flag_name("trainer.precision")) == (len(flags), "--precision")
    assert (flag_name("profile.steps"), flag_name("model.kind")) == ("--steps", "--model")
    assert flag_name("data.path") == "--data"


@given(
    width=st.integers(1, 16).map(lambda n: 8 * n),
    slstm_at=st.lists(st.integers(0, 3), max_size=4),
    learning_rate=st.floats(1e-6, 1.0),
    radius=st.floats(0.1, 900),
    data=st.one_of(st.none(), st.text("abc/. -", min_size=1).map(str.strip).filter(bool)),
)
def test_settings_survive_their_file(
    tmp_path_factory: pytest.TempPathFactory,
    width: int,
    slstm_at: list[int],
    learning_rate: float,
    radius: float,
    data: str | None,
) -> None:
    settings = Settings.model_validate(
        {
            "data": {"path": data},
            "model": {"width": width, "slstm_at": slstm_at},
            "trainer": {"learning_rate": learning_rate},
            "pooling": {"gate_radius_km": radius},
        }
    )
    path = tmp_path_factory.mktemp("settings") / "settings.yaml"
    path.write_text(to_yaml(settings))
    again = load([path], {})
    assert (again.settings, as_tree(again.settings)) == (settings, as_tree(settings))
    assert {k for k, place in again.origin.items() if place != str(path)} == {"trainer.run_dir"}


def test_a_setting_that_a_run_left_empty_stays_so(tmp_path: Path) -> None:
    empty = load((), {}, (), {"pooling.neighbours": ""}).settings
    assert empty.pooling.neighbours is None
    merged = of_run(write(tmp_path / "settings.yaml", to_yaml(empty)), RESUME, flags={"trainer.max_epochs": "7"})
    assert merged.settings.pooling.neighbours is None
    assert merged.settings.trainer.max_epochs == 7


def test_files_of_a_run_are_replaced_by_the_command_line_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = write(Path("socialx.yaml"), "trainer: {run_dir: runs/first, device: cpu}\ndata: {path: here.h5}")
    saved = write(tmp_path / "settings.yaml", "data: {path: own.h5}")
    env = {"SOCIALX_DATA__PATH": "other.h5"}
    merged = of_run(saved, SCORING, env=env, here=here)
    assert (merged.settings.data.path, merged.origin["data.path"]) == (Path("own.h5"), str(saved))
    assert (merged.settings.trainer.device, merged.settings.trainer.run_dir) == ("auto", None)
    merged = of_run(saved, SCORING, env=env, flags={"data.path": "new.h5"}, here=here)
    assert (merged.settings.data.path, merged.origin["data.path"]) == (Path("new.h5"), "--data")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"model.mlp_width"}),
        ({"model.encoder": "mlp"}, XLSTM),
        ({"pooling.kind": "none"}, {"model.mlp_width"} | POOLING - {"pooling.kind"}),
        ({"pooling.kind": "max"}, {"model.mlp_width", "pooling.use_positional", "pooling.adaptive_adjacency_rank"}),
        ({"pooling.mask_mode": "hard"}, {"model.mlp_width", "pooling.learnable_radius"}),
        ({"model.kind": "lstm"}, (MODEL | POOLING) - {"model.kind", "model.width", "model.blocks", "model.dropout"}),
    ],
)
def test_what_a_model_does_nothing_with(settings: dict[str, str], expected: set[str]) -> None:
    assert idle_settings(load((), {}, (), settings).settings) == expected


def test_a_runs_settings_change_only_where_they_may(tmp_path: Path) -> None:
    saved = write(tmp_path / "settings.yaml", "loader: {batch_size: 8}\ntrainer: {seed: 1, max_epochs: 2}")
    merged = of_run(saved, RESUME, env={"SOCIALX_TRAINER__SEED": "5", "SOCIALX_TRAINER__MAX_EPOCHS": "7"})
    assert (merged.settings.trainer.seed, merged.settings.trainer.max_epochs) == (1, 7)
    assert merged.origin["trainer.seed"] == str(saved)
    assert merged.origin["trainer.max_epochs"] == "$SOCIALX_TRAINER__MAX_EPOCHS"
    with pytest.raises(SettingsError) as caught:
        of_run(saved, RESUME, sets=["loader.batch_size=9"], flags={"trainer.seed": "3"})
    first, second = caught.value.messages
    assert (first.code, second.code) == ("settings.run-differs", "settings.run-differs")
    assert str(first).startswith(f"loader.batch_size (--set): {tmp_path} ")
    assert "with 8, got 9." in str(first)
    assert str(second).startswith("trainer.seed (--seed): ")


@pytest.mark.parametrize(("blocks", "expected"), [(1, ()), (2, (1,)), (3, (1,)), (4, (1, 3)), (9, (1, 3))])
def test_fewer_blocks_need_no_second_setting(blocks: int, expected: tuple[int, ...]) -> None:
    assert load_settings(env={}, sets=[f"model.blocks={blocks}"]).model.slstm_at == expected
    assert load_settings(env={}, model={"blocks": blocks}).model.slstm_at == expected
    assert load_settings(env={}, model={"blocks": blocks, "slstm_at": (0,)}).model.slstm_at == (0,)


def printed(*options: str | Path) -> str:
    return works("config", *options).stdout


CHANGED = [
    "--blocks",
    "4",
    "--neighbours",
    "",
    "--precision",
    "16-mixed",
    "--set",
    "pooling.require_locations=off",
    "--seed",
    "0",
]


def test_config_prints_only_what_is_not_the_default() -> None:
    assert json.loads(printed("--json", "--changed")) == {}
    rows = json.loads(printed("--json", "--changed", *CHANGED))  # the seed is 0 anyway
    names = ["model.blocks", "model.slstm_at", "pooling.neighbours", "pooling.require_locations", "trainer.precision"]
    assert (list(rows), rows["pooling.neighbours"]) == (names, {"value": None, "origin": "--neighbours"})
    table = [line.split()[0] for line in printed("--changed", *CHANGED).splitlines() if "." in line.split()[0]]
    assert table == names


@pytest.mark.parametrize("only", [(), ("--changed",)])
@pytest.mark.parametrize(
    "options",
    [
        [],
        CHANGED,
        [
            "--preset",
            "mlp-small",
            "--data",
            "a: b.h5",
            "--set",
            "trainer.run_dir=runs/#1",
            "--set",
            "data.targets=flow,avg_speed",
        ],
        ["--set", "model.kind=my_models:Mine", "--set", "pooling.gate_radius_km=1e-3", "--set", "data.holidays='x'"],
    ],
)
def test_config_prints_a_file_of_the_same_settings(options: list[str], only: tuple[str, ...], tmp_path: Path) -> None:
    values = {key: row["value"] for key, row in json.loads(printed("--json", *options)).items()}
    (tmp_path / "mine.yaml").write_text(printed("--yaml", *only, *options))
    again = json.loads(printed("--json", "-c", tmp_path / "mine.yaml"))
    assert {key: row["value"] for key, row in again.items()} == values
    origins = {key for key, row in again.items() if row["origin"] != "default"}
    assert len(origins) == (len(json.loads(printed("--json", "--changed", *options))) if only else len(values))


def test_config_prints_one_form() -> None:
    error = refused("config", "--yaml", "--json", code=2)
    assert error == "error: --yaml and --json exclude each other.\n  try: choose one of them\n"


def test_a_file_may_be_named_in_two_ways() -> None:
    here, again, other = (Settings(data={"path": path}) for path in ("a.h5", "./b/../a.h5", "b.h5"))
    assert (differences(here, again), differences(here, other)) == ("", "path b.h5, not a.h5")


def test_arguments_of_a_call_are_sections_or_settings_by_their_own_names() -> None:
    said = {"data.path": "a.h5", "data": {"days": 3}, "max_epochs": 1, "run_dir": None, "model": {"width": 32}}
    settings = ConfigLayers.from_call(None, said).load().settings
    assert (settings.data.path, settings.data.days) == (Path("a.h5"), 3)
    assert (settings.trainer.max_epochs, settings.model.width) == (1, 32)
    again = ConfigLayers.from_call(settings, {"data": "b.h5"}).load().settings
    assert (again.data.path, again.data.days, again.model.width) == (Path("b.h5"), 3, 32)
    assert ConfigLayers.from_call(None, {"pooling": {"neighbours": None}}).load().settings.pooling.neighbours is None


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"max_epoch": 1}, "max_epoch is an unknown argument.\n  try: did you mean trainer.max_epochs?"),
        ({"kind": 1}, "kind is an unknown argument.\n  try: did you mean "),  # of two sections
        ({"model": 3}, "model must be a dict of settings, not 3.\n  try: write model={...}"),
        ({"model": {"widht": 3}}, "model.widht (argument): the setting is unknown.\n  try: did you mean model.width?"),
    ],
)
def test_an_argument_that_is_no_setting_is_refused(argument: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        ConfigLayers.from_call(None, argument).load()
    assert str(caught.value).startswith(says)


def test_a_file_of_settings_has_each_section_once(tmp_path: Path) -> None:
    text = as_yaml({"loader.batch_size": 32, "trainer.threads": 2, "loader.mode": "on_device"})
    assert text.count("loader:") == 1
    assert load([write(tmp_path / "tuned.yaml", text)], {}).settings.loader.mode == "on_device"


def test_an_environment_that_is_handed_over_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOCIALX_MODEL__WIDTH", "24")
    assert (load_settings().model.width, load_settings(env={}).model.width) == (24, Settings().model.width)
    assert load_settings(env={"SOCIALX_MODEL__WIDTH": "40"}).model.width == 40


def test_a_wrong_item_of_a_list_is_told_by_the_name_of_its_setting() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(env={}, model={"slstm_at": [1, "x"]})
    assert str(caught.value).startswith("model.slstm_at (")


def test_settings_without_effect_are_told_where_this_call_set_them() -> None:
    said: list[Any] = []
    idle = ConfigLayers.from_call(None, {"pooling": {"kind": "none", "neighbours": 3}}).load()
    with subscribe(said.append):
        load().note_unread()
        assert said == []
        idle.note_unread()
    (told,) = said
    assert "neighbours" in told.message.text()
