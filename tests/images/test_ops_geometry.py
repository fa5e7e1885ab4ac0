"""Geometry: annotations move with the plane, and are cut where the image ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_images import turned

from packer.model.annotation import Annotation
from packer.model.geometry import Geometry, clip, move, orientation_geometry, with_boxes


def annotation() -> Annotation:
    return Annotation(
        label=3,
        boxes=np.array([[1, 2, 4, 6], [0, 0, 10, 8], [-5, -5, -1, 3], [4, 4, 4, 7]], np.float32),
        box_labels=np.array([0, 1, 2, 3]),
        landmarks=np.array([[1.5, 2.5], [-3, 20]], np.float32),
        polygons=(
            np.array([[1, 2], [4, 2], [4, 6]], np.float32),
            np.array([[-5, 4], [5, -6], [15, 4], [5, 14]], np.float32),
            np.empty((0, 2), np.float32),
            np.array([[20, 20], [30, 20], [30, 30]], np.float32),
        ),
        keypoints=np.arange(24, dtype=np.float32).reshape(4, 2, 3),
        box_fields={"difficult": (0, 1, 0, 1), "pose": ("a", "b", "c", "d")},
        extras={"who": "me"},
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_moves_every_pixel_to_where_numpy_does(orientation: int) -> None:
    height, width = 3, 5
    numbers = np.arange(height * width).reshape(height, width)
    upright = turned(numbers, orientation)
    geometry = orientation_geometry(orientation, width, height)
    assert (geometry.height, geometry.width) == upright.shape
    for y in range(height):
        for x in range(width):
            moved_x, moved_y = geometry.points(np.array([x + 0.5, y + 0.5]))
            assert upright[int(moved_y), int(moved_x)] == numbers[y, x]


def test_move_turns_boxes_points_and_polygons_and_keeps_the_rest() -> None:
    before = annotation()
    after = move(before, orientation_geometry(6, 10, 8))
    assert after.boxes is not None and after.landmarks is not None and after.keypoints is not None
    assert after.boxes[0].tolist() == [2, 1, 6, 4]  # x' = 8 - y, y' = x
    assert after.landmarks.tolist() == [[5.5, 1.5], [-12, -3]]
    assert after.keypoints[0].tolist() == [[7, 0, 2], [4, 3, 5]]
    assert after.polygons is not None and after.polygons[0].tolist() == [[6, 1], [6, 4], [2, 4]]
    assert after.polygons[2].shape == (0, 2)
    for moved in (after.boxes, after.landmarks, after.keypoints, *after.polygons):
        assert moved.dtype == np.float32
    assert (after.label, after.box_labels, after.box_fields) == (3, before.box_labels, before.box_fields)
    assert before.boxes is not None and before.boxes[0].tolist() == [1, 2, 4, 6]


def test_nothing_annotated_moves_and_clips_to_nothing() -> None:
    empty = Annotation(label=1)
    assert move(empty, orientation_geometry(3, 4, 4)).boxes is None
    assert clip(empty, 4, 4) is empty
    none_here = Annotation(boxes=np.empty((0, 4), np.float32), box_labels=np.empty(0, np.int64))
    moved = clip(move(none_here, orientation_geometry(3, 4, 4)), 4, 4)
    assert moved.boxes is not None and moved.boxes.shape == (0, 4)


def test_clip_cuts_boxes_and_drops_what_has_no_area_with_all_that_belongs_to_it() -> None:
    after = clip(annotation(), 9, 5)
    assert after.boxes is not None and after.polygons is not None
    assert after.box_labels is not None and after.keypoints is not None and after.landmarks is not None
    assert after.boxes.tolist() == [[1, 2, 4, 5], [0, 0, 9, 5]]
    assert after.box_labels.tolist() == [0, 1]
    assert after.keypoints.shape == (2, 2, 3)
    assert after.box_fields == {"difficult": (0, 1), "pose": ("a", "b")}
    assert after.landmarks.tolist() == [[1.5, 2.5], [-3, 20]]
    assert after.extras == {"who": "me"}
    assert after.boxes.dtype == np.float32


def test_with_boxes_takes_all_that_belongs_to_them() -> None:
    after = with_boxes(annotation(), [False, False, True, False])
    assert after.boxes is not None and after.boxes.tolist() == [[-5, -5, -1, 3]]
    assert after.polygons is not None and len(after.polygons) == 1
    assert after.box_fields == {"difficult": (0,), "pose": ("c",)}


def area(polygon: np.ndarray) -> float:
    x, y = polygon[:, 0].astype(float), polygon[:, 1].astype(float)
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def test_polygons_are_cut_at_the_edges() -> None:
    polygon = np.array([[-2, -2], [6, -2], [6, 3], [-2, 3]], np.float32)
    whole = Annotation(boxes=np.array([[0, 0, 4, 4]], np.float32), polygons=(polygon,))
    after = clip(whole, 4, 4)
    assert after.polygons is not None
    assert area(after.polygons[0]) == 12
    assert {tuple(point) for point in after.polygons[0].tolist()} == {(0, 0), (4, 0), (4, 3), (0, 3)}


coordinate = st.floats(-20, 30, width=32)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(coordinate, coordinate), min_size=3, max_size=3))
def test_the_part_of_a_triangle_in_the_image_has_the_area_that_pixels_say(
    corners: list[tuple[float, float]],
) -> None:
    triangle = np.array(corners, np.float32)
    whole = Annotation(boxes=np.array([[0, 0, 1, 1]], np.float32), polygons=(triangle,))
    after = clip(whole, 12, 7)
    assert after.polygons is not None
    part = after.polygons[0]
    assert (part >= 0).all() and (part[:, 0] <= 12).all() and (part[:, 1] <= 7).all()
    steps = 8
    y, x = (np.mgrid[0 : 7 * steps, 0 : 12 * steps] + 0.5) / steps
    sides = []
    for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
        sides.append((x1 - x0) * (y - y0) - (y1 - y0) * (x - x0))
    inside = np.all([side >= 0 for side in sides], axis=0) | np.all([side <= 0 for side in sides], axis=0)
    if area(triangle) > 1e-3:
        assert area(part) == pytest.approx(inside.sum() / steps**2, abs=2.5)


number = st.floats(-100, 100)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.tuples(*[number] * 6), st.tuples(*[number] * 6), number, number)
def test_compose_is_one_map_after_the_other(
    first: tuple[float, ...], second: tuple[float, ...], x: float, y: float
) -> None:
    one, other = Geometry(*first, 5, 6), Geometry(*second, 7, 8)  # type: ignore[arg-type]
    both = one.compose(other)
    assert (both.width, both.height) == (7, 8)
    point = np.array([x, y])
    assert np.allclose(both.points(point), other.points(one.points(point)), rtol=1e-9, atol=1e-6)
    assert Geometry.identity(5, 6).compose(one) == one
