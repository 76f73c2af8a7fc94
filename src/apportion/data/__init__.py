"""The door in: a name becomes instances with a training and a test part."""

from apportion.data.instances import DataError, Instances
from apportion.data.synthetic import blobs, digits, moons

SOURCES = {"moons": moons, "blobs": blobs, "digits": digits}

__all__ = ["SOURCES", "DataError", "Instances"]
