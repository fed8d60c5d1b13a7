"""The commands around training: config, train, profile, doctor."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from socialx.cli.command import Devices, Json, command, note, print_json
from socialx.cli.progress_bars import Show
from socialx.core.errors import Argument, CheckFailedError, Command, Message, SettingsError
from socialx.core.help import FailIf, Measurement, Output
from socialx.settings.file import as_yaml
from socialx.settings.layers import ConfigLayers, changed_settings, flat

if TYPE_CHECKING:
    from socialx.profiling.profile import Finding


@command("config")
def config(
    layers: ConfigLayers,
    only_changed: Annotated[
        bool, typer.Option("--changed", rich_help_panel="Output", help="only settings whose value is not the default")
    ] = False,
    yaml: Annotated[bool, Output("print a file that -c reads")] = False,
    as_json: Json = False,
) -> None:
    """Print every setting and where its value came from.

    Example:
      socialx config -c runs/mine/settings.yaml --changed --yaml > mine.yaml
    """
    if yaml and as_json:
        raise SettingsError("config.yaml-and-json", "", "--yaml and --json exclude each other", "choose one of them")
    loaded = layers.merge()
    values = changed_settings(loaded.settings) if only_changed else flat(loaded.settings)
    if yaml:
        typer.echo(as_yaml(values), nl=False)
        return
    if as_json:
        print_json({key: {"value": value, "origin": loaded.origin[key]} for key, value in values.items()})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "value", "origin", show_edge=False)
    for key, value in values.items():
        table.add_row(key, "" if value is None else json.dumps(value).strip('"'), loaded.origin[key])
    Console().print(table, highlight=False)


@command("train")
def train(layers: ConfigLayers, devices: Devices = 1, **arguments: Any) -> None:
    """Train the shared social model: an xLSTM as encoder, or an MLP.

    The run folder holds all that repeats, continues, scores or uses the training.

    Examples:
      socialx train --data metr_la.h5 --preset mlp-small
      socialx train --resume runs/mine
    """
    import socialx
    from socialx.training.process_group import group_from_env

    if devices > 1 and group_from_env().world_size == 1:
        from socialx.training.launch import launch

        raise typer.Exit(launch(devices, sys.argv[1:]))
    made: Any = socialx.train(settings=layers, progress=Show(), **arguments)
    *earlier, run = made if isinstance(made, list) else [made]
    group = group_from_env()
    if not group.is_rank_zero:
        return
    for other in earlier:
        typer.echo(other.headline())
    paths, several = [one.path for one in (*earlier, run)], True if earlier else None
    score = str(Command("evaluate", *paths, mean=several, baselines=None if several else True))
    if run.interrupted:
        again = Message("train.halted", "", "training was interrupted", f"resume with {group.resume_command(run.path)}")
        typer.echo(again.text(), err=True)
        typer.echo(score)
        raise typer.Exit(130)
    best = run.best
    if best is not None and best.validation_mae is not None:
        from socialx.drawing.terminal import unit_suffix

        mae = f"best validation MAE {best.validation_mae:.4f}{unit_suffix(run.unit)}"
        score = f"{mae} in epoch {best.epoch} of {len(run.epochs)}: {score}"
    typer.echo(f"{run.path}: {score}")


@command("profile")
def profile(
    layers: ConfigLayers,
    as_json: Json = False,
    output: Annotated[Path | None, Output("also write the JSON here", "FILE")] = None,
    html: Annotated[Path | None, Output("also write a page with pictures", "FILE")] = None,
    trace: Annotated[Path | None, Output("also write the trace, which ui.perfetto.dev opens", "FILE.json.gz")] = None,
    tuned: Annotated[Path | None, Output("also write the settings that it would change", "FILE.yaml")] = None,
    fail_unless: Annotated[str | None, FailIf("exit 3 unless these are met, such as 'gpu_busy>=0.8'", "LIMITS")] = None,
    fail_on: Annotated[
        str | None,
        FailIf("exit 3 if one of these is found: rules, families or severities, such as loader,warn", "FINDINGS"),
    ] = None,
    compare: Annotated[
        Path | None, Measurement("train with these settings too, in turns, and compare", "FILE.yaml")
    ] = None,
    fail_slower: Annotated[
        float | None,
        typer.Option(
            "--fail-slower",
            rich_help_panel="Fail if",
            metavar="PERCENT",
            help="exit 3 if --compare is slower by more",
            min=0,
        ),
    ] = None,
    devices: Devices = 1,
) -> None:
    """Say where the time of training steps goes.

    Real training steps of socialx are measured (torch.profiler is for other loops), and the advice names the settings
    that would make training faster.  On CUDA a trace of a few more steps says how busy the device is and with which
    kernels, on a CPU with which operators.  Then other numbers of threads and larger batches are tried for some steps.

    Examples:
      socialx profile --data metr_la.h5 --tuned tuned.yaml
      socialx profile --data metr_la.h5 --compare tuned.yaml
      socialx profile --data metr_la.h5 --fail-unless 'gpu_busy>=0.8'
    """
    import socialx
    from socialx.core.outputs import ADVICE, ADVISED, PAGE, PROFILE, TRACE, check_outputs
    from socialx.profiling.profile import missed_limits, parse_limits
    from socialx.profiling.rules import check_names, matching_findings
    from socialx.training.process_group import group_from_env

    group = group_from_env()
    alone: dict[str, object] = {"output": output, "html": html, "trace": trace, "fail_unless": fail_unless}
    alone |= {"fail_on": fail_on, "tuned": tuned, "devices": devices if max(devices, group.world_size) > 1 else None}
    idle = [name for name, value in alone.items() if value is not None]
    if compare is not None and idle:
        problem = f"{Argument(idle[0])} cannot be combined with {Argument('compare')}"
        raise SettingsError("profile.idle-flag", "", problem, "drop one")
    if compare is None and fail_slower is not None:
        alone_slower = f"{Argument('fail_slower', fail_slower)} needs {Argument('compare')}"
        raise SettingsError("profile.no-compare", "", alone_slower, f"add {Argument('compare', 'FILE.yaml')}")
    required = parse_limits(fail_unless) if fail_unless is not None else []
    fatal = fail_on.split(",") if fail_on is not None else []
    check_names(fatal)
    written = ((output, PROFILE), (html, PAGE), (trace, TRACE), (tuned, ADVICE))
    check_outputs(*written, others=(compare, *layers.files))
    if compare is not None:
        _compare(layers, compare, fail_slower, as_json)
        return
    if devices > 1 and group.world_size == 1:
        from socialx.training.launch import launch

        raise typer.Exit(launch(devices, sys.argv[1:]))
    result = socialx.profile(settings=layers, trace=trace, progress=Show())
    if not group.is_rank_zero:
        return
    _write(output, json.dumps(result.as_dict(), indent=2, default=str) + "\n")
    if html is not None:
        from socialx.profiling.page import page

        _write(html, page(result))
    if tuned is not None:
        _write(tuned, f"{ADVISED}\n{_advice(result.findings)}")
    if as_json:
        print_json(result.as_dict())
    else:
        from socialx.profiling.tables import print_profile

        print_profile(result)
        if tuned is not None:
            note(f"wrote {tuned}; --compare {tuned}, in place of --tuned and of other outputs, measures the gain")
        elif any(finding.patch for finding in result.findings):
            note("--tuned tuned.yaml writes these settings, --compare tuned.yaml then measures what they bring")
    if failed := missed_limits(result, required) + matching_findings(result, fatal):
        raise CheckFailedError.together(failed)


def _advice(findings: Sequence[Finding]) -> str:
    """Return the settings that a profile would change as YAML, with each finding as a comment."""
    from socialx.profiling.rules import joint_patch

    patch = joint_patch(findings)
    comments = {key: f"{finding.rule}: {finding.evidence}" for finding in reversed(findings) for key in finding.patch}
    return as_yaml(patch, comments) if patch else "# the profile found nothing to change\n"


def _write(path: Path | None, content: str) -> None:
    from socialx.core.disk import atomic_write

    if path is not None:
        with atomic_write(path) as temporary:
            temporary.write_text(content, encoding="utf-8")


def _compare(layers: ConfigLayers, other: Path, most: float | None, as_json: bool) -> None:
    """Print the comparison with settings file ``other``; exit 3 if it is more than ``most`` percent slower."""
    from dataclasses import asdict

    import socialx
    from socialx.tasks.compare import print_comparison

    comparison = socialx.compare(settings=layers, other=other, progress=Show())
    if as_json:
        print_json(asdict(comparison))
    else:
        print_comparison(comparison)
    if comparison.interrupted:
        raise typer.Exit(130)
    high = comparison.gain.high
    if most is not None and high is not None and high < 1 - most / 100:
        raise CheckFailedError("profile.slower", other, f"{comparison.gain}, and at most {most:g} % slower is allowed")


@command("doctor")
def doctor(layers: ConfigLayers, as_json: Json = False) -> None:
    """Check what a training needs.

    The checks cover machine, packages, settings, device, precision, memory and disk, the data file, a step of the
    model, and a worker process.  Every line that is not ok says what to do next.  The exit code is 3 where a line
    fails. Nothing is trained or kept.

    Example:
      socialx doctor --data metr_la.h5
    """
    import socialx

    diagnosis = socialx.doctor(settings=layers, progress=Show())
    if as_json:
        print_json(diagnosis.as_dict())
    else:
        for line in diagnosis.lines:
            typer.echo(line.text())
        typer.echo(diagnosis.headline())
    if diagnosis.failures:
        raise CheckFailedError.together(line.message for line in diagnosis.failures)
