"""Reads the docstrings under the fields of a class, which Python itself discards."""

from __future__ import annotations

import ast
import functools
import inspect
import sys


def field_docs(owner: type[object]) -> dict[str, str]:
    """Return the docstring under each field of a class and of its bases in the same file, each on one line."""
    classes = _classes(owner.__module__)
    found: dict[str, str] = {}
    waiting = [owner.__name__]
    while waiting:
        node = classes.get(waiting.pop())
        if node is not None:
            found = _docs(node) | found
            waiting += [ast.unparse(base) for base in node.bases]
    return found


@functools.cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _docs(node: ast.ClassDef) -> dict[str, str]:
    docs: dict[str, str] = {}
    for statement, following in zip(node.body, node.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            docs[ast.unparse(statement.target)] = " ".join(str(ast.literal_eval(following.value)).split())
    return docs
