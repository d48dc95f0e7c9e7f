"""Seeds for every place of a run, and the state of the global generators."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np


def seed_of(*numbers: int) -> int:
    """One 32-bit seed for a place in the run, unrelated to those of other places."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def number_of(text: str, digits: int = 8) -> int:
    """A number for a name, the same on every machine: the first digits of its sha256."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:digits], 16)


def random_states() -> list[Any]:
    """Python's and numpy's generators, as JSON has them. (Torch's are tensors and travel with the tensors.)"""
    name, keys, *rest = np.random.get_state(legacy=True)
    return [random.getstate(), [name, np.asarray(keys).tolist(), *rest]]


def set_random_states(states: list[Any]) -> None:
    (version, words, gauss), (name, keys, *rest) = states
    random.setstate((version, tuple(words), gauss))
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
