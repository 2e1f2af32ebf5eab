"""The filters of system calls: what they refuse, by number and argument."""

import errno
import platform
import re
import struct

import pytest

from openrlhf_shear.rewards.jail import seccomp
from openrlhf_shear.rewards.jail.escapes import ESCAPES, ESCAPES_OF_A_PROGRAM


def test_an_escape_by_number_tries_the_call_it_names():
    import pyseccomp

    named = [(attempt, by) for attempt, by in (ESCAPES | ESCAPES_OF_A_PROGRAM).values() if "call(" in attempt]
    assert len(named) > 30
    for attempt, by in named:
        number, name = int(re.search(r"call\((\d+)", attempt)[1]), by.removeprefix("seccomp: ")
        if name == "newer calls":
            assert number > seccomp.NEWEST
        else:
            assert pyseccomp.resolve_syscall(pyseccomp.system_arch(), number).decode() == name, attempt


def verdict_of(program: bytes, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Run a seccomp program on a system call of x86_64: 0 means allowed, otherwise the error number."""
    data = struct.pack("=iIQ6Q", number, 0xC000003E, 0, *arguments, *[0] * (6 - len(arguments)))
    code, at, loaded = [*struct.iter_unpack("=HBBI", program)], 0, 0
    tests = {0x15: int.__eq__, 0x25: int.__gt__, 0x35: int.__ge__, 0x45: int.__and__}
    while True:
        operation, yes, no, value = code[at]
        at += 1
        if operation == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif operation == 0x54:
            loaded &= value
        elif operation == 0x05:
            at += value
        elif operation in tests:
            at += yes if tests[operation](loaded, value) else no
        else:
            assert operation == 0x06
            kind = value & 0xFFFF0000
            assert kind in (0x7FFF0000, 0x50000), hex(value)
            return 0 if kind == 0x7FFF0000 else value & 0xFFFF or -1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are of x86_64")
def test_the_filter_refuses_kinds_of_calls():
    """Read from the program itself: the kernel refuses some of them for other reasons, too."""
    import pyseccomp

    whole, child = seccomp.filters()
    arch = pyseccomp.system_arch()

    def number(name: str) -> int:
        return pyseccomp.resolve_syscall(arch, name)

    known = [name for name in seccomp.REFUSED.split() if number(name) >= 0]
    assert len(known) > 100
    assert {name: said for name in known if (said := verdict_of(whole, number(name))) != errno.EPERM} == {}
    unnamed = {"setxattrat", "removexattrat", "file_setattr", "open_tree_attr", "statmount", "listmount", "listns"}
    unnamed |= {"lsm_set_self_attr"}  # later than the filter's newest, or than a libseccomp of 2023
    assert {*seccomp.REFUSED.split()} - {*known} <= unnamed
    assert {verdict_of(whole, later) for later in (463, 466, 469, 500, 1000, 0x40000000)} == {errno.ENOSYS}
    assert {verdict_of(whole, number(name)) for name in seccomp.IDLE.split()} == {-1}, "done, with nothing done"
    for name in ("read", "openat", "socketpair", "mmap", "futex", "clone", "epoll_wait", "getrandom", "rename"):
        assert verdict_of(whole, number(name)) == 0, name
    files, thread = 0x400, 0x10000
    asked = {flags: verdict_of(child, number("clone"), (flags,)) for flags in (0, files, thread, 0x3D0F00 | thread)}
    assert asked == {0: errno.EPERM, files: errno.EPERM, thread: errno.EPERM, 0x3D0F00 | thread: 0}
    asked = {flags: verdict_of(whole, number("close_range"), (3, 9, flags)) for flags in (0, 2, 4, 6)}
    assert asked == {0: 0, 2: errno.EPERM, 4: 0, 6: errno.EPERM}
    for name, allowed in seccomp.ALLOWED.items():
        asked = {*range(1100), *range(0x5400, 0x5500), 0x40086602, 0x401C5820, 0xFFFFFFFF}
        passed = {command for command in asked if verdict_of(child, number(name), (3, command)) == 0}
        assert passed == {*allowed}, name
        assert {verdict_of(child, number(name), (3, command | 1 << 32)) for command in allowed} == {0}, "32 bits count"
