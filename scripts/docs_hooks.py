"""What the site's build adds: parts made from the program itself, and a look at what the pages would load.

A line `<!-- made: NAME -->` in a page is replaced by what NAME makes of the installed redrive, so it is never stale.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import msgspec

from redrive import errors, presets
from redrive.config import SETTINGS, VARIABLES, sources
from redrive.duration import show
from redrive.program.main import COMMANDS, cli
from redrive.store import Store

_MADE = re.compile(r"^<!-- made: (\w+) -->$", re.MULTILINE)
_WIDTH: dict[str, Any] = {"max_content_width": 80, "terminal_width": 80, "help_option_names": ["-h", "--help"]}
_LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
_BOOSTS = {  # many pages have their words; these are about them
    "howto/dead-letters.md": 4,
    "migrate/celery.md": 4,
    "howto/cancel.md": 2,
    "howto/control-room.md": 2,
    "howto/long-work.md": 2,
    "runbooks/worker-stuck.md": 2,
}
_ENGINES = ("sqlite", "postgres", "redis", "sqs", "memory")
_NAV: list[Any] = []  # of this build
_FIRST_SENTENCES: dict[str, str] = {}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    made = _MADE.sub(lambda found: "\n".join(_MAKERS[found[1]]()), markdown)
    _FIRST_SENTENCES[page.file.src_uri] = first_sentence(made)
    if page.file.src_uri in _BOOSTS:
        page.meta["search"] = {"boost": _BOOSTS[page.file.src_uri]}
    return made


def on_page_content(html: str, **_: Any) -> str:
    """A `|` within code in a table: GitHub wants it escaped, Python-Markdown would show the backslash."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)


def on_post_build(config: Any) -> None:
    """Write llms.txt. Raise if a page would fetch anything from elsewhere when it is read."""
    Path(config.site_dir, "llms.txt").write_text("\n".join(llms_txt(config)) + "\n", encoding="utf-8")
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        loads = _Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        if loads.foreign:
            raise ValueError(f"{page.relative_to(config.site_dir)} loads from elsewhere: {', '.join(loads.foreign)}")


def on_nav(nav: Any, **_: Any) -> None:
    _NAV[:] = nav.items


def llms_txt(config: Any) -> Iterator[str]:
    """The site for language models, as llmstxt.org has it: a line for each page, in the order of the navigation."""
    yield f"# {config.site_name}\n\n> {config.site_description}\n"
    for tab in _NAV:
        yield f"## {tab.title}\n"
        yield from (f"- [{page.title}]({page.url}): {_FIRST_SENTENCES[page.file.src_uri]}" for page in _pages(tab))
        yield ""


def _pages(item: Any) -> Iterator[Any]:
    if item.is_page:
        yield item
    for child in item.children or ():
        yield from _pages(child)


def first_sentence(markdown: str) -> str:
    """The first sentence below a page's title, without its links and its emphasis."""
    prose = re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    paragraphs = (" ".join(each.split()) for each in prose.split("\n\n"))
    plain = next((each for each in paragraphs if each[:1].isalpha() or each[:1] in "[`*"), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain).replace("**", "")
    return re.split(r"(?<=[.:]) (?=[A-Z])", plain)[0].rstrip(":")


class _Loads(HTMLParser):
    """Collects what a page loads by itself from another host; links to follow are none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get(_LOADS.get(tag, "")) or ""
        followed = tag == "link" and given.get("rel") in ("canonical", "prev", "next", "alternate")
        if re.match(r"(https?:)?//", address) and not followed:
            self.foreign.append(address)


def command_line() -> Iterator[str]:
    """Every command with its help, as `--help` prints it."""
    context = click.Context(cli, info_name="redrive", **_WIDTH)
    yield from _help("redrive", cli, context)
    for section, names in COMMANDS.items():
        yield f"\n## {section}\n"
        for name in names:
            yield from _commands(name, cli.get_command(context, name), context)


def _commands(name: str, command: click.Command | None, parent: click.Context) -> Iterator[str]:
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent, **_WIDTH)
    yield f"\n### `{context.command_path}` {{ #{context.command_path.replace(' ', '-')} }}\n"
    yield from _help(context.command_path, command, context)
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            yield from _commands(sub, command.get_command(context, sub), context)


def _help(path: str, command: click.Command, context: click.Context) -> Iterator[str]:
    yield f'```text title="{path} --help"\n{command.get_help(context)}\n```'


def settings_table() -> Iterator[str]:
    """Every setting: its key in a file, its variable, its flag, its default and what it takes."""
    yield "| key | variable | default | takes |\n|---|---|---|---|"
    defaults = {sourced.name: sourced.value for sourced in sources() if sourced.source == "default"}
    for name, setting in SETTINGS.items():
        default = "–" if defaults.get(name) in (None, "") else f"`{_written(defaults[name])}`"
        yield f"| `{name}` | `{VARIABLES[name]}` | {default} | {setting.expected} |"


def _written(value: object) -> str:
    return msgspec.json.encode(value).decode()


def error_tree() -> Iterator[str]:
    """The tree as it is drawn where the errors are defined."""
    drawn = inspect.getdoc(errors) or ""
    yield f"```text\n{drawn.partition(chr(10) * 2)[2]}\n```"


def preset_table() -> Iterator[str]:
    """The presets' numbers."""
    yield "| preset | attempts | ends after | backoff | for some kinds |\n|---|---|---|---|---|"
    for name, retry in presets.items():
        ends = "–" if retry.max_elapsed is None else show(retry.max_elapsed)
        special = "; ".join(f"{kind}: {_backoff(entry)}" for kind, entry in retry.on.items())
        yield f"| `{name}` | {retry.max_attempts} | {ends} | {_backoff(retry.backoff)} | {special or '–'} |"


def _backoff(entry: Any) -> str:
    jitter = entry.jitter if entry.jitter in ("none", "full", "equal") else f"{entry.jitter} {entry.share:.0%}"
    if entry.factor == 1:
        return f"{show(entry.base)} each time, jitter {jitter}"
    return f"{show(entry.base)} × {entry.factor:g}ⁿ up to {show(entry.cap)}, jitter {jitter}"


def dependency_table() -> Iterator[str]:
    """What redrive and its extras need: the lowest version allowed, and the one that the tests ran with."""
    root = Path(__file__).parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    tested = dict(line.lower().split("==") for line in (root / "constraints.txt").read_text().split() if "==" in line)
    yield "| package | for | at least | tested with |"
    yield "|---|---|---|---|"
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra, requirements in groups.items():
        if extra in ("dev", "docs", "all"):
            continue
        for requirement in requirements:
            found = re.match(r"([\w.-]+)(?:\[[^\]]*\])?>=([\d.]+)", requirement)
            assert found is not None, requirement
            name, least = found.groups()
            used = f"`redrive[{extra}]`" if extra else "redrive"
            yield f"| {name} | {used} | {least} | {tested.get(name.lower(), '–')} |"


def http_pages() -> Iterator[str]:
    """Every page of the control room. Imported late: the other pages of the docs need no web packages."""
    yield from _http_api().pages()


def http_actions() -> Iterator[str]:
    """Every action of the control room."""
    yield from _http_api().actions()


def _http_api() -> Any:
    path = Path(__file__).parent / "http_api.py"
    spec = importlib.util.spec_from_file_location("http_api", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def engine_table() -> Iterator[str]:
    """For each method of the store protocol, the module in which each engine defines it."""
    engines = {name: importlib.import_module(f"redrive.stores.{name}.store") for name in _ENGINES}
    classes = {name: getattr(module, f"{name.capitalize()}Store") for name, module in engines.items()}
    yield f"| method | {' | '.join(engines)} |"
    yield "|---" * (len(engines) + 1) + "|"
    parts = [part for part in Store.__mro__ if part.__module__.startswith("redrive.store.")]
    methods = [name for part in parts for name, each in vars(part).items() if _is_method(name, each)]
    for method in dict.fromkeys(methods):
        homes = [_home_of(each, method) for each in classes.values()]
        yield f"| `{method}` | {' | '.join(homes)} |"


def _is_method(name: str, value: object) -> bool:
    return not name.startswith("_") and inspect.isfunction(value)


def _home_of(engine: type[Any], method: str) -> str:
    """The path of the module below `stores`; empty where the protocol's own default serves."""
    home = next(part.__module__ for part in engine.__mro__ if method in vars(part))
    if not home.startswith("redrive.stores."):
        return ""
    return f"`{home.removeprefix('redrive.stores.').replace('.', '/')}.py`"


_MAKERS = {
    "engines": engine_table,
    "http_pages": http_pages,
    "http_actions": http_actions,
    "dependencies": dependency_table,
    "command_line": command_line,
    "settings": settings_table,
    "errors": error_tree,
    "presets": preset_table,
}
