"""A run as a model card: the README.md that a model hub shows beside the files of a run folder."""

from __future__ import annotations

import json
from pathlib import Path

from markupsafe import Markup

from socialx.views.page import FOLDER, environment
from socialx.views.run_report import RunReport
from socialx.views.score_tables import protocol_lines, reported_steps, verdicts
from socialx.views.terminal import ahead, number, of_unit

SECTIONS = ("data", "model", "pooling")  # whose settings tell what the model is
PATHS = ("data.path", "data.also", "pooling.distances")  # of the machine that trained


def card(report: RunReport, licence: str, tied: bool) -> str:
    """The card of the one run of a report, in Markdown, with the metadata that hubs read at its head.

    licence: of the weights, by the identifier of hubs, such as ``mit``.  tied: whether it forecasts its network alone.
    """
    (run,) = report.runs
    evaluation, protocol, name = report.evaluation, report.evaluation.protocol, Path(run.name).resolve().name
    target, unit = next(iter(protocol.targets.items()))
    steps = reported_steps(protocol.horizon, protocol.step_minutes)
    rows = []
    for label, model in evaluation.distinct.items():
        maes = [*(model.targets[target].by_step[step - 1].mae for step in steps), model.overall(target).mae]
        rows.append([name if label == run.name else label, *(number(mae, 3) for mae in maes)])
    mae = {"type": "mae", "name": f"MAE{of_unit(unit)}", "value": round(evaluation[run.name].overall(target).mae, 4)}
    data = {"name": protocol.dataset, "type": protocol.dataset, "split": evaluation.part}
    result = {"task": {"type": "time-series-forecasting"}, "dataset": data, "metrics": [mae]}
    changed = [
        (key, value)
        for key, value in run.settings.items()
        if key.split(".")[0] in SECTIONS and key not in PATHS and value != report.defaults[key]
    ]
    lines = protocol_lines(protocol)
    view = {
        "licence": licence,
        "index": Markup(json.dumps([{"name": name, "results": [result]}])),  # JSON is YAML  # noqa: S704
        "name": name,
        "protocol": protocol,
        "trained": protocol.trained[run.name],
        "history": protocol.history * protocol.step_minutes,
        "horizon": protocol.horizon * protocol.step_minutes,
        "target": target,
        "unit": of_unit(unit).strip(),
        "part": evaluation.part,
        "head": ["model", *(ahead(step * protocol.step_minutes) for step in steps), "all steps"],
        "rows": rows,
        "verdicts": [line.replace(run.name, name, 1) for line in verdicts(evaluation)],  # each begins with it
        "protocol_lines": [*lines[:-1], lines[-1].replace(run.name, name, 1)],
        "changed": changed,
        "tied": tied,
    }
    return environment(FOLDER).get_template("model_card.md.j2").render(view)
