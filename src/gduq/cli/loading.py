"""Models of bundles and runs, and networks by name: ``package.module:Name``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from gduq.bundle import BundleInfo, describe, load
from gduq.bundle.rebuilding import leaves, needs_call
from gduq.calibration import Calibrator
from gduq.cli.request import Request, bundle_file
from gduq.data.objects import find_object
from gduq.errors import InputError
from gduq.nn.network_specs import network_from
from gduq.prediction.predictor import Predictor

__all__ = ["Loaded", "load_model", "load_network", "make_network"]


class Loaded(NamedTuple):
    """A model on its device, the calibrator saved with it, and what its bundle says."""

    model: Predictor
    calibrator: Calibrator | None
    info: BundleInfo


def load_model(request: Request) -> Loaded:
    """The model of a bundle or run."""
    file = bundle_file(request.bundle)
    info, network, function = _described(file, request.net, request.call)
    model, saved = load(file, network, function)
    try:
        return Loaded(model.to(request.device), saved, info)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        got = f"{request.device!r} ({str(error).splitlines()[0]})"
        raise InputError("a device torch can use", got) from None


def load_network(bundle: Path | None, net: str | None, call: str | None) -> tuple[nn.Module, Any]:
    """The network of a bundle as it was before it was wrapped, or the one that is named."""
    if net is not None:
        return make_network(net), None if call is None else find_object(call)
    if bundle is None:
        raise InputError("a bundle, or --net package.module:Name", "neither")
    info, _, function = _described(bundle_file(bundle), net, call)
    return network_from(leaves(info.model)[0]), function


def _described(file: Path, net: str | None, call: str | None) -> tuple[BundleInfo, Any, Any]:
    """What a bundle says, and the user's own code that it needs."""
    info = describe(file)
    others = [leaf["class"] for leaf in leaves(info.model) if leaf["kind"] == "other"]
    if others and net is None:
        raise InputError(f"--net package.module:Name, which makes a {others[0]}", "none")
    if needs_call(info.model) and call is None:
        raise InputError("--call package.module:name, which the model was made with", "none")
    network = None if net is None else make_network(net)
    return info, network, None if call is None else find_object(call)


def make_network(name: str) -> Any:
    """The network that ``package.module:Name`` is, or that calling it gives."""
    found = find_object(name)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise InputError(f"a network, or a function that makes one, as {name}", repr(found))
        try:
            found = found()
        except TypeError as error:
            do = "Name a function that builds your network."
            raise InputError(f"{name} to be called without arguments", str(error), do) from error
    if not isinstance(found, nn.Module):
        raise InputError(f"a torch.nn.Module from {name}", type(found).__name__)
    return found
