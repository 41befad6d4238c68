"""How kinds with features attend to what came before: whole, some places at a time, and from a state alone."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mapsto.functional.causal import LinearState, linear_causal, linear_step
from mapsto.functional.linear import guarded

__all__ = ["Mapped", "advance", "look_back", "recall"]


Mapped = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor, Tensor | None]]
"""``mapped(q, k, valid)``: features of queries, up to a factor each, and of keys; the log weight of each key; and the
running sum of what the kind itself forgets, if it does."""


def look_back(
    q: Float[Tensor, "N L K"],
    k: Float[Tensor, "N L K"],
    v: Float[Tensor, "N L V"],
    mapped: Mapped,
    *,
    valid: Bool[Tensor, "N L"] | None = None,
    fade: Float[Tensor, "N L"] | None = None,
    segment: Int[Tensor, "N L"] | None = None,
) -> Float[Tensor, "N L V"]:
    """:func:`linear_causal` of items by the features of a kind, each segment for itself.

    Args:
        q: queries.
        k: keys.
        v: values; zeros where not valid.
        mapped: the features.
        valid: which keys exist.
        fade: the running sum of a decay over all places, whosever they are.
        segment: which document an item is of.
    """
    run = back = None
    if segment is not None:
        valid = torch.ones_like(segment, dtype=torch.bool) if valid is None else valid
        run, (q, k, v, valid, *sums), back = in_runs(segment, q, k, v, valid, *([] if fade is None else [fade]))
        fade = sums[0] if sums else None
    f, g, log_weight, forgotten = mapped(q, k, valid)
    for lost in (forgotten, fade):
        log_weight = log_weight if lost is None else log_weight - lost
    out = linear_causal(f, g, v, log_weight, valid=valid, run=run)
    return out if back is None else out.gather(1, back.expand_as(out))


@torch.no_grad()
def advance(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H T K"],
    v: Float[Tensor, "B H T V"],
    state: LinearState,
    mapped: Mapped,
    valid: Bool[Tensor, "B T"] | None = None,
) -> tuple[Float[Tensor, "B H T V"], LinearState]:
    """Write T more places to a state and answer each from what is written up to it. Consumes the state.

    Args:
        q: queries.
        k: keys.
        v: values.
        state: what was written.
        mapped: the features.
        valid: which of the places exist.
    """
    tops: list[Tensor] = []

    def answer(q: Tensor, k: Tensor, v: Tensor, exists: Tensor | None) -> Tensor:
        f, g, log_weight, forgotten = mapped(q, k, exists)
        log_weight = log_weight if forgotten is None else log_weight - forgotten
        out, total = linear_step(f, g, v, log_weight, state.total, exists)
        # Forgetting is counted from the last place on.
        tops.append(total.top if forgotten is None else (total.top + forgotten[:, -1]).to(k.dtype))
        return out

    out = guarded(q, k, v, valid, answer)
    written = k.shape[2] if valid is None else valid.sum(1)
    return out, state.after(tops[0], written) if tops else state


def recall(
    q: Float[Tensor, "B H L K"], state: LinearState, features: Callable[[Tensor], Tensor]
) -> Float[Tensor, "B H L V"]:
    """Answer queries from all that was written; writes nothing."""
    nothing = q.new_zeros(*q.shape[:2], 1, 1)
    keys = nothing.expand(-1, -1, -1, q.shape[3])
    return guarded(q, keys, nothing, None, lambda q, k, v, valid: state.total.ask(features(q)))


def in_runs(
    segment: Int[Tensor, "N L"], *items: Tensor
) -> tuple[Int[Tensor, "N L"], list[Tensor], Int[Tensor, "N L 1"]]:
    """Items ordered so that each segment is one run, in their order within it; and the way back.

    Returns:
        The run of each item, the items (N, L, …) in that order, and the index that ``gather`` undoes it by.
    """
    order = segment.argsort(dim=1, stable=True)
    moved = [x.gather(1, order.view(*order.shape, *[1] * (x.dim() - 2)).expand_as(x)) for x in items]
    return segment.gather(1, order), moved, order.argsort(dim=1)[..., None]
