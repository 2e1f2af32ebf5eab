"""Serve a reward over HTTP to OpenRLHF on other machines."""

import argparse
import ipaddress
import os
import ssl
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from openrlhf_shear.config.knobs import NOT_NEGATIVE, knob
from openrlhf_shear.config.refusal import did_you_mean
from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.line import frame
from openrlhf_shear.rewards.files import FILES
from openrlhf_shear.rewards.function_workers import try_file
from openrlhf_shear.rewards.graders import NAMES
from openrlhf_shear.rewards.server import CONNECTIONS, build_app
from openrlhf_shear.rewards.settings import SERVER_SECONDS, GradingConfig, RewardSettings, read_token

CLIENT_SECONDS = 180  # timeout of OpenRLHF's own client

EPILOG = f"""\
Every request needs a token of 16 or more letters, digits or -._~. Make a token, keep it in a file, and start:

  python -c "import secrets; print(secrets.token_urlsafe(32))" > reward.token && chmod 600 reward.token
  python -m openrlhf_shear.cli.serve_reward --reward math --token-file reward.token

Without --token-file the token is taken from {REWARD_TOKEN}.
Training names the server, and reads the token from the same variable or from a file, so that no command line shows it:

  --reward.remote_url http://127.0.0.1:5000/get_reward --reward.token_file reward.token

Clients that cannot send a header put the token into the URL: http://shear:TOKEN@127.0.0.1:5000/get_reward.

By default the server listens only on this machine (127.0.0.1); --host changes that. Without --tls-cert and --tls-key
the token travels in clear text, so allow other machines only on a network you trust, or use TLS and https:// in the
URL. If no public authority signed the certificate, set SSL_CERT_FILE to the authority's file where training runs.

Training gives up on an answer after --reward.timeout ({SERVER_SECONDS:g} seconds by default), and OpenRLHF's own client
after {CLIENT_SECONDS} seconds. Keep the timeout plus the waiting time well below that, with more --cores or more
servers (separate their URLs by commas). Ctrl-C or SIGTERM finishes the current grades and stops the server.
"""


@dataclass(frozen=True)
class ServerGrading(GradingConfig):
    """Knobs of grading on a machine that does nothing else."""

    cores: int = knob(0, "Parallel grades; 0 means all cores of this machine.", NOT_NEGATIVE)


def _flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--reward", required=True, help=f"reward to serve: {', '.join(NAMES)}, or a .py file with reward_func")
    add("--token-file", type=Path, help=f"file that holds the token (default: the token in {REWARD_TOKEN})")
    add("--host", default="127.0.0.1", help="address to serve on (default: 127.0.0.1)")
    add("--port", type=int, default=5000, help="port to serve on (default: 5000)")
    add("--tls-cert", type=Path, help="PEM file of the certificate chain (default: no TLS)")
    add("--tls-key", type=Path, help="PEM file of the private key (default: no TLS)")
    frame.add_knobs(parser.add_argument_group("grading"), ServerGrading)


@frame.command(_flags, __doc__, EPILOG, refused=(ImportError, RuntimeError))
def main(args: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM; then answer the current requests and close the pool."""
    _check(args)
    grading = frame.knobs_of(args, ServerGrading)
    grading = replace(grading, cores=grading.cores or os.cpu_count() or 1)
    token, tls = _token(args.token_file), _tls(args.tls_cert, args.tls_key)
    if warning := exposure(args.host, tls is not None):
        print(f"[Warning] {warning}", file=sys.stderr)
    if args.reward not in NAMES:
        try_file(args.reward, 60.0, [])  # raises for a file without a reward, before anybody asks
    from aiohttp import web

    from openrlhf_shear.rewards.pool import RewardPool

    pool = RewardPool(RewardSettings(FILES.get(args.reward, args.reward), **asdict(grading)))
    try:
        web.run_app(
            build_app(pool, token), host=args.host, port=args.port, ssl_context=tls, access_log=None, **CONNECTIONS
        )
    except OSError as error:
        raise frame.Shortfall(f"{args.host}:{args.port} cannot be served: {error}") from error
    finally:
        pool.close()


def exposure(host: str, tls: bool) -> str | None:
    """Return a warning if other machines can reach the address without TLS, else None."""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if loopback or tls:
        return None
    return f"{host} is reachable from other machines and the token travels in clear text; use --tls-cert and --tls-key"


def _token(file: Path | None) -> str:
    token = read_token(file)
    if token is None:
        raise ValueError(f"a token is needed: got none; use --token-file FILE or the environment's {REWARD_TOKEN}")
    return token


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if (cert is None) != (key is None):
        raise ValueError("--tls-cert and --tls-key go together: got only one of them; use both or neither")
    if cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError is an OSError
        raise ValueError(f"--tls-cert and --tls-key cannot be used: {error}") from error
    return context


def _check(args: argparse.Namespace) -> None:
    known = args.reward in NAMES or (args.reward.endswith(".py") and Path(args.reward).is_file())
    if not known:
        hint = did_you_mean(args.reward, NAMES)
        raise ValueError(f"--reward must be {', '.join(NAMES)} or an existing .py file{hint}: got {args.reward!r}")
    if not 0 <= args.timeout <= CLIENT_SECONDS:
        raise ValueError(
            f"--timeout must be 0 to {CLIENT_SECONDS}, when OpenRLHF's client gives up: got {args.timeout:g}; use 0"
        )
    if not 0 <= args.port < 65536:
        raise ValueError(f"--port must be 0 to 65535 (0: any free port): got {args.port}; use e.g. 5000")


if __name__ == "__main__":
    main()
