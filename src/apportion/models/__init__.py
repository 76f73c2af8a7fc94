"""A trained classifier as a folder: weights as safetensors, everything else as JSON, and a card to read.

Reading a model executes nothing that it names: the network comes from this package's own by its name, is laid
out without memory, and takes the weights only where all names and shapes are as expected.
"""

from apportion.errors import ModelError
from apportion.models.facts import Facts
from apportion.models.loading import load_model
from apportion.models.model import Model, named, refuse_taken, save_model

__all__ = ["Facts", "Model", "ModelError", "load_model", "named", "refuse_taken", "save_model"]
