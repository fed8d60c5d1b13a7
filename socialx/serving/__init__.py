"""A trained run as a server: forecasts over HTTP, by a model that stays in memory."""
