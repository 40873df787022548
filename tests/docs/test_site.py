"""What the hooks of the site's build do to a page."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def test_code_in_a_table_is_shown_as_it_is_to_be_copied() -> None:
    path = Path(__file__).parents[2] / "scripts/docs_hooks.py"
    spec = importlib.util.spec_from_file_location("docs_hooks", path)
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    made = r'<p>a\|b</p><td><code>x=~"r\|i"</code></td><td><code>\d</code></td>'
    assert hooks.on_page_content(made) == r'<p>a\|b</p><td><code>x=~"r|i"</code></td><td><code>\d</code></td>'
