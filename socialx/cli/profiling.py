"""The command that measures training: profile."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from socialx.cli.command import Json, command, note, print_json
from socialx.cli.progress import Show
from socialx.errors import Argument, GateError, SettingsError, SocialxError
from socialx.options import Layers, with_settings

STORED_BYTES = 1 << 26  # no stored profile is longer


Output = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="also write the JSON here")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="also write a page with pictures")]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE.json.gz", help="also write the trace, which ui.perfetto.dev opens"),
]
Tuned = Annotated[
    Path | None, typer.Option("--tuned", metavar="FILE.yaml", help="also write the settings that it would change")
]
Require = Annotated[
    str | None, typer.Option("--require", metavar="LIMITS", help="exit 3 unless these are met, such as 'gpu_busy>=0.8'")
]
FailOn = Annotated[
    str | None,
    typer.Option(
        "--fail-on",
        metavar="FINDINGS",
        help="exit 3 if one of these is found: rules, families or severities, such as loader,warn",
    ),
]
Against = Annotated[
    Path | None, typer.Option("--against", metavar="FILE.json", help="compare with a profile that was stored")
]
Compare = Annotated[
    Path | None,
    typer.Option("--compare", metavar="FILE.yaml", help="train with these settings too, in turns, and compare"),
]
MaxRegression = Annotated[
    float | None,
    typer.Option("--max-regression", metavar="PERCENT", help="exit 3 if --compare is slower by more", min=0),
]
Sweep = Annotated[bool, typer.Option("--sweep", help="try what the findings suggest, and verify the winner")]
Budget = Annotated[
    str, typer.Option("--budget", metavar="TIME", help="after it --sweep begins no other candidate: 90s, 5m")
]
FreeBatch = Annotated[
    bool, typer.Option("--free-batch", help="let --sweep try larger batches, which are another training")
]


@command("profile")
@with_settings("profile")
def profile(
    layers: Layers,
    as_json: Json = False,
    output: Output = None,
    html: Html = None,
    trace: Trace = None,
    tuned: Tuned = None,
    require: Require = None,
    fail_on: FailOn = None,
    against: Against = None,
    compare: Compare = None,
    max_regression: MaxRegression = None,
    sweep: Sweep = False,
    budget: Budget = "5m",
    free_batch: FreeBatch = False,
) -> None:
    """Say where the time of training steps goes.

    It runs real training steps, and says which setting would make them faster.  On CUDA a trace of a few more steps
    says how busy the device is and with which kernels, on a CPU with which operators.  Then other numbers of threads
    and larger batches are tried for some steps.

    Examples:
      socialx profile --data metr_la.h5 --tuned tuned.yaml
      socialx profile --data metr_la.h5 --compare tuned.yaml
      socialx profile --data metr_la.h5 --require 'gpu_busy>=0.8'
    """
    from socialx import tasks
    from socialx.profiling import require as requirements
    from socialx.profiling.rules import check_names, failing
    from socialx.tasks.outputs import ADVICE, PAGE, PROFILE, TRACE, check_outputs

    alone = {"output": output, "html": html, "trace": trace, "require": require, "fail_on": fail_on, "against": against}
    _refuse_idle(alone, compare, sweep, tuned)
    required = requirements.parse(require) if require is not None else []
    fatal = fail_on.split(",") if fail_on is not None else []
    check_names(fatal)
    seconds = _seconds(budget)
    before = _stored(against) if against is not None else None
    written = ((output, PROFILE), (html, PAGE), (trace, TRACE), (tuned, ADVICE))
    check_outputs(*written, layers=layers, others=(against, compare))
    if compare is not None:
        _compare(layers, compare, max_regression, as_json)
        return
    if sweep:
        _sweep(layers, seconds, free_batch, tuned, as_json)
        return
    result = tasks.profile(settings=layers, trace=trace, progress=Show("profile"))
    content = json.dumps(result.as_dict(), indent=2, default=str) + "\n"
    _write(output, content)
    if html is not None:
        from socialx.report.profile_page import page

        _write(html, page(result))
    _write(tuned, _tuned(result))
    if as_json:
        print_json(result.as_dict())
    else:
        from socialx.report.profile import print_against, print_profile

        print_profile(result)
        if before is not None:
            print_against(result, before, str(against))
        _next(result, tuned)
    if failed := requirements.failed(result, required) + failing(result, fatal):
        raise GateError.together(failed)


def _refuse_idle(alone: Mapping[str, Any], compare: Path | None, sweep: bool, tuned: Path | None) -> None:
    """A file that is not written, or a gate that is not looked at, must not seem to be."""
    if compare is not None and sweep:
        raise SettingsError(Argument("sweep"), "is not possible together with a comparison", "one after the other")
    if compare is None and not sweep:
        return
    mode = Argument("compare") if compare is not None else Argument("sweep")
    given = [name for name, value in alone.items() if value is not None]
    given += ["tuned"] if compare is not None and tuned is not None else []
    if given:
        raise SettingsError(Argument(given[0]), "is for a profile alone", ("leave it out, or leave out ", mode))


def _next(result: Any, tuned: Path | None) -> None:
    """The command that proves the advice."""
    if tuned is not None:
        note(f"wrote {tuned}; check it with the same command and --compare {tuned}")
    elif any(each.patch for each in result.findings):
        note("--tuned tuned.yaml writes these settings, --compare tuned.yaml then measures what they bring")


def _tuned(result: Any) -> str:
    from socialx.options import yaml_of
    from socialx.profiling.rules import patch_of
    from socialx.tasks.outputs import ADVISED

    patch = patch_of(result.findings)
    comments = {key: f"{f.rule}: {f.evidence}" for f in reversed(result.findings) for key in f.patch}
    text = yaml_of(patch, comments) if patch else "# the profile found nothing to change\n"
    return f"{ADVISED}\n{text}"


def _write(path: Path | None, content: str) -> None:
    from socialx.disk import replacing

    if path is not None:
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")


def _compare(layers: Layers, other: Path, most: float | None, as_json: bool) -> None:
    from dataclasses import asdict

    from socialx import tasks
    from socialx.report.profile import print_comparison
    from socialx.tasks.comparing import ROUNDS

    found = tasks.compare(settings=layers, other=other, progress=Show("profile"))
    if as_json:
        print_json(asdict(found))
    else:
        rows = {
            "windows/s": (found.here.windows_per_s, found.there.windows_per_s),
            "share waiting for input": (found.here.input, found.there.input),
            "share between steps": (found.here.hooks, found.there.hooks),
        }
        print_comparison(found.gain, ROUNDS, rows, found.changes)
    if most is not None and found.gain.high < 1 - most / 100:
        raise GateError(other, str(found.gain), f"at most {most:g} % slower is allowed")


def _sweep(layers: Layers, seconds: float, free_batch: bool, tuned: Path | None, as_json: bool) -> None:
    from dataclasses import asdict

    from socialx import tasks
    from socialx.options import yaml_of
    from socialx.report.profile import print_profile, print_sweep
    from socialx.tasks.outputs import ADVISED

    found = tasks.sweep(settings=layers, budget_s=seconds, free_batch=free_batch, progress=Show("profile"))
    if tuned is not None:
        comments = {key: each.found for each in found.tried if each.taken for key in each.changes}
        text = yaml_of(found.advised, comments) if found.advised else "# the sweep found nothing faster\n"
        _write(tuned, f"{ADVISED}\n{text}")
    if as_json:
        print_json(asdict(found))
        return
    print_profile(found.start)
    print_sweep([(each.changes, each.found, each.taken) for each in found.tried], found.advised, found.gain)
    if tuned is not None:
        note(f"wrote {tuned}")


def _seconds(text: str) -> float:
    """``90s``, ``5m``, ``1h``, or seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match:
        raise SettingsError(Argument("budget"), f"{text!a} is no time", "write 90s, 5m or 1h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _stored(path: Path) -> dict[str, Any]:
    """A profile that was written before; SocialxError where the file is none."""
    from socialx.disk import read_text

    try:
        found = json.loads(read_text(path, STORED_BYTES))
        shares = {key: float(found["shares"][key]) for key in ("input", "transfer", "span", "hooks")}
        rate = float(found["throughput"]["windows_per_s"])
        if not all(map(math.isfinite, (*shares.values(), 1 / rate))):
            raise ValueError("not a number")
        return {"shares": shares, "throughput": {"windows_per_s": rate}}
    except OSError as error:
        raise SocialxError(path, error.strerror or error, "name a file that --output wrote") from None
    except (ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError):
        raise SocialxError(path, "is no profile", "name a file that --output wrote") from None
