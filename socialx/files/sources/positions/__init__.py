"""Sensor locations and neighbours: location tables, GeoJSON, DATEX II, road distances."""
