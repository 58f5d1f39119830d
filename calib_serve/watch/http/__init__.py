"""The watcher over HTTP: labels and predictions in, metrics and a page out."""

from calib_serve.watch.http.access import allowed_hosts, read_tokens
from calib_serve.watch.http.app import create_app
from calib_serve.watch.http.server import serve_app

__all__ = ["allowed_hosts", "create_app", "read_tokens", "serve_app"]
