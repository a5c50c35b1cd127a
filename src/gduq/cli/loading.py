"""Models of bundles and runs, and networks by name: ``package.module:Name``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from gduq.bundle import describe, load
from gduq.bundle.rebuilding import Spec, leaves, needs_call
from gduq.calibration import Calibrator
from gduq.cli.request import Request, bundle_of
from gduq.data.objects import find_object
from gduq.errors import InputError
from gduq.nn.network_specs import network_from
from gduq.prediction.predictor import Predictor

__all__ = ["load_model", "load_network", "make_network"]


def load_model(request: Request) -> tuple[Predictor, Calibrator | None]:
    """The model of a bundle or run on its device, and the calibrator saved with it."""
    bundle, _ = bundle_of(request.bundle)
    _check_code(describe(bundle).model, request.net, request.call)
    model, saved = load(bundle, *_own_code(request.net, request.call))
    return _on(model, request.device), saved


def _check_code(spec: Spec, net: str | None, call: str | None) -> None:
    """Ask for a user's own code in the words of the command line."""
    others = [leaf["class"] for leaf in leaves(spec) if leaf["kind"] == "other"]
    if others and net is None:
        raise InputError(f"--net package.module:Name, which makes a {others[0]}", "none")
    if needs_call(spec) and call is None:
        raise InputError("--call package.module:name, which the model was made with", "none")


def _own_code(net: str | None, call: str | None) -> tuple[Any, Any]:
    return (
        None if net is None else make_network(net),
        None if call is None else find_object(call),
    )


def _on(model: Predictor, device: str) -> Predictor:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise InputError("a device torch can use", f"{device!r} ({reason})") from None


def load_network(bundle: Path | None, net: str | None, call: str | None) -> tuple[nn.Module, Any]:
    """The network of a bundle as it was before it was wrapped, or the one that is named."""
    own, function = _own_code(net, call)
    if own is None:
        if bundle is None:
            raise InputError("a bundle, or --net package.module:Name", "neither")
        spec = describe(bundle_of(bundle)[0]).model
        _check_code(spec, net, call)
        own = network_from(leaves(spec)[0])
    return own, function


def make_network(name: str) -> Any:
    """The network that ``package.module:Name`` is, or that calling it gives."""
    found = find_object(name)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise InputError(f"a network, or a function that makes one, as {name}", repr(found))
        try:
            found = found()
        except TypeError as error:
            raise InputError(
                f"{name} to be called without arguments",
                str(error),
                "Name a function that builds your network.",
            ) from error
    if not isinstance(found, nn.Module):
        raise InputError(f"a torch.nn.Module from {name}", type(found).__name__)
    return found
