"""ONNX files: the same probabilities, and what a program without torch must know."""

import json
import os
from functools import partial

import numpy as np
import pytest

from apportion import ProportionClassifier
from apportion.datasets.synthetic import moons
from apportion.encoding import TableEncoder
from apportion.networks import conv13
from apportion.saving import export_onnx

runtime = pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(0)


def probabilities(path, x: np.ndarray) -> np.ndarray:
    (found,) = runtime.InferenceSession(path).run(["probabilities"], {"features": x})
    return found


def test_onnx_gives_the_same_probabilities_for_any_number_of_rows(tmp_path):
    data = moons(1, 200)
    x, y = data.x.numpy(), np.array(["left", "right"])[data.y.numpy()]
    model = ProportionClassifier(epochs=2, student_epochs=1, random_state=0).fit(x, y)
    export_onnx(model, tmp_path / "new" / "m.onnx")
    assert os.listdir(tmp_path / "new") == ["m.onnx"]
    for n in (1, 7):
        found = probabilities(tmp_path / "new" / "m.onnx", model.encoder_.transform(x[:n]))
        np.testing.assert_allclose(found, model.predict_proba(x[:n]), atol=1e-4)
    metadata = runtime.InferenceSession(tmp_path / "new" / "m.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(metadata["classes"]) == ["left", "right"]


def test_onnx_takes_the_bytes_of_images_that_the_classifier_takes(tmp_path):
    images = RANDOM.integers(0, 256, (24, 1, 12, 12)).astype(np.uint8)
    small = partial(conv13, last_padding=1)
    model = ProportionClassifier(model=small, epochs=1, pseudo_labels=None, random_state=0)
    model.fit(images, np.arange(24) % 3)
    export_onnx(model, tmp_path / "m.onnx")
    found = probabilities(tmp_path / "m.onnx", images[:5])
    np.testing.assert_allclose(found, model.predict_proba(images[:5]), atol=1e-4)


def test_onnx_of_a_data_frame_tells_how_its_features_are_made(tmp_path):
    frame = pytest.importorskip("polars").DataFrame(
        {"age": [20.0, 40.0, None, 30.0] * 5, "city": ["Bern", "Wien"] * 10}
    )
    model = ProportionClassifier(epochs=1, student_epochs=0, random_state=0).fit(frame, [0, 1] * 10)
    export_onnx(model, tmp_path / "m.onnx")
    metadata = runtime.InferenceSession(tmp_path / "m.onnx").get_modelmeta().custom_metadata_map
    encoder = TableEncoder.from_json(json.loads(metadata["encoder"]))
    assert json.loads(metadata["features"]) == encoder.get_feature_names_out().tolist()
    found = probabilities(tmp_path / "m.onnx", encoder.transform(frame))
    np.testing.assert_allclose(found, model.predict_proba(frame), atol=1e-4)
