"""Strong views: the same as slow loops over images and pixels for the same numbers."""

import colorsys
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion._random import reseed, stream
from apportion.augment import covered, moved, recolored, strong, turned

SIZE = 7


def images(n: int = 3, channels: int = 3, size: int = SIZE) -> torch.Tensor:
    return torch.rand(n, channels, size, size, generator=stream(0, "strong"))


def slow_moved(image: torch.Tensor, angle: float, shear: float, zoom: float) -> torch.Tensor:
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
def test_a_moved_image_of_any_shape_equals_a_slow_loop_over_its_pixels(cut, angle, shear, zoom):
    x = images(2)[:, :, cut:]
    numbers = [torch.tensor([value, -value / 2]) for value in (angle, shear)] + [torch.tensor([zoom, 1.1])]
    fast = moved(x, *numbers)
    for i in range(2):
        expected = slow_moved(x[i], *(float(values[i]) for values in numbers))
        torch.testing.assert_close(fast[i], expected, atol=1e-4, rtol=0)


def test_a_quarter_turn_is_counter_clockwise():
    x = images(1)
    got = moved(x, torch.tensor([math.pi / 2]), torch.zeros(1), torch.ones(1))
    torch.testing.assert_close(got, x.rot90(1, (2, 3)), atol=1e-4, rtol=0)


def slow_recolored(image, brightness, contrast, saturation, hue, negative):
    """One change after the other, as a photograph's editor does it; hue by the angle in YIQ."""
    out = image * brightness
    luminance = 0.299 * out[0] + 0.587 * out[1] + 0.114 * out[2]
    out = contrast * out + (1 - contrast) * luminance.mean()
    luminance = 0.299 * out[0] + 0.587 * out[1] + 0.114 * out[2]
    out = saturation * out + (1 - saturation) * luminance
    out = torch.einsum("ij,jhw->ihw", turned(torch.tensor([hue]))[0], out).clamp(0, 1)
    return 1 - out if negative else out


@settings(max_examples=20)
@given(st.floats(0.6, 1.4), st.floats(0.6, 1.4), st.floats(0, 1.4), st.floats(-0.6, 0.6), st.booleans())
def test_one_matrix_equals_the_changes_of_color_one_after_the_other(a, b, c, d, negative):
    numbers = (a, b, c, d, negative)
    x = images(2)
    batched = [torch.tensor([value, value]) for value in numbers]
    fast = recolored(x, *batched)
    for i in range(2):
        torch.testing.assert_close(fast[i], slow_recolored(x[i], *numbers), atol=1e-5, rtol=0)


def test_hue_turns_colors_and_leaves_grey_and_luminance():
    angles = torch.tensor([0.3, -0.5, math.pi])
    matrices = turned(angles)
    gray = torch.full((3, 1), 0.4)
    torch.testing.assert_close(matrices @ gray, gray.expand(3, 3, 1))
    luminance = torch.tensor([0.299, 0.587, 0.114])
    torch.testing.assert_close(luminance @ matrices, luminance.expand(3, 3), atol=1e-5, rtol=0)
    whole = turned(torch.tensor([2 * math.pi]))[0]
    torch.testing.assert_close(whole, torch.eye(3), atol=1e-5, rtol=0)
    red = turned(torch.tensor([0.3]))[0] @ torch.tensor([0.6, 0.4, 0.4])
    assert colorsys.rgb_to_hsv(*red.tolist())[0] != pytest.approx(0.0, abs=0.01)


def test_neutral_numbers_change_nothing():
    x, one, zero = images(3), torch.ones(3), torch.zeros(3)
    torch.testing.assert_close(moved(x, zero, zero, one), x, atol=1e-5, rtol=0)
    torch.testing.assert_close(recolored(x, one, one, one, zero, zero.bool()), x, atol=1e-5, rtol=0)
    assert torch.equal(covered(x, zero.long(), zero.long(), 0), x)


@given(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1), st.integers(1, 5))
def test_a_hole_equals_a_slow_loop_and_is_cut_off_at_the_edge(row, column, hole):
    x = images(1)
    got = covered(x, torch.tensor([row]), torch.tensor([column]), hole)
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


def test_as_many_views_are_grey_or_negative_or_covered_as_is_written():
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
    monkeypatch.setattr("apportion.augment.moved", lambda images, *numbers: drawn.extend(numbers) or images)
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
