"""Attacks on jails that serve one grade after another: programs by hand, for `hostile_neighbours.py` and its test.

An attack leaves state for the next grade, forges a verdict, reads expected results, or makes the next honest answer
fail. `{SECRET}` in a label is a text that no program can guess.
"""

from dataclasses import dataclass, field

STATE, VERDICT, READ, SPENT = "leave state", "forge a verdict", "read results", "spoil the next grade"
WRONG, ERROR, LATE, MEMORY, FLOOD = "wrong_answer", "error", "timeout", "memory", "output_limit"

BEGIN = """
import builtins, ctypes, fcntl, gc, json, os, re, resource, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def tried(what, *given):
    try:
        return what(*given)
    except (OSError, RuntimeError, ValueError, MemoryError):
        return None
def to_all(message):
    body = json.dumps(message).encode()
    for fd in range(256):
        tried(os.write, fd, len(body).to_bytes(4, 'big') + body)
"""
# Finds a secret, never its own pattern.
SEARCH = (
    BEGIN
    + r"""
SECRET = re.compile(rb'5[b]c5[b]c[0-9a-f]{32}')
libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_long, [ctypes.c_long]
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
def tell(data):
    if found := SECRET.search(data):
        print(found[0].decode(), flush=True)
        os._exit(0)
def memory():
    '''Read the pages near objects and the end of the heap, as far as they are mapped: write() refuses the others.'''
    out, into = os.pipe()
    for near in (id(object()), id([]), id(bytes(10_000)), libc.sbrk(0)):
        start, part = (near >> 24 << 24) - (1 << 24), b''
        for place in range(start, start + (3 << 24), 4096):
            if libc.write(into, place, 1) == 1:
                os.read(out, 1)
                part = part[-40:] + ctypes.string_at(place, 4096)
                tell(part)
def objects():
    for thing in gc.get_objects():
        if isinstance(thing, (dict, list, tuple)) and len(thing) < 10_000:
            tell(repr([*thing.values()] if type(thing) is dict else thing).encode('utf-8', 'replace'))
"""
)
_ECHO = {"inputs": ["3\n"], "outputs": ["6"]}
_CALL = {"fn_name": "f", "inputs": [[3]], "outputs": [6]}
_ASSERTS = {"test_list": ["assert f(3) == 6"]}
_CHECKED = _CALL | {"checker": "def check(input, expected, output):\n    return sorted([output]) == sorted([expected])"}
_SECRET_ECHO = {"inputs": ["3\n"], "outputs": ["{SECRET}"]}
_SECRET_CALL = {"fn_name": "f", "inputs": [[3]], "outputs": ["{SECRET}"]}
_SECRET_ASSERTS = {"test_list": ["assert f(3) == '{SECRET}'"]}
_SECRET_CHECKED = _SECRET_ECHO | {
    "checker": "def check(input, expected, output):\n    return output.strip() == expected"
}


@dataclass(frozen=True)
class Attack:
    """A hostile program and the right end of its grade.

    Args:
        ends: reasons of a verdict that are right; all others are an escape.
        label: its tests; `{SECRET}` is replaced in each grade.
        looks: an expression that is true in the next grade if the attack left something.
        seconds: time limit of a test [s].
        past: the secret is the expected output of the grade before, not of its own.
    """

    goal: str
    program: str
    ends: tuple[str, ...] = (WRONG,)
    label: dict = field(default_factory=lambda: _ECHO)
    looks: str = "False"
    seconds: float = 10.0
    past: bool = False


def _leaves(program: str, looks: str, *ends: str, **options: object) -> Attack:
    return Attack(STATE, BEGIN + program, ends or (WRONG,), looks=looks, **options)


def _forges(program: str, label: dict = _ECHO, *ends: str, **options: object) -> Attack:
    return Attack(VERDICT, BEGIN + program, ends or (WRONG,), label, **options)


def _reads(program: str, label: dict = _SECRET_ECHO, *ends: str, **options: object) -> Attack:
    return Attack(READ, SEARCH + program, ends or (WRONG,), label, seconds=30.0, **options)


def _spoils(program: str, *ends: str, label: dict = _ECHO, **options: object) -> Attack:
    return Attack(SPENT, BEGIN + program, ends, label, **options)


_IMPORTED = "open('/tmp/json.py', 'w').write('raise SystemExit')\nos.environ['PYTHONPATH'] = '/tmp'"
_STAYS = "libc.prctl(1, 0)\nos.setsid()\nos.closerange(0, 99)\ntime.sleep(600)"
_UNLINKED = "kept = open('/tmp/x', 'wb')\nos.unlink('/tmp/x')\nkept.write(bytes(60 << 20))\nkept.flush()\nos._exit(1)"
_CAUGHT = """
def f(x):
    at = sys._getframe()
    while at:
        for name, value in [*at.f_locals.items()]:
            if isinstance(value, dict): tried(value.update, {"outcome": "passed", "outputs": [0], "value": 6})
        at = at.f_back
    return 0
"""
_ALWAYS = "class Any(int):\n    __eq__ = __ge__ = __le__ = lambda self, other: True\n    __hash__ = int.__hash__\n"
_HALF = "def f(x):\n    for fd in range(3, 256): tried(os.write, fd, b'\\0')\n    time.sleep(600)"

ATTACKS = {
    # state that the next grade could find
    "a module in /tmp": _leaves(_IMPORTED, "os.listdir('/tmp') or 'PYTHONPATH' in os.environ"),
    "a folder without rights": _leaves("os.makedirs('/tmp/.x/y', 0)", "os.listdir('/tmp')"),
    "a file that is removed": _leaves("open('/tmp/x', 'w')\nos.unlink('/tmp/x')", "os.listdir('/tmp')"),
    "a link to itself": _leaves("os.symlink('x', '/tmp/x')", "os.listdir('/tmp')"),
    "a builtin": _leaves("builtins.print = lambda *of: os.write(1, b'6')", "print is not builtins.print"),
    "a builtin, replaced": _leaves("builtins.int = lambda text: 0", "int.__class__ is not type"),
    "a module of the jail": _leaves(
        "for name in ('runner', 'solver', 'wire', 'plain'): sys.modules[name].left = 1",
        "any(hasattr(module, 'left') for module in [*sys.modules.values()])",
    ),
    "a loader of modules": _leaves("sys.meta_path.insert(0, None)\nsys.path.insert(0, '/tmp')", "'/tmp' in sys.path"),
    "a hook at the end": _leaves("import atexit\natexit.register(to_all, 'left')", "False"),
    "a trace": _leaves("sys.settrace(lambda *of: None)\nthreading.settrace(print)", "sys.gettrace()"),
    "a thread that stays": _leaves(
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "threading.active_count() > 1"
    ),
    "a signal that is ignored": _leaves(
        "for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)",
        "signal.getsignal(signal.SIGTERM) is signal.SIG_IGN",
    ),
    "a signal that is blocked": _leaves(
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))", "signal.pthread_sigmask(signal.SIG_BLOCK, [])"
    ),
    "the lowest priority": _leaves("os.nice(19)", "os.nice(0) == 19"),
    "a limit of files": _leaves(
        "resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))", "resource.getrlimit(resource.RLIMIT_NOFILE)[1] == 8"
    ),
    "a single processor": _leaves(
        "os.sched_setaffinity(0, [*os.sched_getaffinity(0)][:1])",
        "len(os.sched_getaffinity(0)) == 1 < os.cpu_count()",
    ),
    "a name of the process": _leaves(
        "libc.prctl(15, b'left')", "libc.prctl(16, name := ctypes.create_string_buffer(16)) or name.value == b'left'"
    ),
    "the time at which /tmp was read": _leaves(
        "os.listdir('/tmp')", "os.stat('/tmp').st_atime_ns > os.stat('/tmp').st_ctime_ns"
    ),
    "a process that outlives its parent": _leaves(_STAYS, "False", LATE, ERROR, seconds=1.0),
    "a new process": _leaves("tried(os.fork)\ntried(os.posix_spawn, sys.executable, ['x'], {})", "False"),
    "a process by a plain call": _leaves(
        "for flags in (17, 0x8011, 0x4111): libc.syscall(56, flags, 0, 0, 0, 0)", "False"
    ),
    "shared memory": _leaves(
        "for number in (29, 64, 68): libc.syscall(number, 0x5EA2, 1, 0o1666)", "libc.syscall(29, 0x5EA2, 1, 0) >= 0"
    ),
    "a key of the kernel": _leaves("libc.syscall(248, b'user', b'left', b'x', 1, -4)", "False"),
    "a socket with a name": _leaves("tried(lambda: socket.socket(socket.AF_UNIX).bind('\\0left'))", "False"),
    # verdicts that a program did not earn
    "a report of the runner on all pipes": _forges("to_all({'how': 'ended', 'code': 0, 'cpu': 0, 'stdout': '6'})"),
    "a report of the judge on all pipes": _forges(
        "to_all({'outcome': 'passed', 'detail': '', 'gone': False})\ndef f(x): return 0", _ASSERTS, ERROR
    ),
    "a reply in place of a value": _forges("def f(x): to_all({'value': {'result': ['type', 'int']}})", _ASSERTS),
    "an answer of the checker": _forges("os.write(90, b'true')\ndef f(x): os.write(90, b'true')", _CHECKED, ERROR),
    "all answers at once": _forges("def f(x):\n    os.write(90, b'0 1 2 3 4 5 6')\n    os._exit(0)", _CALL, ERROR),
    "the frames above": _forges(_CAUGHT, _CALL),
    "a number that equals all": _forges(f"{_ALWAYS}def f(x): return Any(0)", _CALL),
    "a number that equals all, in asserts": _forges(f"{_ALWAYS}def f(x): return Any(0)", _ASSERTS),
    "an object that equals all": _forges(
        "class Any:\n    __eq__ = lambda self, other: True\ndef f(x): return Any()", _ASSERTS
    ),
    "no number": _forges("def f(x): return float('nan')", _CALL),
    "an error of the tests": _forges("def f(x): raise AssertionError", _ASSERTS, ERROR),
    "an exit before the tests": _forges("os._exit(0)", _ASSERTS, ERROR),
    "an exit in a call": _forges("def f(x): sys.exit(0)", _ASSERTS, ERROR),
    "an interrupt in a call": _forges("def f(x): raise KeyboardInterrupt", _ASSERTS, ERROR),
    "a test's own function": _forges(
        "def f(x): return 0\ndef check(of): pass",
        {"test": "def check(f):\n    assert f(3) == 6", "entry_point": "f", "prompt": "def f(x):\n"},
    ),
    "a builtin of the tests": _forges(
        "def f(x): return 0\nlen = lambda of: 6\nabs = lambda of: 6",
        {"test_list": ["assert len([f(3)]) == 6 and abs(f(3)) == 6"]},
    ),
    "an end as if killed": _forges("signal.raise_signal(9)", _ECHO, WRONG, ERROR),
    "an end by strict mode": _forges("libc.prctl(22, 1)\nlibc.syscall(317, 0, 0, 0)\nos.getpid()"),
    "an end by real time": _forges(
        "tried(resource.setrlimit, resource.RLIMIT_RTTIME, (1, 1))\n"
        "tried(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))\n"
        "end = time.time() + 0.2\nwhile time.time() < end: pass"
    ),
    # results that a program must not read
    "its objects": _reads("objects()"),
    "its objects, in a call": _reads("def f(x): objects()", _SECRET_CALL, WRONG),
    "its objects, in asserts": _reads("def f(x): objects()", _SECRET_ASSERTS, WRONG),
    "its memory": _reads("memory()"),
    "its memory, beside a checker": _reads("memory()", _SECRET_CHECKED),
    "its memory, after another grade": _reads("memory()\nobjects()", past=True),
    "its memory, after another grade, in asserts": _reads("def f(x): memory()", _SECRET_ASSERTS, WRONG, past=True),
    "memory that was freed": _reads(
        "for size in (64, 512, 4096, 1 << 16, 1 << 20):\n"
        "    kept = [ctypes.create_string_buffer(size) for _ in range((4 << 20) // size)]\n"
        "    libc.malloc.restype = ctypes.c_void_p\n"
        "    for _ in kept: tell(ctypes.string_at(libc.malloc(size), size))"
    ),
    "all descriptors": _reads(
        "for fd in range(1024):\n    tried(os.set_blocking, fd, False)\n    tell(tried(os.read, fd, 1 << 20) or b'')"
    ),
    "all files": _reads(
        "skipped = {'usr', 'lib', 'lib64', 'bin', 'sbin', 'dev', os.__file__.split('/')[1]}  # libraries, devices\n"
        "for folder, _, names in os.walk('/'):\n"
        "    if folder.split('/')[1] in skipped: continue\n"
        "    for name in names:\n"
        "        path = os.path.join(folder, name)\n"
        "        tell(tried(lambda: open(path, 'rb').read(1 << 20)) or b'')"
    ),
    "memory of its parents": _reads(
        "for pid in range(1, os.getpid()):\n"
        "    buffer = ctypes.create_string_buffer(4096)\n"
        "    for call in (310, 101): libc.syscall(call, pid, ctypes.byref(buffer), 1, ctypes.byref(buffer), 1, 0)\n"
        "    tell(tried(lambda: open(f'/proc/{pid}/mem', 'rb').read(1)) or b'')\n"
        "    tell(buffer.raw)"
    ),
    "its environment": _reads(
        "tell(repr((sys.argv, os.environ, sys.orig_argv, [*map(vars, sys.modules.values())])).encode())"
    ),
    "an error's text": _reads(
        "def f(x):\n    tell(repr(sys.exc_info()).encode())\n    raise ValueError", _SECRET_ASSERTS, ERROR
    ),
    # an honest answer that fails afterwards
    "a full /tmp": _spoils(
        "kept = [tried(open(f'/tmp/{n}', 'wb').write, bytes(1 << 20)) for n in range(80)]", WRONG, ERROR
    ),
    "a full /tmp without a name": _spoils(_UNLINKED, ERROR),
    "files up to the limit": _spoils("for n in range(9_000): os.mknod(f'/tmp/{n}')", WRONG),
    "threads that hold on": _spoils(
        "for _ in range(100): tried(threading.Thread(target=time.sleep, args=(600,), daemon=True).start)", WRONG
    ),
    "threads that come and go": _spoils(
        "def quick():\n    thread = threading.Thread(target=int)\n    thread.start()\n    thread.join()\n"
        "for _ in range(3000): tried(quick)",
        WRONG,
    ),
    "all descriptors taken": _spoils("while tried(os.pipe): pass", WRONG),
    "all memory taken": _spoils("kept = [tried(bytearray, 16 << 20) for _ in range(99)]", WRONG, MEMORY, ERROR),
    "memory without end": _spoils("kept = []\nwhile True: kept.append(bytearray(16 << 20))", MEMORY),
    "recursion": _spoils("sys.setrecursionlimit(10**9)\ndef down(_): return [*map(down, [0])]\ndown(0)", ERROR, MEMORY),
    "a process that stops itself": _spoils("os.kill(os.getpid(), signal.SIGSTOP)", LATE, seconds=0.5),
    "a process that stops its runner": _spoils("for pid in range(1, os.getpid()): tried(os.kill, pid, 19)", WRONG),
    "a search without end": _spoils("re.match('(a|a)*$', 'a' * 60 + 'b')", LATE, seconds=0.5),
    "a number without end": _spoils("10 ** 10 ** 10", LATE, MEMORY, seconds=0.5),
    "an end that waits": _spoils("threading.Thread(target=time.sleep, args=(600,)).start()", LATE, seconds=0.5),
    "output without end": _spoils("while True: os.write(1, bytes(1 << 16))", FLOOD),
    "errors without end": _spoils("for _ in range(1000): os.write(2, bytes(1 << 16))\nos._exit(1)", ERROR, FLOOD),
    "an answer of megabytes": _spoils("def f(x): return 'x' * (100 << 20)", FLOOD, MEMORY, label=_CALL),
    "an answer nested too deeply": _spoils(
        "def f(x):\n    os.write(90, b'[' * 60_000)\n    os._exit(0)", ERROR, label=_CALL
    ),
    "an answer of huge digits": _spoils("def f(x):\n    return 16 ** 2_000_000", WRONG, label=_CALL),
    "an answer that is slow to decode": _spoils(
        "def f(x):\n    top, bottom = (os.urandom(2_000_000).hex() for _ in 'ab')\n"
        "    to_all({'value': {'result': ['fraction', top, bottom]}})\n"
        "    time.sleep(600)",
        LATE,
        label=_ASSERTS,
        seconds=1.0,
    ),
    "an answer that never ends": _spoils(_HALF, LATE, label=_ASSERTS, seconds=0.5),
    "a value that breaks the checker": _spoils("def f(x): return {'a': 1}", WRONG, ERROR, label=_CHECKED),
    "a closed pipe": _spoils(
        "def f(x):\n    os.closerange(0, 99)\n    time.sleep(600)", LATE, ERROR, label=_ASSERTS, seconds=0.5
    ),
}
