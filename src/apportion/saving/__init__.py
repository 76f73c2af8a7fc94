"""Fitted classifiers as folders without pickle, with a card to read, and as ONNX files."""

from apportion.saving.folder import About, load, save, save_nearby
from apportion.saving.onnx import export_onnx

__all__ = ["About", "export_onnx", "load", "save", "save_nearby"]
