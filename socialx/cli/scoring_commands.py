"""The commands that use runs: evaluate, explain, calibrate, report, predict, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from socialx.cli.command import Json, command, note, print_json
from socialx.cli.error_flags import write
from socialx.cli.flags import with_settings
from socialx.cli.progress_bars import Show
from socialx.errors import Argument, Command, GateError, SettingsError
from socialx.files.convert_options import options
from socialx.settings_layers import Layers

PartOption = Annotated[
    str,
    typer.Option(
        "--part", metavar="train|validation|test|all", help="which windows (default: test)", show_default=False
    ),
]
Start = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="score only forecasts that begin here or later")
]
End = Annotated[str | None, typer.Option("--to", metavar="TIME", help="and end here or before; a date is its 00:00")]
Save = Annotated[
    Path | None, typer.Option("--save", metavar="FILE", help="also write all forecasts with the truth, .h5 or .parquet")
]
Scored = Annotated[list[Path] | None, typer.Argument(metavar="[RUN]...", help="run folders, or files of forecasts")]


def _of_table(option: str, flag: str) -> typer.models.OptionInfo:
    """A flag that says about a table what an option of convert does."""
    known = options()[option]
    return typer.Option(flag, metavar=known.metavar, help=f"of a table: {known.help}", show_default=False)


KnownDays = Annotated[
    str | None,
    typer.Option(
        "--known-days",
        metavar="0,7,all",
        help="also score runs that know so many days before each day, or those of the training (trained)",
    ),
]
DriftOption = Annotated[
    bool, typer.Option("--drift", help="also say whether runs are as good as their calibration promised, by day")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or a run of the package: any, metr_la")]


@command("evaluate")
@with_settings("evaluate")
def evaluate(
    layers: Layers,
    runs: Scored = None,
    baselines: Annotated[
        bool,
        typer.Option("--baselines", help="also score copy-last and the historical average, and list published results"),
    ] = False,
    known_days: KnownDays = None,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="also say how often the prediction intervals of runs hold")
    ] = False,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="WHAT,WHAT", help="also the MAE by horizon, hour, weekday, sensor, congestion"),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="also the difference of two runs, with its 95 % interval")
    ] = False,
    drift: DriftOption = False,
    max_mae: Annotated[
        str | None,
        typer.Option("--max-mae", metavar="LIMITS", help="exit 3 if a run has a larger MAE: 60min=3.5,all=3"),
    ] = None,
    scores_csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="also write the scores here")] = None,
    save: Save = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace existing files")] = False,
    part: PartOption = "test",
    start: Start = None,
    end: End = None,
    as_json: Json = False,
) -> None:
    """Score runs and baselines: MAE, RMSE, MAPE and R2.

    The scores are those at 15, 30 and 60 minutes and over all steps.  Runs are scored on their own data and split, in
    float32 unless --precision says otherwise.  A file of forecasts may be of any model; only windows that it
    forecasts are scored.

    Examples:
      socialx evaluate runs/demo --baselines
      socialx evaluate runs/demo mine.csv
      socialx evaluate --baselines --data metr_la.h5
      socialx evaluate runs/a runs/b --compare --by hour
      socialx evaluate runs/demo --from 2012-05-21 --to "2012-05-22 09:00"
      socialx evaluate runs/demo --data new.h5 --part all --drift
    """
    import socialx
    from socialx.scoring import limits
    from socialx.tasks.outputs import check_outputs
    from socialx.views.score_tables import print_evaluation

    bounds = [] if max_mae is None else limits.parse(max_mae)
    if bounds and not runs:
        raise SettingsError(Argument("max_mae", max_mae), "no run that must keep it", "name a run folder")
    check_outputs((scores_csv, None), (save, None), layers=layers, runs=runs or [], overwrite=overwrite)
    evaluation = socialx.evaluate(
        runs or [],
        part=part,
        start=start,
        end=end,
        baselines=baselines,
        known_days=known_days or (),
        intervals=intervals,
        by=by or (),
        compare=compare,
        drift=drift,
        save=save,
        overwrite=overwrite,
        settings=layers,
        progress=Show("evaluate"),
    )
    if as_json:
        print_json(evaluation.as_dict())
    else:
        print_evaluation(evaluation)
    if scores_csv is not None:
        evaluation.to_csv(scores_csv, overwrite)
    for path in filter(None, (scores_csv, save)):
        note(f"wrote {path}")
    if failed := limits.failed(evaluation, bounds):
        raise GateError.together(failed)


@command("explain")
@with_settings("explain")
def explain(
    layers: Layers,
    run: RunArgument,
    part: PartOption = "test",
    start: Start = None,
    end: End = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="draw it, with a map of the attention weights, .png, .svg or .pdf"),
    ] = None,
    geojson: Annotated[
        Path | None,
        typer.Option("--geojson", metavar="FILE", help="write the sensors and lines to their neighbours for a map"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say where a run errs and which neighbours it uses.

    It prints the MAE by horizon, hour and sensor, the radii and the attention weights.  As in evaluate, a run is scored
    on its own data and split.  Attention weights are means over 8 batches of them.

    Example:
      socialx explain runs/demo --plot demo.png
    """
    import socialx
    from socialx.views.explanation_tables import print_explanation
    from socialx.views.score_tables import print_protocol

    explanation = socialx.explain(
        run,
        part=part,
        start=start,
        end=end,
        plot=plot,
        geojson=geojson,
        settings=layers,
        progress=Show("explain"),
    )
    if len(explanation.protocol.targets) > 1:
        note(f"explained: {explanation.target}, the first of the targets {', '.join(explanation.protocol.targets)}")
    if as_json:
        print_json(explanation.as_dict())
        return
    print_explanation(explanation)
    print_protocol(explanation.protocol)


@command("calibrate")
@with_settings("calibrate")
def calibrate(layers: Layers, run: RunArgument) -> None:
    """Write the prediction intervals of a run into its folder.

    train does this at its end.  It is needed for other data, and after new
    weights.  The errors are those of the validation part.

    Examples:
      socialx calibrate runs/demo
      socialx calibrate runs/demo --data other.h5
    """
    import socialx

    calibration = socialx.calibrate(run, settings=layers, progress=Show("calibrate"))
    windows = calibration.protocol.windows["validation"]
    errors = f"{calibration.errors:,} errors of {windows:,} validation windows"
    following = write("calibrate", Command("predict", run, **{"data.path": layers.of_call("data.path")}, interval=0.9))
    typer.echo(f"{run}: levels 0.5 to {calibration.widest:g} from {errors}: {following}")


@command("report")
@with_settings("report")
def report(
    layers: Layers,
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="the page; an older one is replaced")
    ] = Path("report.html"),
    card: Annotated[
        str | None,
        typer.Option("--card", metavar="LICENCE", help="also write README.md into RUN, a model card: mit, unknown"),
    ] = None,
    part: PartOption = "test",
    start: Start = None,
    end: End = None,
) -> None:
    """Write one HTML page about runs.

    It holds scores beside references, settings, learning curves, errors by horizon, hour and weekday, forecasts of
    two days, and a map of the sensors.  Map and days are of the run with the smallest MAE.  The page needs no network.

    Examples:
      socialx report runs/demo
      socialx report runs/first runs/second -o both.html
    """
    import socialx
    from socialx.views.score_tables import verdicts

    page = socialx.report(
        runs, part=part, start=start, end=end, output=output, card=card, settings=layers, progress=Show("report")
    )
    for line in verdicts(page.evaluation):
        typer.echo(line)
    typer.echo(f"wrote {output}: {output.stat().st_size / 1e6:.1f} MB")
    if card is not None:
        typer.echo(f"wrote {runs[0] / 'README.md'}")


@command("predict")
@with_settings("predict")
def predict(
    layers: Layers,
    run: RunArgument,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="time of the last row to read; not set: the last row")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="issue forecasts repeatedly, the first one here")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="the last of them; not set: the end")] = None,
    every: Annotated[
        str | None, typer.Option("--every", metavar="15min", help="time between two of them; not set: the horizon")
    ] = None,
    sensors: Annotated[
        str | None, typer.Option("--sensors", metavar="ID,ID", help="only these sensors; not set: all")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="write it as .csv, .parquet or .h5")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="draw --sensors, or the six that change most, .png, .svg or .pdf"),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option("--interval", metavar="0.9", help="add prediction intervals of this level", show_default=False),
    ] = None,
    meta_csv: Annotated[Path | None, _of_table("meta", "--meta-csv")] = None,
    units: Annotated[str | None, _of_table("units", "--units")] = None,
    timezone: Annotated[str | None, _of_table("timezone", "--timezone")] = None,
    missing: Annotated[str | None, _of_table("missing", "--missing")] = None,
    resample: Annotated[str | None, _of_table("resample", "--resample")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an existing output")] = False,
    as_json: Json = False,
) -> None:
    """Forecast the next horizon of every sensor.

    It forecasts from the last row of a file or from earlier ones.  Without --output the sensors that change most are
    printed.  Times are wall times of the file.  --data may be a table that convert reads; a note says how to keep it.

    Examples:
      socialx predict runs/demo
      socialx predict runs/demo --data new.h5 --output next_hour.csv
      socialx predict any --data city.csv --meta-csv places.csv --units km/h
      socialx predict runs/demo --from "2012-05-20 06:00" --every 15min -o am.csv
    """
    import socialx
    from socialx.forecast import check_suffix
    from socialx.tasks.outputs import PICTURE, check_outputs
    from socialx.views.forecast_tables import print_forecast

    if output is not None:
        check_suffix(output)
    check_outputs((output, None), (plot, PICTURE), layers=layers, runs=[run], others=[meta_csv], overwrite=overwrite)
    forecast = socialx.predict(
        run,
        at=at,
        start=start,
        end=end,
        every=every,
        sensors=sensors,
        interval=interval,
        meta_csv=meta_csv,
        units=units,
        timezone=timezone,
        missing=missing,
        resample=resample,
        settings=layers,
        progress=Show("predict"),
    )
    if output is not None:
        forecast.write(output, overwrite)
    if plot is not None:
        forecast.plot(plot)
        note(f"drew {plot}")
    if as_json:
        print_json(forecast.as_dict())
    elif output is None:
        print_forecast(forecast, whole=sensors is not None, all_to="--output FILE.csv writes all of them")
    else:
        typer.echo(f"wrote {output}: {forecast.headline()}")


@command("export")
@with_settings("export")
def export(
    layers: Layers,
    run: RunArgument,
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="a .pt2, .onnx or .safetensors file")],
    format: Annotated[
        str | None,
        typer.Option("--format", metavar="torch|onnx|safetensors", help="its format; not set: that of its suffix"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace an existing output")] = False,
) -> None:
    """Write the model of a run as a file that works without socialx.

    .pt2 is a program for torch.export.load and .onnx one for ONNX runtimes.  Both take readings and give the forecast
    of predict, in the units of the data file.  .safetensors holds the weights alone.

    Examples:
      socialx export runs/demo demo.onnx
      socialx export runs/demo demo.pt2 --overwrite
    """
    import socialx

    exported = socialx.export(run, output, format=format, overwrite=overwrite, settings=layers, progress=Show("export"))
    typer.echo(f"wrote {exported.path}: {exported.headline()}")
