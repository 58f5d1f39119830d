"""Libraries that are installed do import, and use the GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator

from calib_serve.distributions import RUNTIMES
from calib_serve.doctor.extras import chosen
from calib_serve.doctor.finding import Asked, Finding, note, ok, wrong
from calib_serve.doctor.tries import PACKAGES, Tried, tried
from calib_serve.doctor.world import World

__all__ = ["libraries"]


def libraries(asked: Asked, world: World) -> Iterator[Finding]:
    """The libraries of the chosen extras, in a process of their own."""
    found = tried(chosen(asked, world), world)
    yield from _imports(found)
    yield from _torch(found, world)
    yield from _onnxruntime(found, world)


def _imports(tried: Tried) -> Iterator[Finding]:
    """Every module of the chosen extras that is installed; what is not is said by its extra."""
    bad = {name: facts["error"] for name, facts in tried.facts.items() if "error" in facts}
    for name, error in bad.items():
        package = PACKAGES.get(name, name)
        yield wrong(
            f"import {name}",
            f"it is installed and does not import: {error}",
            "mend what the message names (a library of the system, or another package); else pip install "
            f"--force-reinstall --no-deps {package}",
        )
    good = [name for name in tried.facts if name not in bad]
    if good:
        yield ok("imports", ", ".join(good))


def _torch(tried: Tried, world: World) -> Iterator[Finding]:
    """Whether torch and the GPU are for one another."""
    facts = tried.facts.get("torch")
    if facts is None or "version" not in facts:
        return
    version, built, gpu = facts["version"], facts["built_for"], _gpu(world)
    plain = version.partition("+")[0]
    if built and facts["gpus"]:
        yield ok("torch", f"{version} uses {facts['gpus']} GPU")
    elif built and gpu is not None:
        yield wrong(
            "torch",
            f"{version} is built for CUDA {built}, this host has a GPU ({gpu}), and torch does not use it: "
            f"{facts.get('why', 'it finds none')}",
            f"install a driver that CUDA {built} works with, or a torch for the CUDA of this driver, from "
            "pytorch.org",
        )
    elif built:
        yield note(
            "torch",
            f"{version} is built for CUDA {built}, some gigabytes, and this host shows no GPU",
            f"where it never will: pip install --force-reinstall torch=={plain} --index-url "
            "https://download.pytorch.org/whl/cpu",
        )
    elif gpu is not None:
        yield note(
            "torch",
            f"{version} runs on the CPU alone, and this host has a GPU ({gpu})",
            "to use it, install the torch for its CUDA, from pytorch.org",
        )
    else:
        yield ok("torch", f"{version} runs on the CPU, and this host shows no GPU")


def _onnxruntime(tried: Tried, world: World) -> Iterator[Finding]:
    """One package of onnxruntime, and its GPU."""
    found = world.installed
    packages = {name: found[name].version for name in RUNTIMES if name in found}
    shown = " and ".join(f"{name} {number}" for name, number in packages.items())
    if len(packages) > 1:
        yield wrong(
            "onnxruntime",
            f"{shown} are both installed, and overwrite each other's files",
            f"keep one: pip uninstall -y {' '.join(packages)}, then pip install 'calib-serve[onnx]', or "
            "[gpu] for a GPU",
        )
    facts = tried.facts.get("onnxruntime")
    if facts is None or "offered" not in facts or len(packages) > 1:
        return
    gpu = _gpu(world)
    if "onnxruntime-gpu" not in packages:
        if gpu is None:
            yield ok("onnxruntime", f"{shown or facts['version']} runs on the CPU")
        else:
            yield note(
                "onnxruntime",
                f"{shown or facts['version']} runs on the CPU alone, and this host has a GPU ({gpu})",
                "to use it: pip uninstall -y onnxruntime, then pip install 'calib-serve[gpu]'",
            )
    elif "CUDAExecutionProvider" not in facts["offered"]:
        yield wrong(
            "onnxruntime",
            f"{shown} is installed, and its module offers {', '.join(facts['offered'])} alone: the files are "
            "those of another package",
            f"pip install --force-reinstall --no-deps onnxruntime-gpu=={packages['onnxruntime-gpu']}",
        )
    elif "CUDAExecutionProvider" in facts["taken"]:
        yield ok("onnxruntime", f"{shown} uses the GPU")
    elif gpu is None:
        yield note(
            "onnxruntime",
            f"{shown} is installed, and this host shows no GPU",
            "where it never will: pip uninstall -y onnxruntime-gpu, then pip install 'calib-serve[onnx]'",
        )
    else:
        yield wrong(
            "onnxruntime",
            f"{shown} does not run on the GPU ({gpu}): {facts.get('why') or _of_cuda(tried.stderr)}",
            "install the CUDA and cuDNN libraries that this version names, such as by pip install "
            "'onnxruntime-gpu[cuda,cudnn]', and a driver for them",
        )


def _of_cuda(stderr: str) -> str:
    """The line of onnxruntime's log that says which library did not load."""
    lines = [line.strip() for line in stderr.splitlines() if "CUDA" in line or "Failed to load" in line]
    return lines[0][-250:] if lines else "it fell back to the CPU without a word"


def _gpu(world: World) -> str | None:
    """The NVIDIA driver's version, or how else a GPU shows; None where none does."""
    said = world.text("proc/driver/nvidia/version")
    if said is not None:
        words = said.split()
        numbers = [word for word in words if word.count(".") >= 1 and word[0].isdigit()]
        return f"driver {numbers[0]}" if numbers else "its driver does not say its version"
    devices = world.root / "dev"
    if (devices / "nvidia0").exists() or (devices / "dxg").exists():
        return "its driver does not say its version"
    return None
