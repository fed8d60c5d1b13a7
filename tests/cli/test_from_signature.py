"""A command is made of the source of its task, and so agrees with the function that is imported."""

from __future__ import annotations

import inspect

import pytest

import socialx
from socialx.cli.app import COMMANDS
from socialx.cli.from_signature import task_parameters


@pytest.mark.parametrize("task", [name for name in COMMANDS if name in socialx.MODULES])
def test_a_flag_has_the_default_and_the_help_of_its_parameter(task: str) -> None:
    function = getattr(socialx, task)
    signature, told = inspect.signature(function).parameters, []
    for flag in task_parameters(task):
        default = signature[flag.name].default
        assert flag.default == default or not (flag.default or default)
        text = flag.annotation.__metadata__[0].help.partition(" (default: ")[0]
        told.append(f"    {flag.name}: {text}")
    assert sorted(told) == sorted(function.__doc__.splitlines()[-len(told) :] if told else [])
