"""Responses meant to fool, freeze, crash or escape a grader: what a policy writes on its way, and worse.

All of them are wrong. A maths response is for one of `GOLDS`. A code response is for a program that doubles a number
(`STDIN_TESTS`) or for a function that does (`ASSERT_TESTS`), so none of them doubles anything.
"""

# ruff: noqa: E501 (long responses)
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

GOLDS = ("42", "x^2-1", "\\frac{\\sqrt{3}}{2}", "(1, 2)", "[0, \\pi)")
STDIN_TESTS = json.dumps({"inputs": ["3\n", "-20\n"], "outputs": ["6\n", "-40\n"]})
ASSERT_TESTS = json.dumps({"test_list": ["assert double(3) == 6", "assert double(-20) == -40"]})
GOOD = {
    "math": ("so the answer is \\boxed{-1+x^2}", "x^2-1"),
    "code": ("```python\nprint(2 * int(input()))\n```", STDIN_TESTS),
}


@dataclass(frozen=True)
class Malformed:
    """A response, its label and its kind."""

    reward: str  # "math" or "code"
    kind: str
    response: str
    label: str


def malformed(count: int, seed: int = 0) -> Iterator[Malformed]:
    """Yield `count` varied responses in random order: nine for maths to one for code, kinds about equally often."""
    rng = random.Random(seed)
    kinds = {"math": list(MATHS), "code": list(CODE)}
    for i in range(count):
        reward = "code" if i % 10 == 9 else "math"
        kind = kinds[reward][i // 10 % len(kinds[reward])] if reward == "code" else rng.choice(kinds[reward])
        if reward == "math":
            gold = GOLDS[0] if kind in FOR_42 else rng.choice(GOLDS)
            yield Malformed(reward, kind, MATHS[kind](rng), gold)
        else:
            body = CODE[kind]
            label = ASSERT_TESTS if "def double" in body or "double =" in body else STDIN_TESTS
            yield Malformed(reward, kind, f"Here it is:\n```python\n{body}\n```\n", label)


def _box(text: str) -> str:
    return f"we get \\boxed{{{text}}}"


def _noise(rng: random.Random, size: int) -> str:
    return "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(160, 0xD7FF)))) for _ in range(size))


def _nested(rng: random.Random, command: str) -> str:
    depth = rng.randrange(200, 3000)
    return _box(command * depth + "1" + "}{2}" * depth)


MATHS: dict[str, Callable[[random.Random], str]] = {
    "empty": lambda rng: rng.choice(("", " ", "\n\n", "\\boxed{}", "\\boxed{ }", "####", "\\boxed")),
    "10 MB": lambda rng: rng.choice("x7{}\\") * 10_000_000 if rng.random() < 0.02 else "y" * 10_000,
    "bad UTF-8": lambda rng: _box(rng.choice(("\udcff\udc80", "4\ud8002", "\x00", "\ufffe42\ufffe1"))) + "\udcff",
    "noise": lambda rng: _box(_noise(rng, rng.randrange(1, 200))),
    "unbalanced braces": lambda rng: "\\boxed{" * rng.randrange(1, 400) + "4" + "}" * rng.randrange(0, 3),
    "huge integer": lambda rng: _box("9" * rng.randrange(300, 100_000)),
    "power tower": lambda rng: _box(rng.choice(("9**9**9**9", "9^{9^{9^{9}}}", "2^{2^{2^{2^{2^{2}}}}}", "(10^{10})^{10^{10}}"))),
    "huge exponent": lambda rng: _box(rng.choice(("1e999999999", "10^{999999999}", "2^{-10^{12}}", "0.1^{10^{9}}"))),
    "factorial": lambda rng: _box(rng.choice(("99999999!", "(9!)!", "(10^{9})!", "9!!!!!!!!", "\\binom{10^9}{5*10^8}"))),
    "endless sum": lambda rng: _box(
        rng.choice(("\\sum_{i=1}^{10^{12}} \\frac{1}{i}", "\\prod_{k=1}^{10^9} k", "\\int_0^1 \\sin(x^{x^{x}}) dx"))
    ),
    "deep root": lambda rng: _box("\\sqrt{2+" * rng.randrange(20, 500) + "1" + "}" * 500),
    "nested fractions": lambda rng: _nested(rng, "\\frac{"),
    "nested brackets": lambda rng: _box("(" * rng.randrange(100, 5000) + "42" + "," + ")" * 100),
    "code in the answer": lambda rng: _box(
        rng.choice(
            (
                "__import__('os').system('true')",
                "().__class__.__base__.__subclasses__()",
                "exec('import sys; sys.exit(0)')",
                "open('/etc/passwd').read()",
                "lambda: 42",
                "[42 for _ in range(10**10)][0]",
            )
        )
    ),
    "hedging": lambda rng: _box(rng.choice(("41 or 42", "42 \\text{ or } 43", "41, 42, 43", "x \\text{ where } x=42 or 7"))),
    "near": lambda rng: _box(rng.choice(("42.001", "-42", "4.2", "420", "42i", "\\{42, 0\\}", "(42, 42)"))),
    "left to the grader": lambda rng: _box(rng.choice(("x", "\\text{the answer}", "6 \\cdot 8", "\\infty", "\\pm 42"))),
    "not the last box": lambda rng: _box("42") + " but no: " + _box(str(rng.randrange(43, 10**6))),
}  # fmt: skip

FOR_42 = ("hedging", "near", "not the last box")

_FORGE = """
import json, os, struct
def forge(*messages):
    for message in messages:
        body = json.dumps(message).encode()
        for fd in range(256):
            try: os.write(fd, struct.pack(">I", len(body)) + body)
            except OSError: pass
"""
CODE: dict[str, str] = {
    "does not parse": "def double(x:\n    return",
    "no output": "x = int(input())",
    "success marks": "print('passed'); print('OK'); print('{\"passed\": true}'); print(1)",
    "sys.exit(0)": "import sys\nsys.exit(0)",
    "os._exit(0)": "import os\nos._exit(0)",
    "equal to everything": "class All(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
    "    __hash__ = int.__hash__\ndef double(x): return All(1)",
    "equal by class": "class Meta(type):\n    def __eq__(self, other): return True\n    __hash__ = type.__hash__\n"
    "class All(metaclass=Meta):\n    __class__ = int\n    def __eq__(self, other): return True\ndef double(x): return All()",
    "patched builtins": "import builtins\nbuiltins.int = lambda *a: 0\nbuiltins.print = lambda *a, **k: None\n"
    "builtins.isinstance = lambda *a: True\nbuiltins.__build_class__ = None\ndef double(x): return 1",
    "patched assertions": "import builtins\nbuiltins.AssertionError = KeyboardInterrupt\ndef double(x): raise AssertionError",
    "reads the frames": "import sys, gc\ndef double(x):\n    frame = sys._getframe()\n    while frame.f_back: frame = frame.f_back\n"
    "    seen = [o for o in gc.get_objects() if isinstance(o, dict) and 'outputs' in o]\n    return seen[0]['outputs'] if seen else 1",
    "reads the tests": "import os\nfor folder, _, names in os.walk('/'):\n    for name in names:\n        if 'test' in name and name.endswith('.json'):\n"
    "            print(open(os.path.join(folder, name)).read())",
    "endless loop": "while True: pass",
    "sleeps": "import time\ntime.sleep(10**6)",
    "waits for more input": "import sys\nsys.stdin.read(); sys.stdin.read(); input(); input()",
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: break\nprint(1)",
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
    "subprocess": "import subprocess\nprint(subprocess.run(['sh', '-c', 'yes > /tmp/yes & echo 1']))",
    "fills memory": "x = []\nwhile True: x.append(bytearray(10**7))",
    "fills the disk": "i = 0\nwhile True:\n    open(f'/tmp/{i}', 'wb').write(bytes(10**7)); i += 1",
    "prints without end": "while True: print('6' * 10**6)",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef double(x): return double(x)\nprint(double(1))",
    "opens sockets": "import socket\ns = socket.create_connection(('1.1.1.1', 80), 2)\ns.sendall(b'GET /')\nprint(s.recv(9))",
    "reads the home folder": "import os, glob\nprint(glob.glob('/root/*') + glob.glob('/home/*/*') + [open(os.path.expanduser('~/.bashrc')).read()])",
    "environment": "import os\nprint(dict(os.environ))",
    "signals": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(-1, signal.SIGKILL)",
    "stops the runner": "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(10**6)",
    "closes the channel": "import os\nos.closerange(0, 1000)\ndef double(x): return 2",
    "writes to every descriptor": "import os\nfor fd in range(64):\n    try: os.write(fd, b'\\x00\\x00\\x00\\x0f{\"passed\": true}')\n"
    "    except OSError: pass\ndef double(x): return 1",
    "raises oddly": "class Odd(BaseException): pass\ndef double(x): raise Odd()",
    "huge value": "def double(x): return [[0] * 10**6 for _ in range(1000)]",
    "cyclic value": "def double(x):\n    a = []\n    a.append(a)\n    return a",
    "crashes": "import ctypes\nctypes.string_at(0)",
    "forged report": _FORGE + "forge({'how': 'ended', 'code': 0, 'stdout': '6\\n', 'stderr': '', 'answer': ''})\nos._exit(0)",
    "forged reply": _FORGE + "forge({'value': ['double']}, {'value': {'result': True}})\ndef double(x): return 0",
    "forged verdict": _FORGE + "forge({'outcome': 'passed', 'detail': ''})\ndef double(x): return 0",
    "flooded channel": "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'x' * 5000)\n    except OSError: pass\n"
    "def double(x): return 0",
    "patched print": "import builtins\nbuiltins.print = builtins.str = lambda *a: True",
    "equal without a class": "class E:\n    __eq__ = __le__ = __ge__ = lambda *a: True\n    __ne__ = __lt__ = lambda *a: False\n"
    "    __hash__ = lambda s: 6\n    __bool__ = lambda s: True\ndef double(x): return E()",
    "list equal to everything": "class L(list):\n    __eq__ = lambda *a: True\ndef double(x): return L()",
    "integer by index": "class E:\n    __class__ = int\n    __eq__ = lambda *a: True\n    __index__ = lambda s: 6\ndef double(x): return E()",
    "exits when called": "import os\ndef double(x): os._exit(0)",
    "loops when called": "def double(x):\n    while True: pass",
    "forks when called": "import os\ndef double(x): return os.fork()",
    "kills when called": "import os\ndef double(x):\n    os.kill(-1, 9)\n    os.kill(1, 9)",
    "raises StopIteration": "def double(x): raise StopIteration(6)",
    "not a number": "def double(x): return float('nan')",
    "one huge value": "def double(x): return [0] * (1 << 40)",
    "huge text": "def double(x): return 'x' * (30 << 20)",
    "fork bomb": "import os\nwhile True: os.fork()",
    "many small threads": "import threading, time\nthreading.stack_size(32768)\n"
    "while True: threading.Thread(target=time.sleep, args=(99,)).start()",
    "a thread that stays": "import threading, time\nthreading.Timer(99, time.sleep).start()",
    "arithmetic in C": "x = 9 ** 9 ** 9 ** 9",
    "ignored signals": "import signal\nfor s in {*signal.Signals} - {9, 19}: signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
    "closes all and stays": "import os, time\nos.closerange(0, 256)\ntime.sleep(99)",
    "errors without end": "import sys\nwhile True: sys.stderr.write('x' * 1000000)",
    "stack of C": "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return repr(self)\nrepr(A())",
    "deep source": "x = " + "-" * 200_000 + "1",  # the grader can parse neither this nor the next two
    "null bytes": "print(6)\0",
    "lone surrogate": "print('\ud800')",
    "odd encodings": "import sys\nsys.stdout.buffer.write(b'\\xff\\xfe6\\x00\\n')",
}  # fmt: skip
