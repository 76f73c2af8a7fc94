"""Fitted classifiers as folders without pickle, with a card to read, and as ONNX files."""

from apportion.saving.model_folder import About, describe_quality, has_model, load, save, save_nearby
from apportion.saving.onnx import export_onnx

__all__ = ["About", "describe_quality", "export_onnx", "has_model", "load", "save", "save_nearby"]
