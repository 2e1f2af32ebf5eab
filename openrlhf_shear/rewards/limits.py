"""Limit of a process's address space (`ulimit -v`). Errors that it causes do not name it."""

import resource


def address_limit() -> int | None:
    """Return the bytes that a process may address here; None for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def named_limit() -> str:
    """Return an addition to an error that the limit may have caused; "" without a limit."""
    limit = address_limit()
    return (
        "" if limit is None else f"; ulimit -v is {limit >> 10} here, which may be too little: use ulimit -v unlimited"
    )
