"""Views of images: the same as a slow loop over images for the same draws, in bytes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion._random import reseed, stream
from apportion.augment import AUGMENTATIONS, PAIRS, crop_flip, scaled, strong, views


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


def test_without_mirrors_and_padding_an_image_is_itself():
    reseed(0)
    x = images(64)
    assert torch.equal(crop_flip(x, 0, mirror=False), x)


@pytest.mark.parametrize("name", ["crop", "crop+flip", "strong", "strong-unmirrored", *PAIRS])
def test_views_that_say_so_do_not_mirror(name, monkeypatch):
    asked = []

    def seen(x, padding=None, mirror=True):
        asked.append(mirror)
        return crop_flip(x, padding, mirror)

    monkeypatch.setattr("apportion.augment.crop_flip", seen)
    monkeypatch.setattr("apportion.augment.crop_flip", seen)
    view = AUGMENTATIONS[name]
    if name.startswith("crop"):  # bound when views.py was read
        asked.append("crop_flip" if view is crop_flip else view.keywords["mirror"])
    else:
        view(images(2))
    wanted = {"crop": [False], "crop+flip": ["crop_flip"], "strong": [True], "strong-unmirrored": [False]}
    assert asked == wanted.get(name, [name == PAIRS[0]] * 2)


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


def test_an_unknown_augmentation_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="no augmentation 'cutout'; there are none, crop, crop.flip, strong"):
        views((0.5,), (0.25,), torch.device("cpu"), "cutout")


def test_scaled_is_the_plain_formula():
    got = scaled(torch.tensor([[[[51]]]], dtype=torch.uint8), torch.tensor([1.0]), torch.tensor([2.0]))
    assert got.item() == 25.0


@pytest.mark.parametrize(("size", "shift"), [(8, 1), (12, 2), (16, 2), (28, 4), (32, 4), (96, 4)])
def test_small_images_are_shifted_less(size, shift):
    dot = torch.zeros(400, 1, size, size, dtype=torch.uint8)
    dot[:, :, size // 2] = 255
    rows = crop_flip(dot).nonzero()[:, 2] - size // 2
    assert (rows.min(), rows.max()) == (-shift, shift)


def test_values_are_swapped_with_rows_of_their_own():
    from apportion.augment import swapped

    torch.manual_seed(0)
    rows = torch.arange(100.0).unsqueeze(1).expand(100, 5)
    found = swapped(rows, share=1.0)
    assert float((found == found[:, :1]).all(1).float().mean()) < 0.1
