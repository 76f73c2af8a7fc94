"""Rows and images: what both stages do of themselves, and that it is what the tables were made with."""

import inspect
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from apportion import ProportionClassifier, defaults, load, save
from apportion.errors import DataError
from apportion.intake.instances import as_floats, centered
from apportion.intake.pictures import stacked
from apportion.models import named
from apportion.networks import NETWORKS, conv13, resnet9


def bars(n: int, seed: int = 0, size: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Noisy gray images with a bright bar: upright, lying, or none."""
    random = np.random.default_rng(seed)
    classes = random.integers(3, size=n)
    images = random.integers(0, 90, (n, 1, size, size))
    for image, kind in zip(images, classes, strict=True):
        at = random.integers(4, size - 6)
        if kind == 0:
            image[0, :, at : at + 2] += 150
        if kind == 1:
            image[0, at : at + 2] += 150
    return images.astype(np.uint8), classes


def small(shape: tuple[int, ...], n_classes: int) -> nn.Sequential:
    body = nn.Sequential(
        nn.Conv2d(shape[0], 16, 5, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return nn.Sequential(body, nn.Linear(16, n_classes))


def test_bytes_of_images_are_centred_and_everything_else_is_left():
    pixels = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
    assert as_floats(pixels).flatten().tolist() == [-2.0, 2.0]
    assert torch.equal(centered(pixels), as_floats(pixels))
    assert as_floats(torch.tensor([[0.0, 255.0]])).tolist() == [[0.0, 255.0]]


def test_batches_of_one_image_are_refused_before_training_where_batch_norm_cannot_learn_from_them():
    settings = {"first_epochs": 1, "batch_size": 1, "random_state": 0}
    remedy = r"batch_size is 1, .* from one instance of shape \(1, 12, 12\); pass 2 or more"
    images, classes = bars(9, size=12)
    model = ProportionClassifier(**settings)
    with pytest.raises(ValueError, match=remedy):
        model.fit(images, classes)
    assert model.history_ == []
    model.set_params(batch_size=2).fit(images, classes)  # nine rows: the last joins a batch
    assert len(model.history_) == 1
    large, classes = bars(9)  # of 16 x 16 pixels, four of which are left for the last norm
    assert ProportionClassifier(**settings).fit(large, classes).history_
    images = np.zeros((2, 1, 8, 8), np.uint8)
    own = ProportionClassifier("llp_gan", None, backbone=dense, **settings).fit(images, [0, 1])
    assert math.isfinite(own.history_[-1]["matching"])  # whose generator begins with one pixel


def test_of_itself_an_estimator_takes_two_views_of_images_and_plot_for_rows(tmp_path):
    images, classes = bars(48, size=12)
    settings = {"first_epochs": 1, "second_epochs": 1, "random_state": 0}
    model = ProportionClassifier(**settings).fit(images, classes, bags=np.arange(48) // 8)
    assert [set(line) - {"seconds"} for line in model.history_] == [
        {"stage", "epoch", "proportion", "labels", "contrast"}
    ]
    assert (model.backbone_.func, model.backbone_.keywords) == (resnet9, {"width": 8})
    assert model.get_params()["backbone"] == "auto"
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(images), model.predict_proba(images))
    rows = ProportionClassifier(**settings).fit(images.reshape(48, -1) / 64, classes, bags=np.arange(48) // 8)
    named = {"first_stage": "dllp", "second_stage": "plot", "backbone": "mlp", "labels": "soft", "reg": 1.0}
    told = ProportionClassifier(**settings, **named, rate=2e-3, second_rate=1e-3)
    told.fit(images.reshape(48, -1) / 64, classes, bags=np.arange(48) // 8)
    assert [line["stage"] for line in rows.history_] == ["first", "second"]
    for one, other in zip(rows.classifier_.parameters(), told.classifier_.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("stages", [{}, {"first_stage": "dllp", "second_stage": "plot"}])
def test_images_in_bags_are_learnt(stages):
    images, classes = bars(400)
    model = ProportionClassifier(
        **stages, backbone=small, first_epochs=40, second_epochs=20, batch_size=100, random_state=0
    ).fit(images, classes, bags=np.arange(400) // 10)
    unseen, truth = bars(300, seed=1)
    assert (model.predict(unseen) == truth).mean() > 0.9


def slopes(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noisy gray images with a bright diagonal, falling or rising: each is the other's mirror image."""
    random = np.random.default_rng(seed)
    classes = random.integers(2, size=n)
    images = random.integers(0, 90, (n, 1, 16, 16))
    falling = np.eye(16, k=0, dtype=int) + np.eye(16, k=1, dtype=int)
    for image, kind in zip(images, classes, strict=True):
        image[0] += 150 * (falling[:, ::-1] if kind else falling)
    return images.astype(np.uint8), classes


@pytest.mark.parametrize("stage", ["dllp", "two_views"])
def test_classes_that_mirror_each_other_are_learnt_without_mirrors(stage):
    images, classes = slopes(300)
    unseen, truth = slopes(200, seed=1)
    settings = {"backbone": small, "first_epochs": 30, "batch_size": 100, "random_state": 0}
    model = ProportionClassifier(stage, None, **settings, mirror=False)
    model.fit(images, classes, bags=np.arange(300) // 10)
    assert (model.predict(unseen) == truth).mean() > 0.9
    if stage == "dllp":  # two views would make up their mind, one way or the other
        model.set_params(mirror=True).fit(images, classes, bags=np.arange(300) // 10)
        assert np.abs(model.predict_proba(unseen)[:, 1] - 0.5).mean() < 0.15


def test_a_student_sees_mirrors_as_its_teacher_does(monkeypatch):
    asked = []
    view = defaults.default_view

    def spy(kind, method, flip):
        asked.append(flip)
        return view(kind, method, flip)

    monkeypatch.setattr(defaults, "default_view", spy)
    images, classes = slopes(20)
    settings = {"backbone": small, "first_epochs": 1, "second_epochs": 1}
    ProportionClassifier("dllp", "plot", **settings, mirror=False).fit(
        images, classes, bags=np.arange(20) // 5
    )
    assert asked == [False, False]


@pytest.mark.parametrize(
    "backbone",
    [
        partial(resnet9, width=4, test_time_flip=True),
        lambda shape, k: resnet9(shape, k, width=4, test_time_flip=True),
        lambda shape, k: nn.Sequential(conv13(shape, 8, test_time_flip=True), nn.Linear(8, k)),
    ],
)
def test_a_network_that_asks_mirror_images_is_refused_where_these_are_of_another_class(backbone):
    images, classes = slopes(20)
    model = ProportionClassifier("dllp", None, backbone=backbone, mirror=False, first_epochs=1)
    with pytest.raises(ValueError, match="test_time_flip"):
        model.fit(images, classes)
    assert model.history_ == []
    assert model.set_params(mirror=True).fit(images, classes).history_


def test_images_that_are_no_bytes_and_images_too_small_are_refused_with_the_remedy():
    images, classes = np.zeros((16, 1, 8, 8), np.uint8), np.arange(16) % 3
    remedy = r"\(1, 8, 8\) and are no bytes; .*X.astype\(numpy.uint8\) of .*\(255 \* X\).* 0 to 1; or name"
    for other in (images.astype(float), images > 0, images.astype(np.uint16), images.tolist()):
        with pytest.raises(DataError, match=remedy):
            ProportionClassifier().fit(other, classes)
    with pytest.raises(ValueError, match="too small for conv13"):
        ProportionClassifier(backbone="conv13").fit(images, classes, bags=np.arange(16) // 4)
    with pytest.raises(ValueError, match="too small for resnet9"):
        ProportionClassifier().fit(images[:, :, 1:], classes, bags=np.arange(16) // 4)
    assert partial(conv13, last_padding=1)((1, 8, 8), 3)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize(
    ("shape", "backbone", "remedy"),
    [
        ((16, 16, 3), "auto", r"pass numpy.moveaxis\(numpy.asarray\(X\), 3, 1\)"),
        ((16, 16, 1), small, "their channels last"),
        ((16, 16, 4), "conv13", "their channels last"),
        ((16, 16, 2), "auto", "their channels last"),  # of a kind that is rarer, and square
        ((20, 20, 12), "auto", "their channels last"),
        ((2, 3, 16, 16), "auto", r"pass X.reshape\(-1, \*X.shape\[-3:\]\) where each is an image"),
        ((16, 16), "auto", r"pass X\[:, None\] where they are gray"),
        ((16, 16), "resnet18", r"pass X\[:, None\] where they are gray"),
        ((3, 16, 16), "mlp", r"pass X.reshape\(len\(X\), -1\)"),
        ((16, 16), "mlp", r"pass X.reshape\(len\(X\), -1\)"),
        ((16,), "conv13", "for the backbone conv13; name another, such as mlp"),
        ((1, 3, 16, 16), "wrn_28_2", "for the backbone wrn_28_2; name another"),
    ],
)
def test_images_of_another_layout_are_refused_with_the_remedy(shape, backbone, remedy):
    with pytest.raises(DataError, match=remedy):
        ProportionClassifier(backbone=backbone).fit(np.zeros((6, *shape), np.uint8), np.arange(6) % 2)


@pytest.mark.parametrize(
    "shape", [(3, 16, 3), (4, 16, 16), (2, 16, 16), (8, 16, 16), (16, 16, 16), (16, 12, 9)]
)
def test_images_whose_channels_may_be_first_are_taken(shape):
    model = ProportionClassifier("dllp", None, backbone=flat, first_epochs=1, random_state=0)
    assert model.fit(np.zeros((6, *shape), np.uint8), np.arange(6) % 2).instance_shape_ == shape


def dense(shape: tuple[int, ...], n_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), n_classes))


def flat(shape: tuple[int, ...], n_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(n_classes))


def test_a_model_of_bytes_takes_no_floats_and_one_of_floats_no_bytes(tmp_path):
    images, classes = bars(24, size=12)
    network = partial(conv13, dropout=0.0)
    for one, other, said in (
        (images, images.astype(np.float32), "X has floats, fit had bytes; pass pixels from 0 to 255"),
        (images / 255, images, "X has bytes, fit had floats; pass floats, scaled as those of fit"),
    ):
        model = ProportionClassifier("dllp", None, backbone=network, first_epochs=1).fit(one, classes)
        save(model, tmp_path / said[:12])
        for each in (model, load(tmp_path / said[:12])):
            assert each.predict_proba(one).shape == (24, 3)
            with pytest.raises(ValueError, match=said):
                each.predict(other)


def test_a_saved_model_says_what_was_done_in_place_of_auto(tmp_path):
    images, classes = bars(24, size=12)
    settings = {"first_epochs": 1, "second_epochs": 1}
    for x, name, first, second, by in (
        (images, "images", "two_views", "none", "Muon, peak rate 0.05"),
        (images.reshape(24, -1) / 64, "rows", "dllp", "plot", "Adam, peak rate 0.002"),
    ):
        model = ProportionClassifier(**settings).fit(x, classes)
        save(model, tmp_path / name)
        card = (tmp_path / name / "README.md").read_text()
        assert f"| first_stage | {first} |" in card
        assert f"| second_stage | {second} |" in card
        assert f"learned the proportions of the bags ({by})" in card
        assert load(tmp_path / name).first_stage == model.first_stage == "auto"


@pytest.mark.parametrize("kind", ["table", "images", "cpu_images"])
def test_the_network_of_every_kind_can_be_saved(tmp_path, monkeypatch, kind):
    """The kind of a GPU's images, without a GPU."""
    monkeypatch.setattr("apportion.defaults.kind_of_data", lambda x, device: kind)
    shape = (4,) if kind == "table" else (3, 8, 8)
    name, options = named(defaults.default_model(kind))
    assert name in NETWORKS
    assert inspect.signature(NETWORKS[name]).bind(shape, 2, **options)
    model = ProportionClassifier("dllp", None, first_epochs=1, random_state=0)
    pixels = np.random.default_rng(0).integers(0, 256, (6, *shape))
    x = pixels / 255 if kind == "table" else pixels.astype(np.uint8)
    if kind != "images":  # whose network takes long to make
        model.fit(x, np.arange(6) % 2)
        save(model, tmp_path / "m")
        np.testing.assert_array_equal(load(tmp_path / "m").predict_proba(x), model.predict_proba(x))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.transpose(0, 2, 3, 1), r"shape \(9, 8, 3\), .*; pass numpy.moveaxis\(nump.*, 3, 1\)"),
        (lambda x: list(x.transpose(0, 2, 3, 1)), r"fit had .*; pass numpy.moveaxis\(nump.*, 3, 1\)"),
        (lambda x: x[0], r"one image of shape \(3, 9, 8\); pass X\[None\]"),
        (lambda x: x.astype(np.int64), r"numbers of type int64, fit had bytes; pass X.astype\(numpy.uint8\)"),
        (lambda x: x[:, :, 1:], r"instances of shape \(3, 8, 8\), fit had \(3, 9, 8\)$"),
        (lambda x: x[:, :1], r"instances of shape \(1, 9, 8\), fit had \(3, 9, 8\)$"),
    ],
)  # fmt: skip
def test_images_that_are_laid_out_otherwise_than_those_of_fit_are_told_what_to_pass(change, words):
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 9, 8)).astype(np.uint8)
    model = ProportionClassifier("dllp", None, backbone=flat, first_epochs=1).fit(images, np.arange(6) % 2)
    with pytest.raises(ValueError, match=words):
        model.predict(change(images))


def test_grey_images_without_their_channel_are_told_what_to_pass():
    images, classes = bars(6, size=12)
    model = ProportionClassifier("dllp", None, backbone=flat, first_epochs=1).fit(images, classes)
    with pytest.raises(ValueError, match=r"pass X\[:, None\]"):
        model.predict(images[:, 0])
    with pytest.raises(ValueError, match=r"one image of shape \(12, 12\); pass X\[None, None\]"):
        model.predict(images[0, 0])


def test_a_list_or_a_tensor_of_images_is_their_array():
    images, classes = bars(6, size=12)
    model = ProportionClassifier("dllp", None, backbone=flat, first_epochs=1, random_state=0)
    expected = model.fit(images, classes).predict_proba(images)
    for given in (list(images), torch.from_numpy(images)):
        np.testing.assert_array_equal(model.fit(given, classes).predict_proba(given), expected)
    with pytest.raises(DataError, match=r"pass numpy.moveaxis\(numpy.asarray\(X\), 3, 1\)"):
        ProportionClassifier().fit(list(images.transpose(0, 2, 3, 1)), classes)
    with pytest.raises(
        DataError, match=r"image 1 has shape \(1, 4, 12\), image 0 \(1, 12, 12\); resize them"
    ):
        model.fit([images[0], images[1, :, :4]], [0, 1])


def test_pictures_are_taken_as_they_lie_and_those_without_shades_are_refused():
    pictures = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 9, 3), dtype=np.uint8)
    color = [pictures.fromarray(each) for each in pixels]
    assert np.array_equal(stacked(color), pixels.transpose(0, 3, 1, 2))
    assert np.array_equal(
        stacked([each.convert("L") for each in color])[:, 0], [c.convert("L") for c in color]
    )
    assert stacked([each.convert("RGBA") for each in color]).shape == (4, 4, 8, 9)
    for mode in ("P", "1", "I", "CMYK"):
        with pytest.raises(
            DataError, match=rf"an image of mode '{mode}', .*image.convert\('RGB'\) for image"
        ):
            stacked([color[0].convert(mode)])
    with pytest.raises(DataError, match=r"X is one image; pass a list of images, such as \[X\]"):
        stacked(color[0])


def test_a_network_learns_pictures_and_is_asked_about_them_and_their_bytes_alike():
    pictures = pytest.importorskip("PIL.Image")
    images, classes = bars(24, size=12)
    shown = [pictures.fromarray(each[0]) for each in images]
    model = ProportionClassifier(first_epochs=1, random_state=0).fit(shown, classes, bags=np.arange(24) // 6)
    assert model.instance_shape_ == (1, 12, 12)
    assert np.array_equal(model.predict_proba(shown), model.predict_proba(images))
    with pytest.raises(DataError, match="X is one image"):
        model.predict(shown[0])


def test_names_of_pictures_are_not_taken_for_texts():
    with pytest.raises(DataError, match=r"names of files, such as 'b/a.PNG'; open them, \[PIL.Image.open"):
        ProportionClassifier().fit(["b/a.PNG", "b/c.PNG"], [0, 1])


@pytest.mark.parametrize("turned", [lambda x: x[::-1], lambda x: x[:, ::-1], lambda x: x[..., ::-1]])
def test_arrays_that_are_turned_round_are_taken(turned):
    images, classes = bars(24, size=12)
    rows = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    for x in (images, rows):
        fits = [
            ProportionClassifier(first_epochs=1, second_epochs=1, random_state=0).fit(each, classes)
            for each in (turned(x), turned(x).copy())
        ]
        assert np.array_equal(*(model.predict_proba(turned(x)[:1]) for model in fits))


def test_lists_of_byte_tensors_are_images_and_arrays_of_several_are_slides():
    images = [torch.full((3, 8, 8), i, dtype=torch.uint8) for i in range(4)]
    got = stacked(images)
    assert got.dtype == np.uint8
    assert got.shape == (4, 3, 8, 8)
    slides = [np.zeros((n, 3, 8, 8), np.uint8) for n in (10, 20)]
    with pytest.raises(
        DataError, match=r"X has 2 arrays of several images, .* pass np.concatenate\(X\), and"
    ):
        stacked(slides)


def column(entries: list) -> np.ndarray:
    """An array of objects, as data frames have them."""
    made = np.empty(len(entries), object)
    made[:] = entries
    return made


@pytest.mark.parametrize("kind", [list, tuple, column, pd.Series])
@pytest.mark.parametrize("made", [lambda x: x, lambda x: x / 255, torch.from_numpy])
def test_images_of_several_sizes_are_refused_by_the_first_that_is_odd(kind, made):
    images = [np.zeros((3, 8, 8 + (i > 1)), np.uint8) for i in range(4)]
    odd = kind([made(each) for each in images])
    remedy = r"image 2 has shape \(3, 8, 9\), image 0 \(3, 8, 8\); resize them to one size and as many"
    with pytest.raises(DataError, match=remedy):
        ProportionClassifier(backbone=flat).fit(odd, [0, 1, 0, 1])
    model = ProportionClassifier("dllp", None, backbone=flat, first_epochs=1).fit(
        np.stack(images[:2]), [0, 1]
    )
    with pytest.raises(DataError, match=remedy):
        model.predict(odd)


@pytest.mark.parametrize("kind", [list, column, pd.Series])
def test_pictures_of_several_sizes_and_of_several_kinds_are_told_how_to_be_made_alike(kind):
    pictures = pytest.importorskip("PIL.Image")
    shown = [pictures.new("RGB", (9, 8)) for _ in range(3)]
    remedy = (
        r"; resize them to one size, such as \[image.convert\('RGB'\).resize\(\(9, 8\)\) for image in X\]"
    )
    for odd, shape in (
        (pictures.new("RGB", (8, 9)), r"\(3, 9, 8\)"),
        (shown[0].convert("L"), r"\(1, 8, 9\)"),
    ):
        with pytest.raises(DataError, match=rf"image 3 has shape {shape}, image 0 \(3, 8, 9\){remedy}"):
            stacked(kind([*shown, odd]))
        alike = [image.convert("RGB").resize((9, 8)) for image in (*shown, odd)]
        assert stacked(kind(alike)).shape == (4, 3, 8, 9)


@pytest.mark.parametrize("kind", [list, column, pd.Series])
def test_what_is_no_picture_among_pictures_is_named(kind):
    image = np.zeros((3, 8, 8), np.uint8)
    with pytest.raises(DataError, match="image 1 is None, and no array; leave it out, and its bag or label"):
        stacked(kind([image, None, image]))
    with pytest.raises(DataError, match="image 0 is None, and no array"):
        stacked(kind([None, image]))


def test_columns_of_images_of_one_size_are_taken_as_their_array():
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 9), dtype=np.uint8)
    for kind in (column, pd.Series):
        got = stacked(kind(list(images)))
        assert got.dtype == np.uint8
        assert np.array_equal(got, images)
        floats = stacked(kind(list(images / 255)))  # which scikit-learn stacks
        assert np.array_equal(np.stack(floats), images / 255)


def test_rows_of_several_lengths_are_refused_and_tensors_of_rows_are_taken():
    with pytest.raises(DataError, match=r"row 1 has shape \(3,\), row 0 \(2,\); pass rows of one length"):
        ProportionClassifier().fit([np.zeros(2), np.zeros(3)], [0, 1])
    assert all(type(row) is np.ndarray for row in stacked([torch.zeros(2, requires_grad=True)] * 2))
    numbers = [np.float32(1), np.array(2.0)]
    assert stacked(numbers[::-1]) == numbers[::-1]  # numbers are for scikit-learn to refuse
