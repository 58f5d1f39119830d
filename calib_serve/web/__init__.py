"""The watcher over HTTP: labels and predictions in, metrics and a page out."""

from calib_serve.web.app import create_app
from calib_serve.web.guard import (
    LOOPBACK,
    Guard,
    Token,
    TokenFile,
    Tokens,
    allowed_hosts,
    new_token,
    read_tokens,
    tokens_and_hosts,
)
from calib_serve.web.server import serve_app

__all__ = [
    "LOOPBACK", "Guard", "Token", "TokenFile", "Tokens", "allowed_hosts", "create_app", "new_token",
    "read_tokens", "serve_app", "tokens_and_hosts",
]  # fmt: skip
