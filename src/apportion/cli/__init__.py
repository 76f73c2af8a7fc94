"""The command line: `apportion check`, `fit`, `predict`, `run` and others."""

from apportion.cli.app import app, main

__all__ = ["app", "main"]
