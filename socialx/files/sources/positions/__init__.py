"""Where sensors stand, and which are neighbours: tables of positions, GeoJSON, DATEX II, road distances."""
