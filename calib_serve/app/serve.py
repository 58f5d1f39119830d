"""``calib-serve serve``: a TorchServe over calibrated archives, stopped as cleanly as started."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from calib_serve.app._command import Flat, command
from calib_serve.app._show import said
from calib_serve.core.errors import InputError
from calib_serve.core.options.servers import ServeOptions

if TYPE_CHECKING:
    from calib_serve.torchserve import Server

app = command(
    "serve",
    "calib-serve serve --store model_store\n"
    "calib-serve serve digits.mar calibration_feedback.mar --samples samples",
    details="MODELS are archives of the store; by default every one in it. Prints where TorchServe listens "
    "and where its tokens are, and stops it on Ctrl-C.",
)


@dataclass(frozen=True, kw_only=True)
class _Options(ServeOptions):
    """Options of ``calib-serve serve``."""

    store: Path = Path("model_store")
    """The model store whose archives are served."""
    option: list[str] = field(default_factory=list)
    """A line of config.properties, KEY=VALUE, such as default_startup_timeout=300."""
    free_ports: bool = False
    """Take any free ports instead of the configuration's."""


@app.default
def _serve(models: list[str] | None = None, *, options: Annotated[_Options, Flat] = _Options()) -> int:
    """Run TorchServe, until it is stopped."""
    from calib_serve.core.process import interruptible
    from calib_serve.torchserve import Ports, Server, ensure_keyring, stored_archives

    # One that is named must be there: making another would refuse every receipt that is out.
    if options.keyring is None:
        ensure_keyring(Path(options.folder))
    names = models or [path.name for path in stored_archives(options.store)]
    free = Ports.free().as_properties() if options.free_ports else {}
    lines = {**free, **_lines(options.option)}
    server = Server(options.store, names, options, settings=lines)
    for note in (*server.notes, *_remarks(options, names, lines)):
        said(f"note: {note}")
    try:
        with interruptible(), contextlib.ExitStack() as running:
            running.callback(server.stop)
            server.start(allow_failures=True)  # one broken archive keeps no other from being served
            _show(server)
            code = server.wait()
    except KeyboardInterrupt:
        said("stopped")
        return 0
    return code or 1  # it was not asked to end


def _lines(given: list[str]) -> dict[str, str]:
    """Read KEY=VALUE, with values as they are written: TorchServe reads them, not YAML."""
    found = [line.partition("=") for line in given]
    if odd := [key for key, equals, _ in found if not (key and equals)]:
        raise InputError(f"--option takes KEY=VALUE, such as job_queue_size=100; got {odd}")
    return {key.strip(): value.strip() for key, _, value in found}


def _remarks(options: _Options, names: list[str], lines: dict[str, str]) -> Iterator[str]:
    from calib_serve.core.files import shipped
    from calib_serve.receipts import MODELS, from_environment
    from calib_serve.torchserve import SECTION, read_archive, read_properties, remarks

    base = shipped("config.properties") if options.properties is None else Path(options.properties)
    properties = {**read_properties(base), **lines}
    installs = properties.get("install_py_dep_per_model", "").lower() == "true"
    for name in names:
        archive = read_archive(options.store / name, verify=False)
        yield from remarks(archive, installs=installs)
        section = archive.config.get(SECTION)
        if isinstance(section, dict) and section.get("models"):  # an archive of feedback, packed with --for
            listed = from_environment(MODELS) or f"every calibrated archive of {options.store}"
            yield f"{name}: labels are taken of the models of {listed}, not of those packed with --for"


def _show(server: "Server") -> None:
    said(f"serving {', '.join(server.served)}")
    for name, why in server.failures.items():
        said(f"  {name} is not served, TorchServe tries again at growing intervals: {why}")
    tokens = f"{server.key_file}  (inference, management)" if server.has_tokens else "none are asked for"
    for what, where in (
        ("predict", f"{server.inference}/predictions/MODEL"),
        ("manage", server.management),
        ("metrics", f"{server.metrics}/metrics  (no token)"),
        ("gRPC", server.grpc),
        ("tokens", tokens),
        ("logs", str(server.log_file.parent)),
    ):
        said(f"  {what:8} {where}")
    said("Ctrl-C stops it")
