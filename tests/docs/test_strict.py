"""The check of the pages' Python finds what is wrong, at its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.strict import Module, findings, modules

PAGE = """# A page

```python
# tasks.py
from redrive import App, Idempotency

app = App("memory://")


@app.task(name="charge", idempotency=Idempotency(key=lambda order, cents: f"{order}"))
def charge(order: str, cents: int) -> None: ...
```

```python
>>> 1 + 1
2
>>> ref = 3
```

```python
from tasks import charge

charge.enqueue("A-1", "much")
```
"""


@pytest.fixture
def page(tmp_path: Path) -> str:
    (path := tmp_path / "page.md").write_text(PAGE)
    return str(path)


def test_the_blocks_of_a_page_are_modules_that_know_their_lines(page: str) -> None:
    loose, named = sorted(modules(page))
    assert loose == Module(
        Path("page_blocks.py"),
        '1 + 1\nref = 3\nfrom tasks import charge\n\ncharge.enqueue("A-1", "much")\n',
        (15, 17, 21, 22, 23),
    )
    assert named.file == Path("tasks.py") and named.lines[0] == 4


@pytest.mark.slow
def test_a_wrong_argument_on_a_page_is_found_and_a_lambda_is_typed(page: str) -> None:
    (found,) = findings([page])
    assert (found.line, found.rule) == (23, "reportArgumentType") and '"cents"' in found.text
