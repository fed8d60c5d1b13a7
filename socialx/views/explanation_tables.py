"""Where a run errs and its attention weights, as terminal tables."""

from __future__ import annotations

import math

from rich.console import Console
from rich.markup import escape

from socialx.scoring.results import Explanation
from socialx.views.score_tables import reported_steps
from socialx.views.terminal import ahead, number, numbers, of_unit, print_line, print_table

WORST = 10  # sensors that are named


def print_explanation(explanation: Explanation, console: Console | None = None) -> None:
    """Errors by horizon, hour and sensor, and what each head of each social layer does."""
    out = console or Console()
    mae, steps = f"MAE{of_unit(explanation.unit)}", explanation.by_horizon
    table = numbers("at", mae, "forecasts")
    for step in reported_steps(len(steps), steps[0].key):
        row = steps[step - 1]
        table.add_row(ahead(row.key), number(row.mae, 4), f"{row.count:,}")
    table.add_row(f"all {len(steps)} steps", number(explanation.mae, 4), f"{explanation.count:,}")
    print_table(out, f"{explanation.run}, {explanation.part} windows, {explanation.target}", table)
    hours = [(f"{row.key:02}:00", number(row.mae, 3)) for row in explanation.by_hour]
    table = numbers(*("from", mae) * 4)
    for first in range(6):
        table.add_row(*(cell for hour in hours[first::6] for cell in hour))
    print_table(out, "by the hour of the day that is forecast", table)
    scored = [sensor for sensor in explanation.sensors if sensor.mae is not None][:WORST]
    table = numbers("sensor", mae, "forecasts", "neighbour", "weight", "km")
    for sensor in scored:
        largest = [(escape(near.id), f"{near.weight:.3f}", f"{near.km:.1f}") for near in sensor.neighbours[:1]]
        errors = (number(sensor.mae, 3), f"{sensor.count:,}")
        table.add_row(escape(sensor.id), *errors, *(largest[0] if largest else ("-", "-", "-")))
    named, sensors = len(scored), len(explanation.sensors)
    worst = f"the {named} worst of {sensors} sensors" if named < sensors else "sensors, the worst first"
    print_table(out, f"{worst}, and the neighbour with the largest weight", table)
    if explanation.no_pooling:
        print_line(out, f"no pooling: {explanation.no_pooling}")
        return
    layers = explanation.layers
    trained = "trained" if any(layer.trained for layer in layers) else "fixed"
    most = layers[0].neighbours
    table = numbers("layer", "head", "radius", "softness", "null key", "entropy", "distance")
    for layer in layers:
        name = layer.name
        for place, head in [*((str(i), head) for i, head in enumerate(layer.heads, start=1)), ("all", layer.mean)]:
            null_key = "-" if head.null_key is None else f"{head.null_key:.1%}"
            radius, softness = number(head.radius_km, 2), number(head.softness_km, 2)
            rest = (number(head.entropy_nats, 2), number(head.distance_km, 2))
            table.add_row(name, place, radius, softness, null_key, *rest, end_section=place == "all")
            name = ""
    print_table(out, f"attention weights of each head: {trained} radii, up to {most} neighbours; km and nats", table)
    if any(layer.mean.null_key is None for layer in layers):
        print_line(out, "pooling.kind max has no weights: it takes the largest value of all neighbours")
    else:
        text = (
            f"entropy of the attention weights: 0 = one neighbour only, {math.log(most + 1):.2f} = uniform over {most} "
            "neighbours and the null key; null key: weight that goes to no neighbour"
        )
        print_line(out, text)
