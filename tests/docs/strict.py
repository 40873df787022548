"""Check the Python of README.md and all pages with pyright, strict: `python -m tests.docs.strict [PAGE]...`.

What a page shows must pass the type checker of those who type it. The blocks of a page go into a folder of its own: one
with a file's name under that name, the others one after another into a module, since they share a namespace. It prints
what is wrong by page and line, and then exits with 1. ACCEPTED lists what is wrong and stays, with the reason.
"""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.docs.pages import ROOT, Block, blocks, pages

# Rules about how a page is cut into blocks, not about types: a later block shows another version of a function, or the
# value of an expression, or a function that nothing calls.
OF_FORM = (
    "reportMissingModuleSource",
    "reportDeprecated",
    "reportRedeclaration",
    "reportUnusedClass",
    "reportUnusedCoroutine",
    "reportUnusedExpression",
    "reportUnusedFunction",
    "reportUnusedImport",
    "reportUnusedVariable",
)
# What follows from a package without types, in a module that imports one, or from fixtures, in a module of tests.
UNTYPED = (
    "a2wsgi",
    "authlib",
    "aws_cdk",
    "boto3",
    "bullmq",
    "celery",
    "consumer",
    "django",
    "dramatiq",
    "fastapi.testclient",
    "resizer",
    "rq",
    "sentry_sdk",
)
OF_UNTYPED = re.compile(
    r"report((Unknown|Untyped|Missing|AttributeAccess|FunctionMemberAccess|TypedDict|Match)\w*|ArgumentType|CallIssue)"
)
# Pages that are not checked, and findings that stay, by a part of their text, with the reason.
LEFT_OUT: Mapping[str, str] = {
    "docs/reference/policy-rules.md": "each block is a fragment that declares what one rule refuses",
}
ACCEPTED: Mapping[str, str] = {
    'is not a known attribute of "None"': "a page looks up what it has just enqueued; a program asks if it is there",
    'Type of parameter "error" is unknown': "pyright gives up on a lambda in the options of an overloaded decorator",
    "errors.md:": "the page shows the errors of wrong calls",
    '"list[dict[str, str]]" cannot be assigned to parameter "lines"': "the page shows that it is refused",
}


class Finding(NamedTuple):
    page: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text} ({self.rule})"


class Module(NamedTuple):
    """A module made of blocks. `lines`: for each of its lines, the line of the page."""

    file: Path
    text: str
    lines: tuple[int, ...]

    @property
    def is_loose(self) -> bool:
        """True if it is a module of tests, or imports a package that has no types."""
        imports = rf"^\s*(?:from|import) (?:{'|'.join(map(re.escape, UNTYPED))})\b"
        return self.file.name.startswith("test_") or re.search(imports, self.text, re.MULTILINE) is not None


def modules(page: str) -> Iterator[Module]:
    """The modules that a page's blocks are; of a file that it shows twice the last one has the name."""
    loose: list[tuple[str, int]] = []
    named: Counter[str] = Counter()
    for block in reversed([block for block in blocks(page) if block.language == "python"]):
        code = list(_code(block))
        if block.file is None:
            loose[:0] = code
            continue
        path = Path(block.file)
        again = named[block.file]
        named[block.file] += 1
        yield _module(path if not again else path.with_stem(f"{path.stem}_before_{again}"), code)
    if loose:
        yield _module(Path("page_blocks.py"), loose)


def _module(file: Path, code: Sequence[tuple[str, int]]) -> Module:
    return Module(file, "".join(text + "\n" for text, _ in code), tuple(line for _, line in code))


def _code(block: Block) -> Iterator[tuple[str, int]]:
    """The lines of a block with their lines on the page; of a session those that are typed."""
    if block.text.lstrip().startswith(">>>"):
        for example in doctest.DocTestParser().get_examples(block.text):
            for number, text in enumerate(example.source.splitlines()):
                yield text, block.line + 1 + example.lineno + number
    else:
        for number, text in enumerate(block.text.splitlines()):
            yield text, block.line + 1 + number


def findings(asked: Sequence[str]) -> list[Finding]:
    """What pyright says of these pages, in the order of the pages."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        places: dict[Path, tuple[str, Module]] = {}
        for page in asked:
            for module in modules(page):
                path = root / re.sub(r"\W", "_", page) / module.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(module.text, encoding="utf-8")
                places[path] = (page, module)
        (root / "pyrightconfig.json").write_text(json.dumps(_config(root)))
        said = _pyright(root)
    found = ((places[Path(one["file"])], one) for one in said)
    return sorted(
        _finding(one, page, module)
        for (page, module), one in found
        if not (module.is_loose and OF_UNTYPED.fullmatch(one.get("rule", "")))
    )


def _config(root: Path) -> dict[str, Any]:
    folders = sorted(path.name for path in root.iterdir() if path.is_dir())
    return {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "executionEnvironments": [{"root": name, "extraPaths": [str(ROOT / "src")]} for name in folders],
        **dict.fromkeys(OF_FORM, False),
    }


def _pyright(root: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", str(root)]
    done = subprocess.run(command, capture_output=True, text=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["generalDiagnostics"]
    return [one for one in found if one["severity"] == "error"]


def _finding(one: Mapping[str, Any], page: str, module: Module) -> Finding:
    line = module.lines[one["range"]["start"]["line"]]
    return Finding(page, line, one.get("rule", "syntax"), " ".join(one["message"].split()))


def main() -> int:
    found = findings(sys.argv[1:] or [page for page in pages() if page not in LEFT_OUT])
    wrong = [one for one in found if not any(part in str(one) for part in ACCEPTED)]
    for one in wrong:
        print(one)
    return min(1, len(wrong))


if __name__ == "__main__":
    sys.exit(main())
