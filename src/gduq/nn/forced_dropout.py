"""`ForcedDropout`: dropout at prediction time."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.modules.module as torch_module
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

__all__ = ["ForcedDropout"]


class ForcedDropout(TorchFunctionMode):
    """Within this context every dropout call draws, whatever mode its module is in.

    It changes the calls, not the modules: functional dropout (as in ``GATConv``), that of attention
    and that between recurrent layers draw too, and norms stay in evaluation mode. ``calls`` counts.

    One call does not tell: ``scaled_dot_product_attention(..., dropout_p=self.p if self.training
    else 0.0)`` arrives without its probability. The module that makes such a call (it alone, not
    its children) is run once more in training mode, and from then on in training mode at once.
    """

    _open = threading.local()  # how many contexts each thread has open, and the modules they run
    _functional = frozenset[Any](
        (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
    )
    _native = frozenset[Any](
        (torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout)
    )
    _recurrent = frozenset[Any]((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu))

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self._hooks: list[RemovableHandle] = []
        self._callers: dict[nn.Module, bool] = {}  # of attention without dropout: more in training?

    @classmethod
    def active(cls) -> bool:
        """Whether such a context is open: shortcuts that skip dropout must not be taken."""
        return getattr(cls._open, "depth", 0) > 0

    def __enter__(self) -> ForcedDropout:
        if not self.active():  # nested contexts leave the modules to the outermost one
            self._open.running = []
            self._hooks = [
                register_module_forward_pre_hook(self._before),
                register_module_forward_hook(self._after, with_kwargs=True),
            ]
        self._open.depth = getattr(self._open, "depth", 0) + 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._open.depth -= 1
        if self._hooks:
            self._finish(None)
        while self._hooks:
            hook = self._hooks.pop()
            hook.remove()
            # torch 2.13 forgets to take this note away, and then warns of hooks that are gone
            getattr(torch_module, "_global_forward_hooks_with_kwargs", {}).pop(hook.id, None)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._functional:
            p = kwargs.pop("p", args[1] if len(args) > 1 else 0.5)
            self.calls += p > 0
            return func(args[0], p=p, training=True, inplace=kwargs.get("inplace", False))
        if func in self._native:
            _, p, _ = (*args, *(kwargs[k] for k in ("input", "p", "train") if k in kwargs))
            self.calls += p > 0
            return func(args[0] if args else kwargs["input"], p, True)
        if func is F.multi_head_attention_forward:
            self.calls += args[10] > 0  # its dropout probability
            kwargs["training"] = True
        if func is F.scaled_dot_product_attention:
            drops = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0) > 0
            self.calls += drops
            if self._open.running:
                self._open.running[-1].drops.append(drops)
        if func in self._recurrent:
            packed = isinstance(args[1], Tensor) and not args[1].is_floating_point()
            layers = 5 if packed else 4  # then dropout, then the flag for training
            self.calls += args[layers + 1] > 0 and args[layers] > 1
            args = (*args[: layers + 2], True, *args[layers + 3 :])
        return func(*args, **kwargs)

    # -- attention that is told its dropout by self.training ----------------------------------

    def _before(self, module: nn.Module, args: Any) -> None:
        if not self.active():  # hooks are of all threads, contexts of one
            return
        self._open.running.append(_Run(module, was_training=module.training))
        if self._callers.get(module, False):
            module.training = True

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if not self.active():
            return None
        run = self._finish(module)
        if run is None or run.was_training or module in self._callers or all(run.drops):
            return None
        return self._again(run, args, kwargs)

    def _finish(self, module: nn.Module | None) -> _Run | None:
        """End the run of a module, or all; and those inside it that a failed pass left behind."""
        while self._open.running:
            run: _Run = self._open.running.pop()
            run.module.training = run.was_training
            if run.module is module:
                return run
        return None

    def _again(self, run: _Run, args: Any, kwargs: Any) -> Any:
        """The output of a module in training mode, if attention then drops; else ``None``."""
        again = _Run(run.module, run.was_training)
        self._open.running.append(again)
        run.module.training = True
        try:
            output = run.module.forward(*args, **kwargs)
        finally:
            run.module.training = run.was_training
            self._open.running.remove(again)
        self._callers[run.module] = any(again.drops)
        return output if self._callers[run.module] else None


@dataclass(eq=False)
class _Run:
    """A module at work, and whether each attention it calls itself drops."""

    module: nn.Module
    was_training: bool
    drops: list[bool] = field(default_factory=list)
