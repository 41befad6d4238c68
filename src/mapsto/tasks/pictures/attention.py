"""Which items the model looked at, of a user's own rows.

What is shown is plain: the weights of the last attention, averaged over its heads. Where the answer is read by a
pooling that weighs (attention, class item, λ), those are the pooling's own weights; else they are the weights that
the encoder's last layer gives to each item, averaged over all items that look. No product over layers is taken: what
such products say of a model is contested (Jain and Wallace 2019; Abnar and Zuidema 2020), and weights of one layer
say where it looked, not why.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from mapsto.collection import Collection
from mapsto.models.mapper import Batch, Mapper
from mapsto.nn.multihead import MultiheadAttention
from mapsto.nn.pool import AttentionPool, ClassPool, LambdaPool
from mapsto.tasks.pictures.view import inputs

__all__ = ["Attended", "attended"]


@dataclass(frozen=True)
class Attended:
    """Weights of items.

    Attributes:
        source: which weights they are, for a caption.
        weights: for each row and input, one number an item, in even shares (their mean over a row is 1).
    """

    source: str
    weights: list[dict[str, NDArray]]


@torch.inference_mode()
def attended(model: Mapper, batch: Batch) -> Attended | None:
    """The weights of a batch; None if the model has no attention at all.

    Example:
        >>> from mapsto.inputs.vector import VectorInput
        >>> from mapsto.nn.pool import MeanPool
        >>> from mapsto.nn.transformer import Encoder
        >>> from mapsto.outputs.vector import VectorOutput
        >>> columns = [{"name": c, "kind": "number", "mean": [0.0], "scale": [1.0]} for c in "ab"]
        >>> target = {"y": {"kind": "number", "mean": [0.0], "scale": [1.0]}}
        >>> model = Mapper({"row": VectorInput(4, columns=columns)}, Encoder(4, 1, 1), MeanPool(),
        ...                VectorOutput(4, targets=target)).eval()
        >>> rows = {"row": {"numbers": torch.ones(3, 2), "labels": torch.zeros(3, 0, dtype=torch.int32)}}
        >>> attended(model, rows).weights[0]["row"].sum().round(4)
        np.float32(2.0)
    """
    model.eval()
    calls: list[tuple[Any, Any]] = []
    layer = _last(model)
    hook = None
    if layer is not None:
        hook = layer.register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
    try:
        entered = model.collect(batch)
        memory = model.encoder(entered)
    finally:
        if hook is not None:
            hook.remove()
    found = _read(model, memory, layer, calls)
    if found is None:
        return None
    source, weights = found
    parts = {name: one(batch[name]).valid.sum(1).tolist() for name, one in inputs(model).items()}
    return Attended(source, [_shares(row, {n: c[i] for n, c in parts.items()}) for i, row in enumerate(weights)])


def _last(model: Mapper) -> Any:
    blocks = getattr(model.encoder, "blocks", None)
    layer = blocks[-1].attention if blocks is not None and len(blocks) else None
    return layer if isinstance(layer, MultiheadAttention) else None  # a memory looks at nobody


def _read(model: Mapper, memory: Collection, layer: Any, calls: list[tuple[Any, Any]]) -> tuple[str, Tensor] | None:
    reader = model.reader
    if isinstance(reader, AttentionPool):
        looked = reader.attention.weights(model.output.queries(memory), memory)
        return "the pooling's attention, averaged over its heads", looked.mean((1, 2))
    if isinstance(reader, LambdaPool):
        return f"the pooling's own weights ({reader.spread})", reader.weights(memory)
    if layer is None or not calls:
        return None
    (x, *_), kwargs = calls[-1]
    given = {name: kwargs[name] for name in ("causal", "position") if name in kwargs}
    heads = layer.weights(x, **given).mean(1)
    if isinstance(reader, ClassPool):
        return "what the class item looks at in the encoder's last layer, averaged over heads", heads[:, 0, 1:]
    looking = x.valid[..., None].to(heads.dtype)
    mean = (heads * looking).sum(1) / looking.sum(1).clamp(min=1)
    return "what each item receives in the encoder's last layer, averaged over heads and over all items that look", mean


def _shares(row: Tensor, counts: Mapping[str, int]) -> dict[str, NDArray]:
    """One row's weights by input, as multiples of the even share; valid items come first, input after input."""
    total = sum(counts.values())
    known = row[:total].float()
    even = known * (total / known.sum().clamp(min=1e-12))
    parts = even.split(list(counts.values()))
    return {name: part.cpu().numpy() for name, part in zip(counts, parts, strict=True)}
