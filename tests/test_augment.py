"""Views: the same as slow loops over images and pixels for the same draws, and what they must not do."""

import colorsys
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion._random import reseed, stream
from apportion.augment import (
    AUGMENTATIONS,
    adjust_colors,
    affine,
    crop_flip,
    cutout,
    hue_rotation,
    strong,
    swap_features,
    views,
    weak_and_strong,
)
from apportion.errors import DataError, SettingsError

# --- weak views


def images(n: int = 5, channels: int = 3, height: int = 6, width: int = 7) -> torch.Tensor:
    shape = (n, channels, height, width)
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=stream(0, "images"))


def slow_crop_flip(x: torch.Tensor, padding: int) -> torch.Tensor:
    """Pad with black, flip, and cut a window: image by image, with the draws that crop_flip makes."""
    n, _, height, width = x.shape
    shift = torch.randint(-padding, padding + 1, (2, n, 1))
    flip = torch.randint(0, 2, (n, 1), dtype=torch.bool)
    out = torch.zeros_like(x)
    for i in range(n):
        image = torch.nn.functional.pad(x[i], (padding,) * 4)
        down, right = int(shift[0, i]) + padding, int(shift[1, i]) + padding
        window = image[:, down : down + height, right : right + width]
        out[i] = window.flip(2) if flip[i] else window
    return out


@given(st.integers(0, 4), st.integers(0, 50))
def test_crop_and_flip_equal_a_slow_loop_over_images(padding, seed):
    x = images()
    reseed(seed)
    fast = crop_flip(x, padding)
    reseed(seed)
    assert torch.equal(fast, slow_crop_flip(x, padding))


def test_without_padding_an_image_is_itself_or_its_mirror_and_both_occur():
    reseed(0)
    x = images(64)
    seen = crop_flip(x, 0)
    same = torch.tensor([torch.equal(a, b) for a, b in zip(seen, x, strict=True)])
    mirrored = torch.tensor([torch.equal(a, b.flip(2)) for a, b in zip(seen, x, strict=True)])
    assert (same ^ mirrored).all()
    assert 16 < int(mirrored.sum()) < 48


def test_without_flips_and_padding_an_image_is_itself():
    reseed(0)
    x = images(64)
    assert torch.equal(crop_flip(x, 0, horizontal_flip=False), x)


@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name != "none"])
def test_views_flip_unless_their_name_says_otherwise(name):
    """Images whose left half is white: mirror images have a white right half."""
    x = torch.zeros(200, 3, 32, 32, dtype=torch.uint8)
    x[:, :, :, :12] = 255
    reseed(0)
    seen = AUGMENTATIONS[name](x).float().flatten(0, -4).mean(1)
    mirrored = (seen[:, :, 20:].mean((1, 2)) > seen[:, :, :12].mean((1, 2))).float().mean()
    if name == "crop" or name.endswith("unmirrored"):
        assert mirrored < 0.1
    else:
        assert 0.3 < mirrored < 0.6


def test_every_shift_within_the_padding_occurs():
    reseed(0)
    x = torch.zeros(2000, 1, 9, 9, dtype=torch.uint8)
    x[:, 0, 4, 4] = 255
    found = crop_flip(x, 2).nonzero()
    assert len(found) == 2000
    places, counts = (found[:, 2] * 9 + found[:, 3]).unique(return_counts=True)
    assert sorted(places.tolist()) == [row * 9 + column for row in range(2, 7) for column in range(2, 7)]
    assert counts.min() > 40


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_bytes_stay_bytes_and_the_images_passed_in_stay_as_they_were(dtype):
    x = images().to(dtype)
    before = x.clone()
    assert crop_flip(x).dtype == dtype
    assert torch.equal(x, before)


@pytest.mark.parametrize(("size", "shift"), [(8, 1), (12, 2), (16, 2), (28, 4), (32, 4), (96, 4)])
def test_small_images_are_shifted_less(size, shift):
    dot = torch.zeros(400, 1, size, size, dtype=torch.uint8)
    dot[:, :, size // 2] = 255
    rows = crop_flip(dot).nonzero()[:, 2] - size // 2
    assert (rows.min(), rows.max()) == (-shift, shift)


# --- strong views

SIZE = 7


def floats(n: int = 3, channels: int = 3, size: int = SIZE) -> torch.Tensor:
    return torch.rand(n, channels, size, size, generator=stream(0, "strong"))


def slow_affine(image: torch.Tensor, angle: float, shear: float, zoom: float) -> torch.Tensor:
    """Pixel by pixel: where did it come from, and what is there between four pixels."""
    height, width, out = *image.shape[1:], torch.zeros_like(image)
    middle, center = (height - 1) / 2, (width - 1) / 2

    def at(row: int, column: int) -> torch.Tensor:
        inside = 0 <= row < height and 0 <= column < width
        return image[:, row, column] if inside else torch.zeros(len(image))

    for row in range(height):
        for column in range(width):
            right, down = (column - center) / zoom, (row - middle) / zoom
            # turned back clockwise, then sheared back
            right, down = (
                right * math.cos(angle) - down * math.sin(angle),
                right * math.sin(angle) + down * math.cos(angle),
            )
            right -= shear * down
            top, left = math.floor(down + middle), math.floor(right + center)
            below, beside = down + middle - top, right + center - left
            out[:, row, column] = (1 - below) * ((1 - beside) * at(top, left) + beside * at(top, left + 1))
            out[:, row, column] += below * ((1 - beside) * at(top + 1, left) + beside * at(top + 1, left + 1))
    return out


@settings(max_examples=15)
@given(st.floats(-0.6, 0.6), st.floats(-0.3, 0.3), st.floats(0.7, 1.3))
@pytest.mark.parametrize("cut", [0, 5])
def test_an_affine_image_of_any_shape_equals_a_slow_loop_over_its_pixels(cut, angle, shear, zoom):
    x = floats(2)[:, :, cut:]
    numbers = [torch.tensor([value, -value / 2]) for value in (angle, shear)] + [torch.tensor([zoom, 1.1])]
    fast = affine(x, *numbers)
    for i in range(2):
        expected = slow_affine(x[i], *(float(values[i]) for values in numbers))
        torch.testing.assert_close(fast[i], expected, atol=1e-4, rtol=0)


def test_a_quarter_turn_is_counter_clockwise():
    x = floats(1)
    got = affine(x, torch.tensor([math.pi / 2]), torch.zeros(1), torch.ones(1))
    torch.testing.assert_close(got, x.rot90(1, (2, 3)), atol=1e-4, rtol=0)


def slow_adjust_colors(image, brightness, contrast, saturation, hue, negative):
    """One change after the other, as a photograph's editor does it; hue by the angle in YIQ."""
    out = image * brightness
    luminance = 0.299 * out[0] + 0.587 * out[1] + 0.114 * out[2]
    out = contrast * out + (1 - contrast) * luminance.mean()
    luminance = 0.299 * out[0] + 0.587 * out[1] + 0.114 * out[2]
    out = saturation * out + (1 - saturation) * luminance
    out = torch.einsum("ij,jhw->ihw", hue_rotation(torch.tensor([hue]))[0], out).clamp(0, 1)
    return 1 - out if negative else out


@settings(max_examples=20)
@given(st.floats(0.6, 1.4), st.floats(0.6, 1.4), st.floats(0, 1.4), st.floats(-0.6, 0.6), st.booleans())
def test_one_matrix_equals_the_changes_of_color_one_after_the_other(a, b, c, d, negative):
    numbers = (a, b, c, d, negative)
    x = floats(2)
    batched = [torch.tensor([value, value]) for value in numbers]
    fast = adjust_colors(x, *batched)
    for i in range(2):
        torch.testing.assert_close(fast[i], slow_adjust_colors(x[i], *numbers), atol=1e-5, rtol=0)


def test_hue_turns_colors_and_leaves_gray_and_luminance():
    angles = torch.tensor([0.3, -0.5, math.pi])
    matrices = hue_rotation(angles)
    gray = torch.full((3, 1), 0.4)
    torch.testing.assert_close(matrices @ gray, gray.expand(3, 3, 1))
    luminance = torch.tensor([0.299, 0.587, 0.114])
    torch.testing.assert_close(luminance @ matrices, luminance.expand(3, 3), atol=1e-5, rtol=0)
    whole = hue_rotation(torch.tensor([2 * math.pi]))[0]
    torch.testing.assert_close(whole, torch.eye(3), atol=1e-5, rtol=0)
    red = hue_rotation(torch.tensor([0.3]))[0] @ torch.tensor([0.6, 0.4, 0.4])
    assert colorsys.rgb_to_hsv(*red.tolist())[0] != pytest.approx(0.0, abs=0.01)


def test_neutral_numbers_change_nothing():
    x, one, zero = floats(3), torch.ones(3), torch.zeros(3)
    torch.testing.assert_close(affine(x, zero, zero, one), x, atol=1e-5, rtol=0)
    torch.testing.assert_close(adjust_colors(x, one, one, one, zero, zero.bool()), x, atol=1e-5, rtol=0)
    assert torch.equal(cutout(x, zero.long(), zero.long(), 0), x)


@given(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1), st.integers(1, 5))
def test_a_hole_equals_a_slow_loop_and_is_cut_off_at_the_edge(row, column, hole):
    x = floats(1)
    got = cutout(x, torch.tensor([row]), torch.tensor([column]), hole)
    for i in range(SIZE):
        for j in range(SIZE):
            inside = row - hole // 2 <= i < row - hole // 2 + hole
            inside &= column - hole // 2 <= j < column - hole // 2 + hole
            assert torch.equal(got[0, :, i, j], torch.full((3,), 0.5) if inside else x[0, :, i, j])


@pytest.mark.parametrize("channels", [1, 3])
def test_a_strong_view_is_of_the_range_of_bytes_repeats_with_its_seed_and_differs_by_image(channels):
    one = torch.randint(0, 256, (1, channels, 32, 32), dtype=torch.uint8, generator=stream(1))
    x = one.expand(6, -1, -1, -1)
    reseed(1)
    first = strong(x)
    reseed(1)
    assert torch.equal(first, strong(x))
    assert first.shape == x.shape
    assert 0 <= first.min() < first.max() <= 255
    assert all((first[0] - other).abs().mean() > 1 for other in first[1:])


def test_as_many_views_are_gray_or_negative_or_covered_as_is_written():
    n = 4000
    black, red = (
        torch.zeros(n, 3, 32, 32, dtype=torch.uint8),
        torch.full((n, 3, 32, 32), 40, dtype=torch.uint8),
    )
    red[:, 0] = 160
    reseed(3)
    center = strong(black, hole=0)[:, :, 16, 16]
    assert set(center.unique().tolist()) == {0.0, 255.0}
    assert (center[:, 0] == 255).float().mean() == pytest.approx(0.05, abs=0.012)
    center = strong(red, hole=0)[:, :, 16, 16]
    assert (center.std(1) < 0.01).float().mean() == pytest.approx(0.15, abs=0.02)
    hole = (strong(black) == 127.5).all(1).float().sum((1, 2))
    assert hole.min() >= 8 * 7
    assert hole.max() == 15 * 15


def test_the_numbers_of_the_moves_are_drawn_from_the_whole_of_their_ranges(monkeypatch):
    drawn: list[torch.Tensor] = []
    monkeypatch.setattr("apportion.augment.affine", lambda images, *numbers: drawn.extend(numbers) or images)
    reseed(5)
    strong(torch.zeros(4000, 1, 8, 8, dtype=torch.uint8))
    ranges = ((-30.0, 30.0), (-0.3, 0.3), (0.8, 1.2))  # degrees, shear, zoom
    for values, (low, high) in zip([drawn[0].rad2deg(), *drawn[1:]], ranges, strict=True):
        room = 0.01 * (high - low)
        assert low - 1e-4 <= values.min() < low + room
        assert high - room < values.max() <= high + 1e-4


@pytest.mark.parametrize(("size", "wide"), [(8, 3), (12, 5), (20, 9), (32, 15), (96, 15)])
def test_the_hole_is_less_than_half_of_a_small_image(size, wide):
    black = torch.zeros(400, 1, size, size, dtype=torch.uint8)
    covered = (strong(black) == 127.5).all(1).float().sum((1, 2))
    assert covered.max() == wide**2


# --- two views


def test_two_views_of_images_are_a_crop_and_a_strong_view_drawn_in_this_order():
    x = images(height=32, width=32)
    reseed(0)
    both = weak_and_strong(x)
    reseed(0)
    weak = crop_flip(x).float()
    assert torch.equal(both, torch.stack([weak, strong(x)], 1))


def test_two_views_of_rows_are_themselves_and_swapped_ones():
    x = torch.randn(50, 4, generator=stream(0))
    both = weak_and_strong(x)
    assert both.shape == (50, 2, 4)
    assert torch.equal(both[:, 0], x)
    assert (both[:, 1] != x).float().mean() == pytest.approx(0.3, abs=0.1)


def test_features_are_swapped_within_their_column_and_each_by_itself():
    reseed(0)
    rows = torch.arange(100.0).unsqueeze(1) + 1000 * torch.arange(5)
    swapped = swap_features(rows, fraction=1.0)
    assert torch.equal(swapped.div(1000, rounding_mode="floor"), rows.div(1000, rounding_mode="floor"))
    assert float((swapped % 1000 == swapped[:, :1] % 1000).all(1).float().mean()) < 0.1


@pytest.mark.parametrize("x", [torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 4)])
def test_other_instances_have_no_two_views(x):
    with pytest.raises(DataError):
        weak_and_strong(x)


# --- views of training and of evaluation


def test_views_scale_bytes_to_zero_mean_and_unit_variance_by_channel():
    x = images(400)
    mean, std = ((x / 255.0).mean((0, 2, 3)), (x / 255.0).std((0, 2, 3)))
    train, plain = views(tuple(mean.tolist()), tuple(std.tolist()), torch.device("cpu"), "none")
    for view in (train, plain):
        got = view(x)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-4)
        torch.testing.assert_close(got.std((0, 2, 3)), torch.ones(3), rtol=1e-3, atol=0)


def test_training_sees_augmented_images_and_evaluation_plain_ones():
    train, plain = views((0.5,) * 3, (0.25,) * 3, torch.device("cpu"), "crop+flip")
    x = images()
    assert torch.equal(plain(x), plain(x))
    reseed(0)
    seen = train(x)
    reseed(0)
    assert torch.equal(seen, plain(crop_flip(x)))
    assert not torch.equal(seen, plain(x))


def test_strong_views_are_scaled_as_plain_ones():
    train, _ = views((0.5,) * 3, (0.25,) * 3, torch.device("cpu"), "strong")
    x = images(height=32, width=32)
    reseed(0)
    seen = train(x)
    reseed(0)
    torch.testing.assert_close(seen, (strong(x) / 255 - 0.5) / 0.25, atol=1e-4, rtol=0)


def test_black_beyond_the_edge_is_black_before_scaling():
    reseed(0)
    train, _ = views((0.5,), (0.25,), torch.device("cpu"), "crop+flip")
    seen = train(torch.full((50, 1, 6, 6), 255, dtype=torch.uint8))
    torch.testing.assert_close(seen.unique(), torch.tensor([-2.0, 2.0]))


def test_instances_that_need_no_scaling_pass_as_they_are():
    x = torch.randn(3, 2, generator=stream(0))
    for view in views((), (), torch.device("cpu"), "none"):
        assert view(x) is x


@pytest.mark.parametrize(("mean", "name"), [((0.5,), "cutout"), ((), "crop"), ((), "strong")])
def test_unknown_augmentations_and_those_of_images_without_images_are_refused(mean, name):
    with pytest.raises(SettingsError):
        views(mean, mean, torch.device("cpu"), name)
