"""The limit of a process's addresses, `ulimit -v`, which nothing that fails of it names."""

import resource


def address_limit() -> int | None:
    """Bytes that a process may address here; None for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def named_limit() -> str:
    """What to add to an error that the limit may have caused; "" without a limit."""
    limit = address_limit()
    return (
        "" if limit is None else f"; ulimit -v is {limit >> 10} here, which may be too little: use ulimit -v unlimited"
    )
