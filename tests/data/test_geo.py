"""The plane agrees with the sphere, and neighbours are the nearest others."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from socialx.data import geo


def haversine_km(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    lat_a, lon_a, lat_b, lon_b = (np.radians(x) for x in (a[..., 0], a[..., 1], b[..., 0], b[..., 1]))
    half = np.sin((lat_b - lat_a) / 2) ** 2 + np.cos(lat_a) * np.cos(lat_b) * np.sin((lon_b - lon_a) / 2) ** 2
    return 2 * geo.EARTH_RADIUS_KM * np.arcsin(np.sqrt(half))


@example(latitude=-17.8, longitude=180.0, seed=0)  # Fiji, on both sides of the date line
@given(latitude=st.floats(-65, 65), longitude=st.floats(-180, 180), seed=st.integers(0, 99))
def test_distances_over_60_km_are_right_to_a_thousandth(latitude: float, longitude: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    north = rng.uniform(-0.27, 0.27, 20)  # +-30 km
    east = rng.uniform(-0.27, 0.27, 20) / np.cos(np.radians(latitude))
    place = np.stack([latitude + north, (longitude + east + 180) % 360 - 180], axis=1)
    xy = geo.to_plane(place[:, 0], place[:, 1])
    plane = np.hypot(*(xy[:, None] - xy[None]).transpose(2, 0, 1))
    np.testing.assert_allclose(plane, haversine_km(place[:, None], place[None]), rtol=1e-3, atol=1e-6)


def test_east_is_x_and_north_is_y() -> None:
    xy = geo.to_plane(np.array([34.0, 34.0, 34.1]), np.array([-118.0, -117.9, -118.0]))
    assert xy[1, 0] - xy[0, 0] == pytest.approx(9.22, abs=0.02)
    assert xy[2, 1] - xy[0, 1] == pytest.approx(11.12, abs=0.02)


NETWORKS = {
    "spread": lambda dice, n: dice.uniform(0, 10, (n, 2)),
    "equal distances and locations": lambda dice, n: dice.integers(0, 6, (n, 2)).astype(float),
    "towns": lambda dice, n: dice.normal(size=(n, 2)) * dice.choice([1e-3, 1, 1e4], (n, 1)),
    "date line": lambda dice, n: geo.to_plane(dice.uniform(-18, -17, n), dice.choice([-180, 180, 179.9, -179.95], n)),
    "poles": lambda dice, n: geo.to_plane(dice.choice([-90, 89.9, 90], n), dice.uniform(-180, 180, n)),
    "circle and centre": lambda dice, n: np.exp(1j * np.arange(n)[:, None]).view(float) * (dice.random((n, 1)) < 0.9),
}


@given(
    network=st.sampled_from(sorted(NETWORKS)),
    sensors=st.integers(1, 120),
    neighbours=st.none() | st.integers(1, 8),
    reach=st.sampled_from([np.inf, 5.0, 0.5]),
    seed=st.integers(0, 50),
)
def test_neighbours_are_the_nearest_others_equal_ones_in_their_order(
    network: str, sensors: int, neighbours: int | None, reach: float, seed: int
) -> None:
    dice = np.random.default_rng(seed)
    xy = NETWORKS[network](dice, sensors)
    xy[dice.random(sensors) < 0.2] = np.nan
    found = geo.nearest_neighbours(xy, neighbours, reach)
    gaps = np.hypot(*np.moveaxis(xy[:, None] - xy, -1, 0))
    gaps[np.isnan(gaps) | np.eye(sensors, dtype=bool) | (gaps > reach)] = np.inf
    exists = np.isfinite(gaps).sum(1)[:, None] > np.arange(sensors if neighbours is None else neighbours)
    exists = exists[:, : max(1, exists.sum(1).max(initial=0))]
    order = np.argsort(gaps, axis=1, kind="stable")[:, : exists.shape[1]]
    np.testing.assert_array_equal(found.exists, exists)
    np.testing.assert_array_equal(found.index, np.where(exists, order, np.arange(sensors)[:, None]))
    np.testing.assert_array_equal(found.distance, np.where(exists, np.take_along_axis(gaps, order, 1), 0))
    np.testing.assert_array_equal(found.offsets, np.where(exists[..., None], xy[order] - xy[:, None], 0))


def test_listed_roads_count_both_ways_by_the_shorter_distance() -> None:
    """0 -> 1 over 2 km and back over 3; 1 -> 2 twice, 5 and 4; 3 is on no list; a pair with itself is none."""
    start, end = np.array([0, 1, 1, 1, 2]), np.array([1, 0, 2, 2, 2])
    km = np.array([2.0, 3.0, 5.0, 4.0, 0.0])
    xy = np.array([[0.0, 0.0], [1.0, 1.0], [np.nan, np.nan], [9.0, 9.0]])
    found = geo.road_neighbours(geo.Roads(start, end, km), xy, count=None)
    assert found.index.tolist() == [[1, 0], [0, 2], [1, 2], [3, 3]]
    assert found.exists.tolist() == [[True, False], [True, True], [True, False], [False, False]]
    assert found.distance.tolist() == [[2.0, 0.0], [2.0, 4.0], [4.0, 0.0], [0.0, 0.0]]
    assert found.offsets[0, 0].tolist() == [1.0, 1.0]
    assert found.offsets[1, 1].tolist() == [0.0, 0.0]  # towards a sensor without a position
    assert geo.road_neighbours(geo.Roads(start, end, km), xy, count=1).index.tolist() == [[1], [0], [1], [3]]
    assert not geo.road_neighbours(geo.Roads(start, end, km), xy, None, within_km=1.0).exists.any()


def test_every_sensor_may_be_its_own_only_neighbour() -> None:
    found = geo.self_neighbours(3)
    assert found.index.tolist() == [[0], [1], [2]]
    assert found.exists.all()
    assert not found.distance.any()


def test_without_any_position_no_sensor_has_neighbours() -> None:
    xy = geo.to_plane(np.full(3, np.nan), np.full(3, np.nan))
    assert np.isnan(xy).all()
    assert not geo.nearest_neighbours(xy, 2).exists.any()
