"""Traffic quantities in a file, and the possible range of their values."""

from __future__ import annotations

SPEED = "avg_speed"
QUANTITIES = {"speed": SPEED, "flow": "flow", "occupancy": "occupancy"}  # as typed -> the name of the feature
NOT_NEGATIVE = (SPEED, "flow", "occupancy")  # those that cannot be below 0
LARGEST_SPEED = {"km/h": 200.0, "mph": 124.3, "m/s": 55.6}  # of a road, by unit
# Units of speeds, as typed in lower case without spaces -> as stored.
SPEED_UNITS = {"mph": "mph", "mi/h": "mph", "miles/h": "mph", "m/s": "m/s"} | dict.fromkeys(
    ("km/h", "kmh", "kph", "km/std"), "km/h"
)
KMH = {"km/h": 1.0, "mph": 1.609344, "m/s": 3.6}  # of one of a unit of speeds
UNITS_LIKE = {"flow": ("veh/h", "veh/5min"), "occupancy": ("%", "share")}  # examples; those of speeds are mph and km/h


def ratio_of_units(unit: str, other: str) -> float:
    """Return the factor from ``unit`` to ``other``; 1 unless both are speed units."""
    return KMH[unit] / KMH[other] if {unit, other} <= {*KMH} else 1.0


def highest_reading(feature: str, unit: str) -> float:
    """Return the highest possible reading on a road; infinite unless the feature is speed in a known unit."""
    return LARGEST_SPEED.get(unit, float("inf")) if feature == SPEED else float("inf")
