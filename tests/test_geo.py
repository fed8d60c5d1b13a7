"""The plane agrees with the sphere, and neighbours are the nearest others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from socialx.data import geo


def haversine_km(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    lat_a, lon_a, lat_b, lon_b = (np.radians(x) for x in (a[..., 0], a[..., 1], b[..., 0], b[..., 1]))
    half = np.sin((lat_b - lat_a) / 2) ** 2 + np.cos(lat_a) * np.cos(lat_b) * np.sin((lon_b - lon_a) / 2) ** 2
    return 2 * geo.EARTH_RADIUS_KM * np.arcsin(np.sqrt(half))


@given(latitude=st.floats(-65, 65), longitude=st.floats(-180, 180), seed=st.integers(0, 99))
def test_distances_over_60_km_are_right_to_a_thousandth(latitude: float, longitude: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    north = rng.uniform(-0.27, 0.27, 20)  # +-30 km
    east = rng.uniform(-0.27, 0.27, 20) / np.cos(np.radians(latitude))
    place = np.stack([latitude + north, longitude + east], axis=1)
    xy = geo.to_plane(place[:, 0], place[:, 1])
    plane = np.hypot(*(xy[:, None] - xy[None]).transpose(2, 0, 1))
    sphere = haversine_km(place[:, None], place[None])
    np.testing.assert_allclose(plane, sphere, rtol=1e-3, atol=1e-6)


def test_east_is_x_and_north_is_y() -> None:
    xy = geo.to_plane(np.array([34.0, 34.0, 34.1]), np.array([-118.0, -117.9, -118.0]))
    assert xy[1, 0] - xy[0, 0] == pytest.approx(9.22, abs=0.02)
    assert xy[2, 1] - xy[0, 1] == pytest.approx(11.12, abs=0.02)


@given(sensors=st.integers(1, 30), neighbours=st.integers(1, 8), seed=st.integers(0, 50))
def test_neighbours_are_the_nearest_others(sensors: int, neighbours: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    xy = rng.uniform(0, 10, (sensors, 2))
    xy[rng.random(sensors) < 0.2] = np.nan
    index, exists = geo.nearest(xy, neighbours)
    assert index.shape == exists.shape == (sensors, max(1, min(neighbours, sensors - 1)))
    for i in range(sensors):
        gaps = np.hypot(*(xy - xy[i]).T)
        gaps[i] = np.nan
        expected = [j for j in np.argsort(gaps, kind="stable") if np.isfinite(gaps[j])][:neighbours]
        assert index[i][exists[i]].tolist() == expected
        assert (index[i][~exists[i]] == i).all()


def test_without_any_position_nobody_has_neighbours() -> None:
    xy = geo.to_plane(np.full(3, np.nan), np.full(3, np.nan))
    assert np.isnan(xy).all()
    assert not geo.nearest(xy, 2)[1].any()
