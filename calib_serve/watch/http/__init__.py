"""The watcher over HTTP: labels and predictions in, metrics and a page out."""

from calib_serve.watch.http.app import create_app

__all__ = ["create_app"]
