"""The command that measures training: profile."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from socialx.cli.command import Devices, Json, command, note, print_json
from socialx.cli.progress_bars import Show
from socialx.errors import Argument, GateError, SettingsError
from socialx.settings_layers import Layers


@command("profile")
def profile(
    layers: Layers,
    as_json: Json = False,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="also write the JSON here")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="also write a page with pictures")] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE.json.gz", help="also write the trace, which ui.perfetto.dev opens"),
    ] = None,
    tuned: Annotated[
        Path | None, typer.Option("--tuned", metavar="FILE.yaml", help="also write the settings that it would change")
    ] = None,
    require: Annotated[
        str | None,
        typer.Option("--require", metavar="LIMITS", help="exit 3 unless these are met, such as 'gpu_busy>=0.8'"),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="FINDINGS",
            help="exit 3 if one of these is found: rules, families or severities, such as loader,warn",
        ),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option("--compare", metavar="FILE.yaml", help="train with these settings too, in turns, and compare"),
    ] = None,
    max_regression: Annotated[
        float | None,
        typer.Option("--max-regression", metavar="PERCENT", help="exit 3 if --compare is slower by more", min=0),
    ] = None,
    devices: Devices = 1,
) -> None:
    """Say where the time of training steps goes.

    It runs real training steps of socialx (torch.profiler is for other loops), and says which setting would make them
    faster.  On CUDA a trace of a few more steps says how busy the device is and with which kernels, on a CPU with which
    operators.  Then other numbers of threads and larger batches are tried for some steps.

    Examples:
      socialx profile --data metr_la.h5 --tuned tuned.yaml
      socialx profile --data metr_la.h5 --compare tuned.yaml
      socialx profile --data metr_la.h5 --require 'gpu_busy>=0.8'
    """
    import socialx
    from socialx.profiling import require as requirements
    from socialx.profiling.rules import check_names, failing, patch_of
    from socialx.settings_file import as_yaml
    from socialx.tasks.outputs import ADVICE, ADVISED, PAGE, PROFILE, TRACE, check_outputs
    from socialx.training.process_group import in_environment

    group = in_environment()
    alone: dict[str, object]
    alone = {"output": output, "html": html, "trace": trace, "require": require, "fail_on": fail_on, "tuned": tuned}
    alone["devices"] = devices if devices > 1 or group.world > 1 else None
    idle = [name for name, value in alone.items() if value is not None]
    if compare is not None and idle:
        # A file that is not written, or a limit that is not looked at, must not seem to be.
        remedy = f"leave it out, or leave out {Argument('compare')}"
        raise SettingsError(Argument(idle[0]), "is for a profile alone", remedy)
    required = requirements.parse(require) if require is not None else []
    fatal = fail_on.split(",") if fail_on is not None else []
    check_names(fatal)
    written = ((output, PROFILE), (html, PAGE), (trace, TRACE), (tuned, ADVICE))
    check_outputs(*written, layers=layers, others=(compare,))
    if compare is not None:
        _compare(layers, compare, max_regression, as_json)
        return
    if devices > 1 and group.world == 1:
        from socialx.training.launch import launch

        raise typer.Exit(launch(devices, sys.argv[1:]))
    result = socialx.profile(settings=layers, trace=trace, progress=Show("profile"))
    if not group.first:
        return
    _write(output, json.dumps(result.as_dict(), indent=2, default=str) + "\n")
    if html is not None:
        from socialx.views.profile_page import page

        _write(html, page(result))
    if tuned is not None:
        patch = patch_of(result.findings)
        comments = {key: f"{each.rule}: {each.evidence}" for each in reversed(result.findings) for key in each.patch}
        text = as_yaml(patch, comments) if patch else "# the profile found nothing to change\n"
        _write(tuned, f"{ADVISED}\n{text}")
    if as_json:
        print_json(result.as_dict())
    else:
        from socialx.views.profile_tables import print_profile

        print_profile(result)
        if tuned is not None:
            note(f"wrote {tuned}; check it with the same command and --compare {tuned}")
        elif any(each.patch for each in result.findings):
            note("--tuned tuned.yaml writes these settings, --compare tuned.yaml then measures what they bring")
    if failed := requirements.failed(result, required) + failing(result, fatal):
        raise GateError.together(failed)


def _write(path: Path | None, content: str) -> None:
    from socialx.disk import replacing

    if path is not None:
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")


def _compare(layers: Layers, other: Path, most: float | None, as_json: bool) -> None:
    from dataclasses import asdict

    import socialx
    from socialx.tasks.comparing import ROUNDS
    from socialx.views.profile_tables import print_comparison

    comparison = socialx.compare(settings=layers, other=other, progress=Show("profile"))
    if as_json:
        print_json(asdict(comparison))
    else:
        rows = {
            "windows/s": (comparison.here.windows_per_s, comparison.there.windows_per_s),
            "share waiting for input": (comparison.here.input, comparison.there.input),
            "share between steps": (comparison.here.hooks, comparison.there.hooks),
        }
        print_comparison(comparison.gain, ROUNDS, rows, comparison.changes)
    if most is not None and comparison.gain.high < 1 - most / 100:
        raise GateError(other, str(comparison.gain), f"at most {most:g} % slower is allowed")
