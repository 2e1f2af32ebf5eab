"""Plain values as JSON: the only values that may cross between untrusted code and its judges.

None, bool, float, str and small int stand for themselves; all other values are `[tag, ...]`. A subclass of a plain type
crosses as that type, read through the base class, so that its own `__eq__` stays behind. Decoding is safe on hostile
input: only the types below are built. No class is looked up by name except builtins and the classes that the caller
gives.
"""

import builtins
import datetime
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

MAX_DEPTH = 100
MAX_NODES = 100_000  # of a linked list or tree
_LINKS = {"ListNode": ("next",), "TreeNode": ("left", "right")}
_SMALL = 1 << 53
_ARRAYS = "biufcU"  # kinds of numbers and text
_SEQUENCES = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset", deque: "deque"}
_MAPPINGS = {dict: "dict", OrderedDict: "ordered", Counter: "counter", defaultdict: "default"}
_BUILDERS = {tag: kind for kinds in (_SEQUENCES, _MAPPINGS) for kind, tag in kinds.items()}
_ATOMS: dict[type, tuple[str, Callable, Callable]] = {  # tag, function to a value's parts, function back
    bytes: ("bytes", lambda value: [value.decode("latin-1")], lambda text: text.encode("latin-1")),
    bytearray: ("bytearray", lambda value: [value.decode("latin-1")], lambda text: bytearray(text.encode("latin-1"))),
    complex: ("complex", lambda value: [value.real, value.imag], lambda real, imag: complex(float(real), float(imag))),
    Decimal: ("decimal", lambda value: [str(value)], Decimal),
    Fraction: (
        "fraction",
        lambda value: [hex(value.numerator), hex(value.denominator)],
        lambda top, bottom: Fraction(int(top, 16), int(bottom, 16)),
    ),
    datetime.timedelta: (
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda *parts: datetime.timedelta(*map(int, parts)),
    ),
    **{
        kind: (kind.__name__, lambda value: [value.isoformat()], kind.fromisoformat)
        for kind in (datetime.datetime, datetime.date, datetime.time)
    },
}
_ATOM_BUILDERS = {"int": lambda digits: int(digits, 16)} | {tag: build for tag, _, build in _ATOMS.values()}
_TYPES = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type)}


class NotPlainError(TypeError):
    """The value holds something that may not cross."""


def encode(value: object, refer: Callable[[object], int] | None = None, depth: int = 0) -> object:
    """Return a value as `json.dumps` takes it. `refer` keeps an object that is not plain, and returns its number.

    Raises NotPlainError: the value is not plain and there is no `refer`, or it is nested too deeply or in a circle.
    """
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if depth > MAX_DEPTH:
        raise NotPlainError(f"a value must be nested at most {MAX_DEPTH} deep")
    if kind is int:
        return value if -_SMALL < value < _SMALL else ["int", hex(value)]

    def inner(item: object) -> object:
        return encode(item, refer, depth + 1)

    if kind in _SEQUENCES:
        return [_SEQUENCES[kind], [inner(item) for item in value]]
    if kind in _MAPPINGS:
        factory = _builtin_name(value.default_factory) if kind is defaultdict else None
        return [_MAPPINGS[kind], [[inner(key), inner(item)] for key, item in dict.items(value)], factory]
    if kind in _ATOMS:
        tag, parts_of, _ = _ATOMS[kind]
        return [tag, *parts_of(value)]
    if kind is range or kind is slice:
        return [kind.__name__, *(encode(part, depth=MAX_DEPTH) for part in (value.start, value.stop, value.step))]
    if name := _builtin_name(value):
        return ["type", name]
    if kind.__name__ in _LINKS:
        return _encode_nodes(value, kind.__name__, inner)
    numpy = sys.modules.get("numpy")
    if numpy and issubclass(kind, numpy.generic) and value.dtype.kind in _ARRAYS:
        return inner(numpy.generic.item(value))
    if numpy and issubclass(kind, numpy.ndarray) and value.dtype.kind in _ARRAYS:
        return ["array", inner(numpy.ndarray.tolist(value))]
    if (base := _as_base(value, kind)) is not None:
        return inner(base)
    if refer is None:
        raise NotPlainError(f"an object of class {kind.__name__} is not a plain value")
    return ["handle", refer(value), kind.__name__[:100]]


def decode(
    message: object,
    handle: Callable[[int, str], object] | None = None,
    classes: dict[str, type] | None = None,
    depth: int = 0,
) -> object:
    """Return the value that was encoded.

    Args:
        handle: makes an object that stands for object number n of a named class; without `handle`, handles are refused.
        classes: ListNode and TreeNode, if they may come.

    Raises ValueError: not an encoded value.
    """
    if message is None or type(message) in (bool, float, str, int):
        return message
    if depth > MAX_DEPTH or type(message) is not list or not message:
        raise ValueError("not an encoded value")

    def inner(item: object) -> object:
        return decode(item, handle, classes, depth + 1)

    tag, *rest = message
    try:
        if tag == "handle" and handle is not None:
            return handle(int(rest[0]), str(rest[1]))
        if classes and tag in classes:
            return _decode_nodes(classes[tag], _LINKS[tag], rest[0], inner)
        if tag == "array":
            import numpy

            array = numpy.array(inner(rest[0]))
            if array.dtype.kind not in _ARRAYS:
                raise ValueError("not an encoded value: arrays hold numbers or text")
            return array
        if tag in _ATOM_BUILDERS:
            return _ATOM_BUILDERS[tag](*rest)
        if tag in ("range", "slice"):
            return _TYPES[tag](*(inner(part) for part in rest))
        if tag == "type":
            return _TYPES[rest[0]]
        if tag in _MAPPINGS.values():
            items = {inner(key): inner(item) for key, item in rest[0]}
            return defaultdict(_TYPES.get(rest[1]), items) if tag == "default" else _BUILDERS[tag](items)
        return _BUILDERS[tag](inner(item) for item in rest[0])
    except ValueError:
        raise
    except (TypeError, AttributeError, LookupError, ArithmeticError, ImportError, RecursionError) as error:
        raise ValueError(f"not an encoded value: {error!r}"[:200]) from error


def _builtin_name(value: object) -> str | None:
    return value.__name__ if type(value) is type and _TYPES.get(value.__name__) is value else None


def _as_base(value: object, kind: type) -> object:
    """Return a value of a subclass (a named tuple, an IntEnum, a class with `__eq__`) as its plain base type."""
    for base in (int, float, str):
        if issubclass(kind, base):
            return base.__new__(base, getattr(base, f"__{base.__name__}__")(value))
    for base in (tuple, list, set, frozenset, deque):
        if issubclass(kind, base):
            return base(base.__iter__(value))
    return dict(dict.items(value)) if issubclass(kind, dict) else None


def _encode_nodes(root: object, tag: str, inner: Callable[[object], object]) -> list:
    """Return a linked list or tree as its nodes in preorder, each with its value and which links follow."""
    nodes, seen, stack = [], set(), [root]
    while stack:
        node = stack.pop()
        if id(node) in seen or len(seen) >= MAX_NODES:
            raise NotPlainError(f"the nodes of a {tag} must end")
        seen.add(id(node))
        linked = [getattr(node, link) for link in _LINKS[tag]]
        nodes.append([inner(node.val), *(other is not None for other in linked)])
        stack += [other for other in reversed(linked) if other is not None]
    return [tag, nodes]


def _decode_nodes(kind: type, links: tuple[str, ...], nodes: list, inner: Callable[[object], object]) -> object:
    root, places = None, []
    for value, *follows in nodes:
        node = kind(inner(value))
        if root is None:
            root = node
        else:
            setattr(*places.pop(), node)
        places += [(node, link) for link, there in reversed([*zip(links, follows, strict=True)]) if there]
    if places:
        raise ValueError("not an encoded value: nodes are missing")
    return root
