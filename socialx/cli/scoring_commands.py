"""The commands that use runs: evaluate, explain, calibrate, report, predict, export, serve."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from socialx.cli.command import Json, command, note, print_json
from socialx.cli.progress_bars import Show
from socialx.core.errors import Argument, CheckFailedError, Command, SettingsError
from socialx.core.help import OVERWRITE, FailIf, Output
from socialx.settings.layers import ConfigLayers

output_option = partial(typer.Option, "--output", "-o", rich_help_panel="Output", metavar="FILE", show_default=False)


@command("evaluate", fail_above="drift", save_scores="fail_above")
def evaluate(
    layers: ConfigLayers,
    runs: Sequence[Path] = (),
    fail_above: Annotated[str | None, FailIf("exit 3 if a run has a larger MAE: 60min=3.5,all=3", "LIMITS")] = None,
    save_scores: Annotated[Path | None, Output("also write the scores here", "FILE")] = None,
    save_forecasts: Path | None = None,
    overwrite: bool = False,
    as_json: Json = False,
    **arguments: Any,
) -> None:
    """Score runs and baselines: MAE, RMSE, MAPE and R2.

    Errors are given at 15, 30 and 60 minutes and over all steps.  Runs are scored on their own data and split, in
    float32 unless --precision says otherwise.  A file of forecasts may come from any model, and is scored on its
    own windows.

    Examples:
      socialx evaluate runs/demo --baselines
      socialx evaluate runs/demo mine.csv
      socialx evaluate --baselines --data metr_la.h5
      socialx evaluate runs/a runs/b --compare --by hour
      socialx evaluate runs/demo --start 2012-05-21 --end "2012-05-22 09:00"
      socialx evaluate runs/demo --data new.h5 --split all --drift
    """
    import socialx
    from socialx.core.outputs import SCORES, check_outputs
    from socialx.forecast.files import SCORED
    from socialx.scoring.results import exceeded_limits, parse_limits
    from socialx.scoring.tables import print_evaluation

    bounds = [] if fail_above is None else parse_limits(fail_above)
    if bounds and not runs:
        problem = f"{Argument('fail_above')} needs at least one run to check"
        raise SettingsError("score.no-run", "", problem, "name a run folder")
    check_outputs((save_scores, SCORES), (save_forecasts, SCORED), others=runs, overwrite=overwrite)
    written: dict[str, Any] = {"save_forecasts": save_forecasts, "overwrite": overwrite}
    evaluation = socialx.evaluate(runs, settings=layers, progress=Show(), **written, **arguments)
    if as_json:
        print_json(evaluation.as_dict())
    else:
        print_evaluation(evaluation)
    if save_scores is not None:
        evaluation.to_csv(save_scores, overwrite)
    for path in filter(None, (save_scores, save_forecasts)):
        note(f"wrote {path}")
    if failed := exceeded_limits(evaluation, bounds):
        raise CheckFailedError.together(failed)


@command("explain")
def explain(layers: ConfigLayers, as_json: Json = False, **arguments: Any) -> None:
    """Say where a run errs and which neighbours it uses.

    The output has the MAE by horizon, hour and sensor, the radii and the attention weights.  As in evaluate, a run is
    scored on its own data and split.  Attention weights are means over 8 batches.

    Example:
      socialx explain runs/demo --plot demo.png
    """
    import socialx
    from socialx.scoring.explanation import print_explanation

    explanation = socialx.explain(settings=layers, progress=Show(), **arguments)
    if len(explanation.protocol.targets) > 1:
        note(f"explained: {explanation.target}, the first of the targets {', '.join(explanation.protocol.targets)}")
    if as_json:
        print_json(explanation.as_dict())
        return
    print_explanation(explanation)


@command("calibrate")
def calibrate(layers: ConfigLayers, run: Path) -> None:
    """Write the prediction intervals of a run into its folder.

    train does the same at the end; calibrate again for other data.  Errors come from the validation split.

    Examples:
      socialx calibrate runs/demo
      socialx calibrate runs/demo --data other.h5
    """
    import socialx

    calibration = socialx.calibrate(run, settings=layers, progress=Show())
    windows = calibration.protocol.windows["validation"]
    errors = f"{calibration.errors:,} errors of {windows:,} validation windows"
    following = Command("predict", run, **{"data.path": layers.argument("data.path")}, interval=0.9)
    typer.echo(f"{run}: levels 0.5 to {calibration.widest_level:g} from {errors}: {following}")


@command("report", output="runs")
def report(
    layers: ConfigLayers,
    runs: list[Path],
    output: Annotated[Path, output_option(help="the page; an older one is replaced (default: report.html)")] = Path(
        "report.html"
    ),
    card: str | None = None,
    **arguments: Any,
) -> None:
    """Write one HTML page about runs.

    The page has scores and baselines, settings, learning curves, errors by horizon, hour and weekday, forecasts of
    two days, and a map of the sensors.  Map and days show the run with the smallest MAE.  The page works offline.

    Examples:
      socialx report runs/demo
      socialx report runs/first runs/second -o both.html
    """
    import socialx
    from socialx.scoring.tables import verdicts

    page = socialx.report(runs, output=output, card=card, settings=layers, progress=Show(), **arguments)
    for line in verdicts(page.evaluation):
        typer.echo(line)
    typer.echo(f"wrote {output}: {output.stat().st_size / 1e6:.1f} MB")
    if card is not None:
        typer.echo(f"wrote {runs[0] / 'README.md'}")


@command("predict", output="sensors", plot="output")
def predict(
    layers: ConfigLayers,
    run: list[Path],
    output: Annotated[Path | None, output_option(help="write it as .csv, .xlsx, .parquet or .h5")] = None,
    plot: Annotated[
        Path | None, Output("draw --sensors, or the six that change most, .png, .svg or .pdf", "FILE")
    ] = None,
    meta_csv: Path | None = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
    as_json: Json = False,
    **arguments: Any,
) -> None:
    """Forecast the next horizon of every sensor.

    Forecasts start from the last row of a file or from earlier rows.  Without --output the sensors that change most are
    printed.  Times are local; CET or +01:00 may follow.  --data may be a table that convert reads; -v says how to keep
    the converted file.

    Examples:
      socialx predict runs/demo
      socialx predict runs/demo --data new.h5 --output next_hour.csv
      socialx predict runs/demo_0 runs/demo_1 --mean
      socialx predict zero-shot --data city.csv --meta-csv places.csv --units km/h
      socialx predict runs/demo --start "2012-05-20 06:00" --every 15min -o am.csv
    """
    import socialx
    from socialx.core.outputs import PICTURE, check_outputs
    from socialx.forecast.files import FORECAST
    from socialx.forecast.picture import SHOWN, print_forecast

    check_outputs((output, FORECAST), (plot, PICTURE), overwrite=overwrite)
    forecast = socialx.predict(run, meta_csv=meta_csv, settings=layers, progress=Show(), **arguments)
    if output is not None:
        forecast.write(output, overwrite)
    if plot is not None:
        forecast.plot(plot)
        note(f"drew {plot}")
    if as_json:
        print_json(forecast.as_dict())
    elif output is None:
        shown = forecast.sensors if "sensors" in arguments else forecast.largest_changes(SHOWN)
        print_forecast(forecast, shown)
        if rest := len(forecast.sensors) - len(shown):
            typer.echo(f"{rest} more sensors are not shown; --output FILE.csv writes all of them")
    else:
        typer.echo(f"wrote {output}: {forecast.headline()}")


@command("export")
def export(layers: ConfigLayers, **arguments: Any) -> None:
    """Write the model of a run as a file that works without socialx.

    .pt2 is a program for torch.export.load, and .onnx works in ONNX runtimes.  Both take observations and return the
    forecast of predict, in the units of the data file.  .safetensors holds the weights alone.

    Examples:
      socialx export runs/demo demo.onnx
      socialx export runs/demo demo.pt2 --overwrite
    """
    import socialx

    exported = socialx.export(settings=layers, progress=Show(), **arguments)
    typer.echo(f"wrote {exported.path}: {exported.headline()}")


@command("serve")
def serve(layers: ConfigLayers, **arguments: Any) -> None:
    """Answer requests for forecasts over HTTP.

    POST /forecast takes the observations of the last hour, as JSON or CSV.  GET /forecast/latest is the forecast after
    the last row of --data, or of the run's own file, and / is a page with a map.  The server runs until Ctrl-C.

    Examples:
      socialx serve runs/demo
      socialx serve runs/demo --data live.h5 --follow
    """
    import socialx

    socialx.serve(settings=layers, progress=Show(), **arguments)
