"""Tests the table of activations with the formulas of model.proto and with numbers of PyTorch; test_row_operators.py
tests it with torch itself."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxserve import wire
from voxserve.activations import ACTIVATIONS, OF_TORCH

ROOT = Path(__file__).resolve().parents[3]
PROTO = (ROOT / "proto/voxserve/model/v1/model.proto").read_text(encoding="utf-8")
OPERATORS = (ROOT / "client/python/OPERATORS.md").read_text(encoding="utf-8")

# The names and operators that a formula may have.
NAMES: dict[str, Any] = {
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "min": np.minimum,
    "max": np.maximum,
    "pow": np.power,
    "pi": math.pi,
    "__builtins__": {},
}
PARAMETERS = {"negative_slope": 0.125, "alpha": 1.5, "beta": 0.5, "minimum": -1.25, "maximum": 6.0, "exponent": 1.5}


def of(name: str) -> dict[str, float]:
    """Returns values for the parameters of a function."""
    return {key: PARAMETERS[key] for key in list(inspect.signature(ACTIVATIONS[name].compute).parameters)[1:]
            if key in PARAMETERS}  # fmt: skip


def test_the_table_has_the_functions_of_the_format() -> None:
    values = wire.message_class("voxserve.model.v1.Activation").DESCRIPTOR.enum_types_by_name["Function"].values
    assert [f"FUNCTION_{name}" for name in ACTIVATIONS] == [value.name for value in values][1:]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_function_is_its_formula(name: str) -> None:
    found = re.search(rf" FUNCTION_{name} = \d+; +// ([^;\n]+)", PROTO)
    assert found
    x = np.concatenate([np.linspace(-8, 8, 161), [-30.0, 30.0]])
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = eval(found[1], {**NAMES, **of(name), "x": x})
        values = ACTIVATIONS[name].compute(x, **of(name))
    np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "x", "value"),
    [
        ("RELU", -1.5, 0),
        ("LEAKY_RELU", -1.5, -0.1875),
        ("SIGMOID", -1.5, 0.182425524),
        ("GELU", -1.5, -0.100210802),
        ("SILU", -1.5, -0.273638286),
        ("TANH", -1.5, -0.905148254),
        ("ELU", -1.5, -1.16530476),
        ("CLAMP", -1.5, -1.25),
        ("CLAMP", 7, 6),
        ("HARD_SIGMOID", -1.5, 0.25),
        ("HARD_SWISH", -1.5, -0.375),
        ("SOFTPLUS", -1.5, 0.773742012),
        ("MISH", -1.5, -0.298099742),
        ("GELU_TANH", -1.5, -0.100428423),
        ("EXP", -1.5, 0.22313016),
        ("LOG", 1.5, 0.405465108),
        ("SQUARE", -1.5, 2.25),
        ("SQRT", 1.5, 1.224744871),
        ("ABS", -1.5, 1.5),
        ("POWER", 1.5, 1.837117307),
    ],
)
def test_a_function_has_pytorchs_numbers(name: str, x: float, value: float) -> None:
    assert ACTIVATIONS[name].compute(np.array([x]), **of(name)) == pytest.approx(value, abs=1e-8)


def test_parameters_have_the_defaults_of_the_format() -> None:
    x = np.array([-1.5, 7])
    for name, parameters in {
        "LEAKY_RELU": {"negative_slope": 0.01},
        "ELU": {"alpha": 1},
        "SOFTPLUS": {"beta": 1},
        "CLAMP": {"minimum": -math.inf, "maximum": math.inf},
    }.items():
        np.testing.assert_array_equal(ACTIVATIONS[name].compute(x), ACTIVATIONS[name].compute(x, **parameters))


def test_operators_md_has_the_table() -> None:
    section = OPERATORS.partition("## Activations\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    assert [name for name, _ in rows] == list(ACTIVATIONS)
    for name, torch in rows:
        said = set(re.findall(r"`(\w+)`", torch))
        assert set(ACTIVATIONS[name].torch.split()) <= said, name
        assert not {key for key, function in OF_TORCH.items() if function != name} & said, name
