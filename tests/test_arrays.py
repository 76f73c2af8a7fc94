"""X as a tensor: numbers become float32, images keep their bytes, and the rest is refused by its row."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from apportion.bags.arrays import as_floats, as_tensor, center_pixels, move_channels_first, stack_images
from apportion.errors import DataError

X = np.arange(12.0).reshape(6, 2)


def column(entries: list) -> np.ndarray:
    """An array of objects, as data frames have them."""
    made = np.empty(len(entries), object)
    made[:] = entries
    return made


@pytest.mark.parametrize("kind", [int, bool, np.uint8, np.float16, ">f4", np.longdouble, object, np.uint32])
def test_numbers_of_any_type_become_float32(kind):
    found = as_tensor(X.astype(kind))
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found, X.astype(kind).astype(np.float32))


@pytest.mark.parametrize("kind", [torch.uint8, torch.float16, torch.bfloat16, torch.bool, torch.int16])
def test_tensors_of_any_type_become_float32(kind):
    assert as_tensor(torch.from_numpy(X).to(kind)).dtype == torch.float32


def test_lists_frames_and_turned_or_read_only_arrays_are_taken():
    locked = X.copy()
    locked.setflags(write=False)
    for x in (X.tolist(), pd.DataFrame(X), locked, X[::-1][::-1], np.ma.masked_array(X, False)):
        np.testing.assert_array_equal(as_tensor(x), X)
    np.testing.assert_array_equal(as_tensor(X[::-1]), X[::-1].copy())
    np.testing.assert_array_equal(as_tensor(X[:, ::-1]), X[:, ::-1].copy())


def test_images_keep_their_bytes():
    x = np.arange(24, dtype=np.uint8).reshape(2, 1, 3, 4)
    assert as_tensor(x).dtype == torch.uint8
    assert as_tensor(x).data_ptr() == x.ctypes.data
    pixels = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
    assert as_floats(pixels).flatten().tolist() == center_pixels(pixels).flatten().tolist() == [-2.0, 2.0]
    assert as_floats(torch.tensor([[0.0, 255.0]])).tolist() == [[0.0, 255.0]]


def test_large_finite_numbers_are_not_taken_for_infinite():
    assert as_tensor(np.full((6, 2), 3e38)).isfinite().all()


@pytest.mark.parametrize("value", [math.nan, -math.inf, "tall", None, np.ma.masked])
def test_a_value_that_is_no_number_is_named_by_its_row(value):
    table = X.astype(object if isinstance(value, str | None) else float)
    table = np.ma.masked_array(table) if value is np.ma.masked else table
    table[4, 1] = value
    with pytest.raises(DataError, match="row 4 "):
        as_tensor(table)


@pytest.mark.parametrize(
    "x", [np.full((6, 2), "a"), np.full((6, 2), "1"), np.full((6, 2), np.datetime64("2020-01-01")), X[:, 0]]
)
def test_texts_dates_and_flat_arrays_are_refused(x):
    with pytest.raises(DataError):
        as_tensor(x)


@pytest.mark.parametrize(("shape", "moved"), [
    ((6, 9, 8, 3), True), ((6, 9, 8, 1), True), ((6, 9, 8, 4), True), ((6, 9, 9, 5), True),
    ((6, 3, 9, 8), False), ((6, 1, 9, 9), False), ((6, 3, 9, 3), False), ((6, 9, 8), False),
    ((6, 13, 9, 9), False),
])  # fmt: skip
def test_channels_are_moved_where_only_the_last_axis_can_be_channels(shape, moved):
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    found = move_channels_first(x)
    assert found.shape == ((shape[0], shape[3], *shape[1:3]) if moved else shape)
    assert move_channels_first(x.astype(np.float32)).shape == shape


# --- sequences of images


@pytest.mark.parametrize("kind", [list, tuple, column, pd.Series])
def test_images_of_one_size_are_their_array(kind):
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 9), dtype=np.uint8)
    for x in (kind(list(images)), torch.from_numpy(images), [torch.from_numpy(each) for each in images]):
        found = stack_images(x)
        assert found.dtype == np.uint8
        assert np.array_equal(found, images)
    floats = stack_images(kind(list(images / 255)))  # which scikit-learn stacks
    assert np.array_equal(np.stack(floats), images / 255)


@pytest.mark.parametrize("kind", [list, tuple, column, pd.Series])
@pytest.mark.parametrize("make", [lambda x: x, lambda x: x / 255, torch.from_numpy])
def test_the_first_image_of_another_size_is_named(kind, make):
    images = [np.zeros((3, 8, 8 + (i > 1)), np.uint8) for i in range(4)]
    with pytest.raises(DataError, match="image 2 ") as error:
        stack_images(kind([make(each) for each in images]))
    assert error.value.value == (3, 8, 9)


@pytest.mark.parametrize("kind", [list, column, pd.Series])
def test_what_is_no_image_among_images_is_named(kind):
    image = np.zeros((3, 8, 8), np.uint8)
    for i, images in enumerate([[None, image], [image, None, image]]):
        with pytest.raises(DataError, match=f"image {i} "):
            stack_images(kind(images))


def test_rows_of_one_length_are_left_and_of_several_refused():
    rows = [np.zeros(2), np.ones(2)]
    assert all(np.array_equal(a, b) for a, b in zip(stack_images(rows), rows, strict=True))
    assert stack_images([1.0, 2.0]) == [1.0, 2.0]
    with pytest.raises(DataError, match="row 1 "):
        stack_images([np.zeros(2), np.zeros(3)])
    with pytest.raises(DataError, match="np.concatenate"):
        stack_images([np.zeros((n, 3, 8, 8), np.uint8) for n in (10, 20)])


def test_pictures_are_taken_as_they_lie():
    pictures = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 9, 3), dtype=np.uint8)
    color = [pictures.fromarray(each) for each in pixels]
    assert np.array_equal(stack_images(color), pixels.transpose(0, 3, 1, 2))
    gray = [each.convert("L") for each in color]
    assert np.array_equal(stack_images(gray)[:, 0], np.stack([np.asarray(each) for each in gray]))
    assert stack_images([each.convert("RGBA") for each in color]).shape == (4, 4, 8, 9)
    for mode in ("P", "1", "I", "CMYK"):  # whose numbers are not shades
        with pytest.raises(DataError):
            stack_images([color[0].convert(mode)])
    for odd in ([*color, gray[0]], [*color, color[0].resize((8, 9))], color[0]):
        with pytest.raises(DataError):
            stack_images(odd)
