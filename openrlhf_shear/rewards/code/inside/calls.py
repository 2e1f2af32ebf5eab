"""Calls from the judge to a response in another jail: plain values cross as values, other objects stay as handles.

The judge never compares an object of the response. A handle in `==`, `<`, `in` or `hash` fails the test. So does a
handle that answers the same question in two ways although nothing has been called or set in between. Arguments are
copies, unless the call is made through `in_place`.
"""

import builtins
import contextlib
import operator
from collections.abc import Callable, Iterator
from itertools import islice

import plain
import wire

MAX_MESSAGE = 16 << 20  # bytes
MAX_ITEMS = 100_000  # of an object of the response, when it is iterated
_MUTABLE = (list, dict, set)
_CALLS = ("call", "call in place")
_CHANGES = (*_CALLS, "set attribute", "set item", "next")  # after these, an object may answer differently
_OPERATIONS = {
    "attribute": getattr,
    "set attribute": setattr,
    "item": operator.getitem,
    "set item": operator.setitem,
    "iterate": lambda value: _items(value),
    "next": next,
    "length": len,
    "truth": bool,
    "text": str,
}


class GoneError(BaseException):
    """The response ended, or says something that no honest runner would. No test can catch this as an Exception."""


class NotComparableError(TypeError):
    """A test compares an object that the response keeps; only plain values are compared."""


class Server:
    """The response's side."""

    def __init__(self, calls: int, replies: int) -> None:
        self._calls, self._replies = calls, replies
        self._objects: list[object] = []
        self._names: dict[str, object] = {}

    def serve(self, load: Callable[[], dict[str, object]]) -> None:
        """Give the judge the names that `load` defines, then answer its requests until it is gone."""

        def names() -> list[str]:
            self._names = load()
            return list(self._names)

        self._answer(names)
        while True:
            self._answer(self._perform, *wire.receive(self._calls))

    def _answer(self, work: Callable, *arguments: object) -> None:
        try:
            reply = {"value": work(*arguments)}
        except BaseException as error:  # SystemExit too: the judge is told
            reply = {"raised": type(error).__name__, "text": _text(error)}
        wire.send(self._replies, reply)

    def _perform(self, operation: str, on: object, arguments: list, named: dict) -> object:
        if operation == "global":
            return {"result": self._encode(self._names[on])}
        classes = {name: self._names[name] for name in ("ListNode", "TreeNode") if name in self._names}
        values = [plain.decode(argument, self._object, classes) for argument in arguments]
        target = self._objects[on]
        if operation not in _CALLS:
            return {"result": self._encode(_OPERATIONS[operation](target, *values))}
        keywords = {name: plain.decode(argument, self._object, classes) for name, argument in named.items()}
        result = self._encode(target(*values, **keywords))
        if operation == "call":
            return {"result": result}
        places, sent = [*range(len(values)), *named], [*arguments, *named.values()]
        changed = {
            place: now
            for place, value, before in zip(places, [*values, *keywords.values()], sent, strict=True)
            if type(value) in _MUTABLE and (now := self._encode(value)) != before
        }
        return {"result": result, "changed": changed}

    def _encode(self, value: object) -> object:
        def keep(thing: object) -> int:
            self._objects.append(thing)
            return len(self._objects) - 1

        return plain.encode(value, keep)

    def _object(self, number: int, _: str) -> object:
        return self._objects[number]


class Client:
    """The judge's side."""

    def __init__(self, calls: int, replies: int, classes: dict[str, type]) -> None:
        self._calls, self._replies, self._classes = calls, replies, classes
        # Answers since the last change, and their values, by question.
        self._answers: dict[str, tuple[str, object]] = {}
        self.gone: str | None = None  # reason of a GoneError, for a judge whose tests caught even that
        self.refused: str | None = None  # reason of a NotComparableError

    def _gone(self, why: str) -> GoneError:
        self.gone = why
        return GoneError(why)

    def refuse(self, why: str) -> NotComparableError:
        self.refused = why
        return NotComparableError(why)

    def names(self) -> list[str]:
        """Return the names that the response defines. Raises the exceptions of its code."""
        names = self._reply()
        if type(names) is not list or any(type(name) is not str for name in names):
            raise self._gone("it does not say what it defines")
        return names

    def ask(self, operation: str, on: object, arguments: tuple = (), named: dict | None = None) -> object:
        named = named or {}
        keywords = {name: _argument(value) for name, value in named.items()}
        request = [operation, on, list(map(_argument, arguments)), keywords]
        if operation in _CHANGES:
            self._answers.clear()
        try:
            wire.send(self._calls, request)
        except OSError as error:
            raise self._gone("it ended") from error
        reply = self._reply(ends=operation == "next")
        try:
            value = self._decode(reply["result"])
            changed = {place: self._decode(now) for place, now in dict(reply.get("changed", ())).items()}
        except (ValueError, TypeError, LookupError) as error:
            raise self._gone(str(error)) from error
        if operation == "call in place":
            _write_back({str(place): argument for place, argument in enumerate(arguments)} | named, changed)
        return value if operation in _CHANGES else self._consistent(operation, str(request), reply, value)

    def _consistent(self, operation: str, question: str, reply: object, value: object) -> object:
        """Return the value of an answer, which must be the same as before.

        Objects in it are then those of the earlier answer, as they may be made again each time. An iterator may have
        come to its end since.
        """
        answer = str(_without_numbers(reply))  # as text: 1 is not True, nan is nan
        before, first = self._answers.setdefault(question, (answer, value))
        if answer == before:
            return first if operation == "iterate" or type(first) is Handle else value
        if operation == "iterate" and reply == {"result": ["list", []]}:
            return value
        raise self.refuse(f"an object of the response answers the same question ({operation}) in two ways")

    def _reply(self, ends: bool = False) -> object:
        """Return the response's reply; `ends`: a StopIteration means that an iterator has no next item."""
        try:
            reply = wire.receive(self._replies, limit=MAX_MESSAGE)
        except (EOFError, OSError, ValueError) as error:
            raise self._gone(str(error)) from error
        if type(reply) is dict and "value" in reply:
            return reply["value"]
        if type(reply) is not dict or not {"raised", "text"} <= reply.keys():
            raise self._gone("it sends something other than a reply")
        raise _exception(str(reply["raised"]), str(reply["text"])[:1000], ends)

    def _decode(self, message: object) -> object:
        return plain.decode(message, lambda number, kind: Handle(self, number, kind), self._classes)


def in_place(function: Callable) -> Callable:
    """Return the function; a function of the response then changes the lists, dicts and sets that it is given."""
    if type(function) is not Handle:
        return function
    inner = vars(function)
    return lambda *arguments, **named: inner["_client"].ask("call in place", inner["_number"], arguments, named)


def _write_back(arguments: dict[str, object], changed: dict[str, object]) -> None:
    for place, now in changed.items():
        before = arguments.get(place)
        if type(before) is type(now) and type(now) in _MUTABLE:
            before.clear()
            (before.extend if type(now) is list else before.update)(now)


def _without_numbers(message: object) -> object:
    """Return a reply with its handles as their classes only."""
    if type(message) is dict:
        return {key: _without_numbers(value) for key, value in message.items()}
    if type(message) is not list:
        return message
    return ["handle", *message[2:]] if message[:1] == ["handle"] else [_without_numbers(item) for item in message]


def _items(value: object) -> object:
    """Return the items of an object; but one of Python's iterators, which may be endless, unchanged."""
    iterator = iter(value)
    if iterator is value and type(value).__module__ in ("builtins", "itertools"):
        return iterator
    items = [*islice(iterator, MAX_ITEMS + 1)]
    if len(items) > MAX_ITEMS:
        raise ValueError(f"an object that is iterated must end within {MAX_ITEMS} items")
    return items


def _asking(operation: str) -> Callable:
    return lambda handle, *arguments: handle._client.ask(operation, handle._number, arguments)


class Handle:
    """An object that the response keeps."""

    def __init__(self, client: Client, number: int, kind: str) -> None:
        vars(self).update(_client=client, _number=number, _kind=kind[:100])

    def __call__(self, *arguments: object, **named: object) -> object:
        return self._client.ask("call", self._number, arguments, named)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # libraries look for these in an array, a mapping, ...
            raise AttributeError(name)
        return self._client.ask("attribute", self._number, (name,))

    __setattr__, __getitem__, __setitem__ = _asking("set attribute"), _asking("item"), _asking("set item")
    __next__, __len__ = _asking("next"), _asking("length")
    __bool__, __str__ = _asking("truth"), _asking("text")

    def __iter__(self) -> Iterator:
        items = self._client.ask("iterate", self._number)
        return items if type(items) is Handle else iter(items)

    def __repr__(self) -> str:
        return f"<an object of the response, of class {self._kind}>"

    def _refuse(self, *_: object) -> bool:
        why = f"the response gives an object of class {self._kind} where a test needs a plain value"
        raise self._client.refuse(why)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __hash__ = _refuse


def _argument(value: object) -> object:
    def number_of(thing: object) -> int:
        if type(thing) is not Handle:
            raise TypeError(f"a test may give a response plain values and its own objects: got {type(thing).__name__}")
        return vars(thing)["_number"]

    return plain.encode(value, number_of)


def _exception(name: str, text: str, ends: bool) -> Exception:
    """Return the exception that a test sees: none of a test's own, and none that would end a loop of the test."""
    kind = getattr(builtins, name, None)
    others = {AssertionError, StopAsyncIteration} | ({StopIteration} if not ends else set())
    if isinstance(kind, type) and issubclass(kind, Exception) and kind not in others:
        with contextlib.suppress(TypeError):  # UnicodeDecodeError and others take more arguments
            return kind(text)
    return RuntimeError(f"{name}: {text}")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:1000]
    except Exception:
        return ""
