"""Small whole numbers as short text: a fixed number of bits each, in base64."""

import base64

import numpy as np


def bits_for(n: int) -> int:
    """Bits that tell n values apart, at least one."""
    return max(1, (n - 1).bit_length())


def pack(values: np.ndarray, bits: int) -> str:
    """Numbers from 0 to 2**bits - 1, the most significant bit first."""
    places = np.arange(bits)[::-1]
    each = (np.asarray(values, dtype=np.int64)[:, None] >> places) & 1
    return base64.b64encode(np.packbits(each.astype(np.uint8).ravel()).tobytes()).decode("ascii")


def unpack(text: str, bits: int, n: int) -> np.ndarray:
    """The n numbers that `pack` was given; a text of other numbers is an error."""
    packed = np.frombuffer(base64.b64decode(text), np.uint8)
    if len(packed) != -(-n * bits // 8):
        raise ValueError(f"{len(packed)} bytes are not those of {n} numbers of {bits} bits")
    each = np.unpackbits(packed, count=n * bits)
    return each.reshape(n, bits).astype(np.int64) @ (1 << np.arange(bits)[::-1])
