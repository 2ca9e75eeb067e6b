"""The documentation site builds without a warning, stands alone, and has every public name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nczarr_fsspec
import nczarr_xarray

ROOT = Path(__file__).parents[2]
#: What a browser fetches by itself to show a page.
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc="([^"]+)|<link\b[^>]*?\bhref="([^"]+)"""
    r"""|url\(["']?([^"')]+)"""
)


def test_every_public_name_has_its_place_in_the_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^::: nczarr_\w+\.(\w+)$", page, re.MULTILINE))
    assert named == {*nczarr_xarray.__all__, *nczarr_fsspec.__all__}


def test_the_pages_are_few_and_short() -> None:
    """Five groups of at most eight pages, and 45,000 words in all."""
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    groups = re.split(r"^  - .+:\n", menu, flags=re.MULTILINE)[1:]
    assert len(groups) == 5
    assert max(group.count(".md\n") for group in groups) <= 8
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 45_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, which are built here only: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return folder


@pytest.mark.slow
def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    fetched = {
        next(filter(None, found))
        for page in pages
        for found in _FETCHED.findall(page.read_text(encoding="utf-8"))
    }
    assert any(link.endswith(".css") for link in fetched)
    assert [link for link in fetched if "//" in link and not link.startswith("data:")] == []


@pytest.mark.slow
def test_the_reference_has_parameters_with_their_meaning(site: Path) -> None:
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    for name in ("append_dim", "use_zarr_fill_value_as_mask", "max_object_size"):
        assert f"<code>{name}</code>" in page
