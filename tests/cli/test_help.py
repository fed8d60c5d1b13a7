"""Help that fits a terminal, and errors that name what was meant."""

import inspect
import re
from functools import partial
from pathlib import Path

import pytest
from typer.main import get_command_from_info

import socialx as api
from socialx.cli import flags
from socialx.cli.app import COMMANDS, HEADINGS
from socialx.cli.flags import task_parameters
from socialx.core.errors import SettingsError
from socialx.settings.schema import BY_NAME, KEYS, WORDS, Settings, flag_name
from tests.commands import registered, socialx


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_and_cuts_no_flag(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for flag in ("--help", "--help-all"):
        lines = socialx(command, flag).stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert not [line for line in lines if "…" in line or re.search(r"--[\w-]+\.\.\.", line)]
    assert sum(line.startswith("  ") for line in socialx(command, "--help").stdout.splitlines()) <= 66


def test_the_help_of_train_is_short_and_that_of_all_settings_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = (socialx("train", flag).stdout for flag in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 65
    for flag in ("--data", "--run-dir", "--resume", "--max-epochs", "--batch-size", "--precision", "--help-all"):
        assert f"{flag} " in short
    assert len({flag_name(key) for key in KEYS if re.search(rf"^  {flag_name(key)}\b", whole, re.MULTILINE)}) > 45
    assert "(default: 64)" in short
    assert short.count("\n  socialx train") + short.count("\n    socialx train") == 2  # examples, a line each


@pytest.mark.parametrize(
    ("command", "word", "ends"),
    [
        ("train", "--lr", " --learning-rate?"),
        ("train", "--epochs", " --max-epochs?"),
        ("train", "--hidden-size", " --width?"),
        ("report", "--overwrite", " --overwrite."),  # nothing is near
    ],
)
def test_a_flag_of_other_tools_is_refused_with_ours(command: str, word: str, ends: str) -> None:
    result = socialx(command, word, 3)
    assert (result.exit_code, result.codes) == (2, ("cli.usage",))
    assert f" {word}" in result.stderr
    assert result.stderr.splitlines()[0].endswith(ends)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_says(command: str) -> None:
    help_of = " ".join(socialx(command, "--help").stdout.split())
    assert f"Usage: root {command} " in help_of
    assert COMMANDS[command][1] in help_of


def test_the_lists_of_the_help_have_every_command_once() -> None:
    assert sorted(name for names in HEADINGS.values() for name in names) == sorted(COMMANDS)
    said = socialx("--help").stdout
    assert [line[:-1] for line in said.splitlines() if line.endswith(":") and line[:-1] in HEADINGS] == list(HEADINGS)


def test_every_heading_of_flags_has_some_and_every_flag_a_heading() -> None:
    made = partial(get_command_from_info, pretty_exceptions_short=True, rich_markup_mode=None)
    parameters = [parameter for each in map(made, registered()) for parameter in each.params]
    panels = {parameter.rich_help_panel or "Other" for parameter in parameters if hasattr(parameter, "rich_help_panel")}
    assert panels == set(flags.HEADINGS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_value_is_a_noun_in_capitals_or_a_list_of_words(command: str) -> None:
    whole = socialx(command, "--help-all").stdout
    said = whole.partition("\n\n  Example")[2] or whole
    for value in re.findall(r"^  (?:-\w, )?--[\w-]+ ([^ /-]\S*)", said, re.MULTILINE):
        assert value.isupper() or "|" in value or value in ("FILE.yaml", "FILE.json.gz"), value
    assert "(default: )" not in said
    assert not [line for line in said.splitlines() if "/ --no-" in line and "(default: off)" in line]
    if command in ("convert", "append", "inspect"):  # which hide none
        assert whole == socialx(command, "--help").stdout


def test_an_error_of_usage_is_a_sentence_and_what_to_try() -> None:
    result = socialx("calibrate")
    assert (result.exit_code, result.stderr) == (2, "error: RUN is missing.\n  try: socialx calibrate --help\n")
    said = {
        ("train", "--seed"): "--seed needs a value.",
        ("train", "--zero-shot=3"): "--zero-shot takes no value.",
        ("train", "city.h5"): "city.h5: unexpected, did you mean --data city.h5?",
        ("config", "a", "b"): "a b: unexpected.",
        ("serve", "metr-la", "--port", "x"): "--port: Input should be a valid integer",
        ("train", "--preset", "linear"): "use --model linear, or choose",
        ("xyzzy",): "no such command xyzzy.",
    }
    for line, sentence in said.items():
        assert sentence in socialx(*line).stderr
    assert " pooling.mask_mode=VALUE?\n" in socialx("train", "--mask-mode", "hard").stderr


def test_every_registered_command_is_in_the_list() -> None:
    assert {each.name: each.callback.__module__ for each in registered() if each.callback} == {
        name: f"socialx.cli.{module}" for name, (module, _) in COMMANDS.items()
    }


def test_a_mistyped_command_is_refused_with_the_one_that_is_near() -> None:
    result = socialx("trian")
    assert (result.exit_code, result.codes) == (2, ("cli.usage",))
    assert "no such command trian: did" in result.stderr
    assert "mean 'train'?" in result.stderr


def arguments_of(task: str) -> list[str]:
    return [*inspect.signature(made).parameters] if inspect.isfunction(made := getattr(api, task)) else []


def test_a_word_of_the_field_is_a_setting_and_no_name_of_another() -> None:
    assert set(WORDS) <= {
        "",
        "config",
        "devices",
        *KEYS,
        *(name for task in api.__all__ for name in arguments_of(task)),
    }
    names = [name for key in KEYS for name in (key, key.split(".")[1])]
    assert not set(names) & {word for words in WORDS.values() for word in words.split()}


# Flags of torch's, Lightning's, BasicTS' and litgpt's examples -> the flag of train, empty where none is meant.
HABITS = {
    **{"--lr": "--learning-rate", "--epochs": "--max-epochs", "--wd": "--weight-decay", "--workers": "--num-workers"},
    **{"--no-cuda": "--device", "--log-interval": "--log-every-n-steps", "--amp": "--precision", "--arch": "--model"},
    **{"--print-freq": "--log-every-n-steps", "--pretrained": "--init-from", "--clip": "--gradient-clip-val"},
    **{"--gpus": "--devices", "--accelerator": "--device", "--ckpt-path": "--resume", "--fast-dev-run": ""},
    **{"--default-root-dir": "--run-dir", "--logger": "--loggers", "--early-stopping": "--patience", "--max-steps": ""},
    **{"--cfg": "--config", "--seq-len": "--lookback", "--pred-len": "--horizon"},
    **{"--hidden-dim": "--width", "--num-layers": "--blocks", "--dataset-name": "--data", "--null-val": ""},
    **{"--train.epochs": "--max-epochs", "--train.micro_batch_size": "--batch-size", "--out_dir": "--run-dir"},
    **{"--optimizer.lr": "--learning-rate", "--initial_checkpoint_dir": "--init-from", "--optimizer": ""},
}


@pytest.mark.parametrize("flag", HABITS)
def test_a_flag_of_another_tool_is_refused_with_the_one_here_or_without_advice(flag: str) -> None:
    assert sum(map(bool, HABITS.values())) >= 28
    advice = f": did you mean {HABITS[flag]}?" if HABITS[flag] else "."
    assert f"no such option {flag}{advice}\n" in socialx("train", flag, "1").stderr


# Flags that Python spells otherwise; those of the command line alone have no advice.
RESPELT = {"config": "settings", "set": "sets", "devices": "trainer.device", "output_h5": "output"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_flag_typed_as_keyword_is_an_argument_or_the_argument_is_named(command: str, run: Path) -> None:
    parameters = inspect.signature(function := getattr(api, command)).parameters
    needed = [name for name, each in parameters.items() if each.default is each.empty and each.kind < each.VAR_KEYWORD]
    given = dict.fromkeys(needed, "a.onnx") | {name: run for name in ("run", "runs") if name in parameters}
    (info,) = (each for each in registered() if each.name == command)
    options = get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None).params
    words = {flag[2:].replace("-", "_") for each in options for flag in each.opts if flag.startswith("--")}
    for word in words - {*parameters, *BY_NAME, *Settings.model_fields}:
        with pytest.raises((SettingsError, TypeError), match=rf"\b{word}\b") as caught:
            function(**{**given, word: "x"})
        if isinstance(caught.value, SettingsError):
            assert caught.value.code == "call.unknown-argument"
            advice = re.fullmatch(r"did you mean (.+)\?|(?:choose from .*)?", caught.value.messages[0].remedy)
            assert advice
            assert advice[1] in (RESPELT.get(word), None), word


def test_an_error_has_no_box() -> None:
    result = socialx("train", "--no-such-flag")
    assert result.exit_code == 2
    assert not set("╭│╰") & set(result.stderr)


@pytest.mark.parametrize("task", [name for name in COMMANDS if name in api.MODULES])
def test_a_flag_has_the_default_and_the_help_of_its_parameter(task: str) -> None:
    """A command is made of the source of its task, and agrees with the function that is imported."""
    function = getattr(api, task)
    signature, told = inspect.signature(function).parameters, []
    for flag in task_parameters(task):
        default = signature[flag.name].default
        assert flag.default == default or not (flag.default or default)
        text = flag.annotation.__metadata__[0].help.partition(" (default: ")[0]
        told.append(f"    {flag.name}: {text}")
    assert sorted(told) == sorted(function.__doc__.splitlines()[-len(told) :] if told else [])
