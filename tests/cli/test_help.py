"""Help that fits a terminal, and errors that name what was meant."""

from __future__ import annotations

import inspect
import re

import pytest

import socialx as api
from socialx.cli.app import COMMANDS
from socialx.cli.flags import LONG, task_parameters
from socialx.cli.synonyms import SYNONYMS
from socialx.settings.schema import KEYS, flag_name
from tests.commands import registered, socialx


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_and_cuts_no_flag(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for flag in ("--help", "--help-all") if command in LONG else ("--help",):
        lines = socialx(command, flag).stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert not [line for line in lines if "…" in line or re.search(r"--[\w-]+\.\.\.", line)]
    assert len(socialx(command, "--help").stdout.splitlines()) <= 66


def test_the_help_of_train_is_short_and_that_of_all_settings_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = (socialx("train", flag).stdout for flag in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 60
    for flag in ("--data", "--run-dir", "--resume", "--max-epochs", "--batch-size", "--precision", "--help-all"):
        assert f"{flag} " in short
    shown = {flag_name(key) for key in KEYS if re.search(rf"^  {flag_name(key)}\b", whole, re.MULTILINE)}
    assert len(shown) > 45
    assert "(default: 64)" in short
    assert short.count("\n  socialx train") + short.count("\n    socialx train") == 2  # examples, a line each


@pytest.mark.parametrize(("word", "meant"), [("--lr", "--learning-rate"), ("--epochs", "--max-epochs")])
def test_a_flag_of_other_tools_is_refused_with_ours(word: str, meant: str) -> None:
    result = socialx("train", word, 3)
    assert result.exit_code == 2
    assert f"no such option {word}: did you mean {meant}?" in result.stderr


@pytest.mark.parametrize(("word", "meant"), [("forecast", "predict"), ("fit", "train"), ("eval", "evaluate")])
def test_a_command_of_other_tools_is_refused_with_ours(word: str, meant: str) -> None:
    result = socialx(word)
    assert result.exit_code == 2
    assert f"no such command '{word}': did you mean {meant}?" in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_says(command: str) -> None:
    help_of = " ".join(socialx(command, "--help").stdout.split())
    assert f"Usage: root {command} " in help_of
    assert COMMANDS[command][1] in help_of


def test_every_registered_command_is_in_the_list() -> None:
    assert {each.name: each.callback.__module__ for each in registered() if each.callback} == {
        name: f"socialx.cli.{module}" for name, (module, _) in COMMANDS.items()
    }


def test_a_mistyped_command_is_refused_with_the_one_that_is_near() -> None:
    result = socialx("trian")
    assert result.exit_code == 2
    assert "No such command 'trian'. Did you mean 'train'?" in result.stderr


def test_what_other_words_mean_exists() -> None:
    flags = {flag_name(key) for key in KEYS} | {"--devices", "--resume"}
    for word, meant in SYNONYMS.items():
        known = flags if meant.startswith("-") else set(COMMANDS)
        assert meant.split()[0] in known, word
        assert f"--{word}" not in flags
        assert word not in COMMANDS


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
