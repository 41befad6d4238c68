"""Law G: one graph for any length, compiled or exported."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import lookup_backend
from torch.utils import _pytree

from mapsto.testing.verdict import Report

__all__ = ["GRAPHS", "check_compile", "check_export"]

GRAPHS = 4
COMPILED = f"compiled whole it gives the same, with at most {GRAPHS} graphs over all lengths"
EXPORTED = "exported with any batch and length it gives the same"


class Counter:
    """A backend that counts the graphs it compiles."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: Any, inputs: Any, **options: Any) -> Any:
        """Compile with aot_eager, and count."""
        compiled = lookup_backend("aot_eager")(module, inputs, **options)
        self.graphs += 1  # not before: torch throws a graph away and begins anew where a float becomes a constant
        return compiled


def check_compile(
    report: Report, name: str, function: Callable[..., Any], inputs: Iterable[tuple[Any, ...]], tol: float
) -> None:
    """Compile a function once, call it with every input, and compare with what it gives uncompiled.

    Where gradients are enabled, those of Σ out² are compared too: of the inputs that ask for one and, if the function
    is a module, of its parameters.

    Args:
        report: where the verdict goes.
        name: of the case.
        function: gives a pytree of tensors.
        inputs: arguments of each call, of many lengths.
        tol: how far compiled and eager results may differ.
    """
    torch._dynamo.reset()
    counter = Counter()
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    with report.case("G", COMPILED, name) as case:
        for arguments in inputs:
            learned = _learned(function, arguments) if torch.is_grad_enabled() else []
            (found, steep), (wanted, slope) = (_results(f, arguments, learned) for f in (compiled, function))
            case.agree(found, wanted, tol)
            case.near(steep, slope, tol, "gradients")
        case.that(counter.graphs <= GRAPHS, f"needs {counter.graphs} graphs")
    torch._dynamo.reset()


def check_export(
    report: Report, name: str, module: nn.Module, inputs: Iterable[tuple[Any, ...]], shapes: Any, tol: float
) -> None:
    """Export a module from its first input, and compare on every input.

    Args:
        report: where the verdict goes.
        name: of the case.
        module: gives a pytree of tensors.
        inputs: arguments of each call.
        shapes: the dynamic shapes, as ``torch.export`` takes them.
        tol: how far exported and eager results may differ.
    """
    with report.case("G", EXPORTED, name) as case, torch.no_grad():
        first, *others = inputs
        program = torch.export.export(module, first, dynamic_shapes=shapes).module()
        for arguments in (first, *others):
            case.agree(program(*arguments), module(*arguments), tol)


def _learned(function: Any, arguments: tuple[Any, ...]) -> list[Tensor]:
    leaves = [t for t in _pytree.tree_leaves(arguments) if isinstance(t, Tensor)]
    return [
        t for t in (*leaves, *(function.parameters() if isinstance(function, nn.Module) else ())) if t.requires_grad
    ]


def _results(function: Callable[..., Any], arguments: tuple[Any, ...], learned: list[Tensor]) -> tuple[Any, Any]:
    """What a function gives, and gradients."""
    out = function(*arguments)
    if not learned:
        return out, ()
    total = torch.stack([t.square().sum() for t in _pytree.tree_leaves(out)]).sum()
    return out, torch.autograd.grad(total, learned, materialize_grads=True)
