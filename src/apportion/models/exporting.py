"""A model's network as ONNX, for programs without torch."""

import io
import json
import logging
import warnings
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from apportion._untrusted import atomic_file
from apportion.bags.arrays import as_floats
from apportion.errors import ModelError
from apportion.models.model import Model
from apportion.tables.columns import to_values


class Probabilities(nn.Module):
    """The network with probabilities for answers, of features as users have them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor) -> Tensor:
        return self.network(as_floats(features)).softmax(1)


def export_onnx(model: Model, path: Path) -> None:
    """One file: input `features` (n, ...), output `probabilities` (n, k), for any n.

    The features are float32, those that the model's transforms make; the file's metadata says how. Where a
    model has learned from images as bytes they are these bytes, and the file centers them as the classifier
    does.
    """
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise ModelError("ONNX files are written with onnx and onnxscript; pip install 'apportion[onnx]'")
    kind = torch.uint8 if model.facts.bytes else torch.float32
    example = torch.zeros(2, *model.shape, dtype=kind)
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it speaks of packages that are not needed
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                Probabilities(model.network).eval(), (example,), dynamo=True, input_names=["features"],
                output_names=["probabilities"], dynamic_shapes={"features": {0: torch.export.Dim("n")}},
            )  # fmt: skip
            if program is None:
                raise RuntimeError("torch exported nothing")
            program.model.metadata_props.update(about(model))
            with atomic_file(path, error=ModelError) as beside:
                program.save(beside, external_data=False)
    finally:
        logging.getLogger("torch.onnx").setLevel(level)


def about(model: Model) -> dict[str, str]:
    """What a program must know beside the numbers, as JSON: classes, names of features, how they are made."""
    columns = model.columns or ()
    names = list(model.feature_names or (name for column in columns for name in column.features))
    values = {"classes": list(model.classes), "features": names, "columns": to_values(columns)}
    return {name: json.dumps(value) for name, value in values.items() if value}
