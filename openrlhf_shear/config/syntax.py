"""Python source without what does not run: comments, docstrings and line breaks."""

import ast

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_SPELLING = {"kind", "type_comment"}  # u"..." and "# type: ..."


def canonical(node: object, without: frozenset[str] = frozenset()) -> object:
    """Return the code of a syntax tree as nested lists, which are equal under every Python version.

    Args:
        without: fields of the tree to leave out too, e.g. "annotation".
    """
    if isinstance(node, list):
        return [canonical(item, without) for item in node]
    if not isinstance(node, ast.AST):
        return node
    fields = {
        name: value
        for name, value in ast.iter_fields(node)
        if name not in _SPELLING | without and value not in (None, [])
    }
    if isinstance(node, _Documented) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    if isinstance(node, ast.JoinedStr):  # Python 3.12.1 adds empty texts to f-strings
        fields["values"] = [part for part in node.values if not (isinstance(part, ast.Constant) and part.value == "")]
    return [type(node).__name__, *((name, canonical(value, without)) for name, value in fields.items())]
