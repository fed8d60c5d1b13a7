"""What readings are: the quantities that a file may hold, and what their values can be."""

SPEED = "avg_speed"
QUANTITIES = {"speed": SPEED, "flow": "flow", "occupancy": "occupancy"}  # as typed -> the name of the feature
NOT_NEGATIVE = (SPEED, "flow", "occupancy")  # those that cannot be below 0
LARGEST_SPEED = {"km/h": 200.0, "mph": 124.3, "m/s": 55.6}  # of a road, by unit
