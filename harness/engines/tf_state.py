"""What training changes in TensorFlow: variables of every kind, and random state."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from harness.errors import LaunchError


@dataclass(frozen=True)
class Snapshot:
    """Copies of variables, each on its device, and the random state of the host."""

    values: tuple[tuple[Any, Any], ...]  # (variable, value)
    python: Any
    numpy: Any


def plain(variable: Any) -> Any:
    """Return the ``tf.Variable`` of a Keras variable, and a ``tf.Variable`` as it is."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def distinct(variables: Iterable[Any]) -> list[Any]:
    """Return the ``tf.Variable``s of all, each once, in order."""
    return list({id(one): one for one in map(plain, variables)}.values())


def of_model(model: Any) -> list[Any]:
    """Return all variables of a model: weights, statistics, seeds, and ones that Keras overlooks.

    Keras tracks its own variables alone; a ``tf.Variable`` may be an attribute of a layer.
    """
    attributes: list[Any] = []
    for layer in model._flatten_layers():
        for value in vars(layer).values():
            attributes += value if isinstance(value, list | tuple) else [value]
    overlooked = [value for value in attributes if isinstance(value, tf.Variable)]
    return distinct([*model.variables, *overlooked])


def take(variables: Iterable[Any]) -> Snapshot:
    """Copy variables and the random state of Python and NumPy."""
    values = tuple((variable, tf.identity(variable)) for variable in variables)
    return Snapshot(values, random.getstate(), np.random.get_state())


def put_back(snapshot: Snapshot, variables: Iterable[Any]) -> None:
    """Give every variable its value of then.

    Raises LaunchError where one of ``variables`` was not known when the snapshot was taken.
    """
    known = {id(variable) for variable, _ in snapshot.values}
    new = [variable.name for variable in variables if id(variable) not in known]
    if new:
        raise LaunchError(
            f"{', '.join(new)}: made after the state was copied, so it cannot be put back; let the "
            "model make all its variables when it is built"
        )
    for variable, value in snapshot.values:
        variable.assign(value)
    random.setstate(snapshot.python)
    np.random.set_state(snapshot.numpy)
