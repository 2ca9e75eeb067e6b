"""Show the notebooks in docs/ as pages of the site: a hook of MkDocs (see mkdocs.yml).

They are shown as they are committed, with their outputs; ``ci/notebooks.py`` runs them.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Put a page in the place of each notebook."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        assert file.abs_src_path is not None
        notebook = json.loads(Path(file.abs_src_path).read_text(encoding="utf-8"))
        name = file.src_uri.removesuffix(".ipynb") + ".md"
        files.remove(file)
        files.append(File.generated(config, name, content=as_markdown(notebook)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to notebooks, which are right in the repository, lead to their pages."""
    return re.sub(r"\]\(([\w-]+)\.ipynb\)", r"](\1.md)", markdown)


def as_markdown(notebook: dict[str, Any]) -> str:
    """Return the cells of a notebook, and what they print, as one page."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [_shown(output) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
    if "image/png" in data:
        return f'<img alt="" src="data:image/png;base64,{data["image/png"].strip()}">'
    if "\n" not in data.get("text/html", "\n"):  # a blank line would end it in Markdown
        return f'<div class="output">{data["text/html"]}</div>'
    text = data.get("text/plain", "".join(output.get("text", "")))
    return f'<pre class="output">{escape(text.strip()).replace(chr(10), "&#10;")}</pre>'
