"""The notebooks of the documentation run, and print what they are committed with."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ci"))

notebooks = pytest.importorskip("notebooks", reason="nbclient is not installed")


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_small_and_name_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert '"output_type"' in text
    assert len(text) < 200_000
    assert re.findall(r"/(?:home|root|tmp|Users|work|var)/[\w/]*", text) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_print_what_they_are_committed_with(path: Path) -> None:
    assert notebooks.differences(path) == []


def test_what_is_printed_may_come_in_pieces() -> None:
    def printing(*pieces: str) -> dict[str, object]:
        outputs = [{"output_type": "stream", "text": piece} for piece in pieces]
        return {"cells": [{"outputs": outputs}]}

    assert notebooks.texts(printing("a\nb", "\nc ", "3\n")) == ["a", "b", "c #"]
