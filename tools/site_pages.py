"""A MkDocs hook: adds files outside of docs/ as pages, and rewrites links to them.

Pages of docs/ link to files such as `../CONTRIBUTING.md` and `../examples/ddp.py`, as a repository browser needs it. On
the site these links lead to pages that are made here. A link to anything else outside of docs/ becomes plain text.
"""

from __future__ import annotations

import ast
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SHOWN = {
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "report-a-vulnerability.md",
    "bench/zoo/README.md": "zoo.md",
}
"""Files of the project that are pages of the site."""
EXAMPLES = "examples.md"
RELEASES = "<!-- towncrier release notes start -->\n"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from files outside of docs/."""
    from mkdocs.structure.files import File

    for source, page in SHOWN.items():
        text = (ROOT / source).read_text(encoding="utf8")
        files.append(File.generated(config, page, content=text.replace(RELEASES, RELEASES + unreleased())))
    files.append(File.generated(config, EXAMPLES, content=examples_page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite links to the site's pages."""
    origin = next((source for source, name in SHOWN.items() if name == page.file.src_uri), f"docs/{page.file.src_uri}")
    known = {file.src_uri for file in files}
    pieces, end = [], 0
    for fence in FENCE.finditer(markdown):
        pieces += [_relinked(markdown[end : fence.start()], origin, known), fence[0]]
        end = fence.end()
    return "".join([*pieces, _relinked(markdown[end:], origin, known)])


def _relinked(text: str, origin: str, known: set[str]) -> str:
    def replace(link: re.Match[str]) -> str:
        mark, words, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        path, _, anchor = target.partition("#")
        found = page_of(posixpath.normpath(posixpath.join(posixpath.dirname(origin), path)), anchor)
        if found is None or found.partition("#")[0] not in known:
            return words
        return f"{mark}[{words}]({found})"

    return LINK.sub(replace, text)


def page_of(path: str, anchor: str = "") -> str | None:
    """The page of the site, with its anchor, that shows a file of the project; None where there is none."""
    suffix = f"#{anchor}" if anchor else ""
    if path.startswith("docs/"):
        return path.removeprefix("docs/") + suffix
    if path == "README.md":
        return "install.md" if anchor == "install" else "index.md"
    if path == "examples":
        return EXAMPLES
    if path.startswith("examples/") and path.endswith(".py"):
        return f"{EXAMPLES}#{Path(path).name.replace('.', '')}"
    return SHOWN[path] + suffix if path in SHOWN else None


def unreleased() -> str:
    """Return the unreleased changes from the fragments in changes/."""
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "Unreleased"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    _, heading, text = done.stdout.partition("## Unreleased")
    return f"\n{heading}\n{text.partition(chr(10))[2]}" if heading else ""


def examples_page() -> str:
    """Return a page with every program of examples/."""
    lines = ["# Examples\n", "Programs of less than 60 lines, from the folder `examples` of the sources.\n"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text(encoding="utf8")
        summary = (ast.get_docstring(ast.parse(source)) or "").strip()
        lines += [f"## {path.name}\n", f"{summary}\n", f"```py\n{source.rstrip()}\n```\n"]
    return "\n".join(lines)
