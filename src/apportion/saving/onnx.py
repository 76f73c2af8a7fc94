"""A classifier's network as an ONNX file, for programs without torch."""

import io
import json
import logging
import warnings
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from apportion._writing import atomic_file
from apportion.bags.arrays import as_floats
from apportion.errors import ModelError
from apportion.estimator import ProportionClassifier


class Probabilities(nn.Module):
    """The network, from features as users have them to probabilities."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor) -> Tensor:
        return self.network(as_floats(features)).softmax(1)


def export_onnx(classifier: ProportionClassifier, path: str | Path) -> None:
    """Write one file: input `features` (n, ...), output `probabilities` (n, k), for any n.

    The features are float32. If the classifier was fitted on rows, they are what its `encoder_` makes of
    them, and the file's metadata tells how, as JSON. If it was fitted on images, the input takes their bytes.
    """
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise ModelError("exporting needs onnx and onnxscript; pip install 'apportion[onnx]'")
    check_is_fitted(classifier)
    dtype = torch.uint8 if classifier.bytes_ else torch.float32
    example = torch.zeros(2, *classifier.instance_shape_, dtype=dtype)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it reports packages that are not needed
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                Probabilities(classifier.model_).eval(),
                (example,),
                dynamo=True,
                input_names=["features"],
                output_names=["probabilities"],
                dynamic_shapes={"features": {0: torch.export.Dim("n")}},
            )
            if program is None:
                raise RuntimeError("torch exported nothing")
            program.model.metadata_props.update(_metadata(classifier))
            with atomic_file(Path(path), error=ModelError) as partial:
                program.save(partial, external_data=False)
    finally:
        logger.setLevel(level)


def _metadata(classifier: ProportionClassifier) -> dict[str, str]:
    """What a program needs besides the numbers, as JSON: classes, names of features, how they are made."""
    metadata = {"classes": json.dumps(classifier.classes_.tolist())}
    encoder = classifier.encoder_
    names = getattr(classifier, "feature_names_in_", None)
    if encoder is not None:
        names = encoder.get_feature_names_out()
        metadata["encoder"] = json.dumps(encoder.to_json())
    if names is not None:
        metadata["features"] = json.dumps(names.tolist())
    return metadata
