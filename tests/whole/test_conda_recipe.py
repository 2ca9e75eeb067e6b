"""The recipe for conda says what ``pyproject.toml`` says."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import nczarr_xarray

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    text = (ROOT / "ci" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: dict[str, Any] = tomllib.load(file)["project"]
    return found


def bounds(requirements: list[str]) -> dict[str, str]:
    """The lower bound of each package; markers of platforms left out."""
    pairs = (one.partition(";")[0].partition(">=") for one in requirements)
    return {name.strip(): bound.strip() for name, _, bound in pairs}


def test_version(recipe: dict[str, Any]) -> None:
    assert recipe["context"]["version"] == nczarr_xarray.__version__


def test_requirements(recipe: dict[str, Any], project: dict[str, Any]) -> None:
    wanted = bounds(project["dependencies"])
    wanted["python"] = project["requires-python"].removeprefix(">=")
    assert bounds(recipe["requirements"]["run"]) == wanted


def test_commands(recipe: dict[str, Any], project: dict[str, Any]) -> None:
    points = [f"{name} = {where}" for name, where in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == points
    assert recipe["about"]["license"] == project["license"]
    assert recipe["about"]["summary"] == project["description"]
