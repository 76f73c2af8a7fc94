"""Errors and warnings of apportion. One base class catches them all."""


class ApportionError(Exception):
    """Base class of every error that apportion raises on purpose."""


class DataError(ApportionError, ValueError):
    """The data cannot be used. The message names the bag or the row, the value, and what to do."""


class SettingsError(ApportionError, ValueError):
    """A parameter, or a combination of parameters, is not possible."""


class ModelError(ApportionError, ValueError):
    """A saved model cannot be written or read."""


class RunError(ApportionError, RuntimeError):
    """A run of an experiment, or its folder, cannot be used."""


class TrainingError(ApportionError, ArithmeticError):
    """Training failed: a term of the loss is NaN or infinite."""


class ApportionWarning(UserWarning):
    """Base class of every warning that apportion issues."""
