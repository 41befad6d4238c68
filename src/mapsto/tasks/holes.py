"""Cells of a table that are missing, in the verbs: filled in, and how well, by hiding some that are known."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from mapsto.inputs.vector import VectorInput
from mapsto.models.rework import Hide, spared
from mapsto.models.vae import VAE
from mapsto.nn.target import LabelTarget, NumberTarget
from mapsto.outputs.vector import KNOWN, VectorOutput
from mapsto.stream import stream
from mapsto.tasks.exact import known, normal, numbers
from mapsto.tasks.feed import StoreFeed
from mapsto.training.imputation import impute

__all__ = ["filled", "guessed", "hidden"]

SHARE = 0.1
"""Of the known cells, those that are hidden to be guessed."""


def filled(model: VAE, feed: StoreFeed, rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Rows of a table with their holes filled: what is known stays as it is.

    Args:
        model: of a table.
        feed: the rows, with targets.
        rows: their cells, None where one is missing.

    Returns:
        A dict a row: by column its value; of columns with holes also ``COLUMN.low`` and ``COLUMN.high``, between which the
        missing number lies with a probability of 0.95, or ``COLUMN.probability`` of the missing label: None where the
        value was known.
    """
    output = model.output
    assert isinstance(output, VectorOutput)
    holes = [any(row[i] is None for row in rows) for i in range(len(output.names))]
    if not any(holes):
        return [dict(zip(output.names, row, strict=True)) for row in rows]
    lacking = np.array([any(cell is None for cell in row) for row in rows])
    order = [some for batch in feed.once() if len(some := batch[lacking[batch]])]
    found = impute(model, ((batch, feed.batch(batch)) for batch in order))
    place = {int(row): i for i, row in enumerate(np.concatenate(order))}
    told: list[dict[str, Any]] = [{} for _ in rows]
    for i, (name, head) in enumerate(output.targets.items()):
        further = ("probability",) if isinstance(head, LabelTarget) else ("low", "high")
        for r, row in enumerate(rows):
            if row[i] is not None:
                told[r][name] = row[i]
                told[r] |= {f"{name}.{key}": None for key in further if holes[i]}
                continue
            arrays = {key: array[place[r]] for key, array in found[name].items()}
            told[r][name] = _said(head, arrays["value"])
            if isinstance(head, LabelTarget):
                told[r][f"{name}.probability"] = dict(zip(head.classes, arrays["probability"].tolist(), strict=True))
            else:
                told[r] |= {f"{name}.{end}": _said(head, arrays[end]) for end in further}
    return told


def _said(head: Any, value: Any) -> Any:
    if isinstance(head, LabelTarget):
        return head.classes[int(value)]
    return float(value[0]) if len(value) == 1 else value.tolist()


def drawn(there: Bool[Tensor, "B C"], rows: NDArray[np.int64]) -> Bool[Tensor, "B C"]:
    """Which cells are hidden: each row's by its number; one that is known stays."""
    u = torch.stack([torch.rand(there.shape[1], generator=stream(0, "hide", int(row))) for row in rows])
    return spared(u.to(there.device) < SHARE, there)


def guessed(model: VAE, feed: StoreFeed, *, seed: int = 0) -> dict[str, dict[str, NDArray]]:
    """What is said of hidden cells: by target ``hidden`` (N,), ``truth``, and :func:`~mapsto.training.imputation.impute`'s."""
    model.eval()
    output = model.output
    assert isinstance(output, VectorOutput)
    ((source, part),) = model.sources.items()
    assert isinstance(part, VectorInput)
    hide = Hide(source, part, output, 0.0)
    parts, cells, truths = [], [], []
    for rows in feed.once():
        batch = feed.batch(rows)
        mask = drawn(batch["target"][KNOWN], rows)
        parts.append((rows, hide.without(batch, mask)))
        cells.append(mask.cpu().numpy())
        truths.append({name: batch["target"][name][:, 0].cpu().numpy() for name in output.names})
    found = impute(model, parts, seed=seed)
    cell = np.concatenate(cells)
    for i, (name, head) in enumerate(output.targets.items()):
        truth = np.concatenate([t[name] for t in truths])
        if isinstance(head, NumberTarget):
            truth = truth.astype(np.float64) * head.scale + head.mean
        found[name] |= {"hidden": cell[:, i], "truth": truth}
    return found


def hidden(
    model: VAE, test: StoreFeed, train: StoreFeed | None, *, seed: int = 0
) -> tuple[dict[str, float], dict[str, dict[str, float | None]]]:
    """How well cells are guessed that are known and were hidden, a tenth of them; and how well by simple models.

    ``imputation_rmse`` in the training rows' deviations, ``imputation_coverage``, the share of numbers that lie in their
    interval of 0.95, and ``imputation_accuracy`` of labels.
    """
    output = model.output
    assert isinstance(output, VectorOutput)
    found = guessed(model, test, seed=seed)
    apart, inside, right = [], [], []
    for name, head in output.targets.items():
        f = {k: v[found[name]["hidden"]] for k, v in found[name].items()}
        if isinstance(head, NumberTarget):
            apart.append((f["value"] - f["truth"]) / head.scale)
            inside.append((f["low"] <= f["truth"]) & (f["truth"] <= f["high"]))
        else:
            right.append(f["value"] == f["truth"])
    metrics = {}
    for name, values, how in (
        ("imputation_rmse", apart, _root),
        ("imputation_coverage", inside, np.mean),
        ("imputation_accuracy", right, np.mean),
    ):
        joined = np.concatenate([v.reshape(-1) for v in values]) if values else np.zeros(0)
        if joined.size:
            metrics[name] = float(how(joined))
    return metrics, {} if train is None else _beside(output, train, test)


def _root(errors: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def _beside(output: VectorOutput, train: StoreFeed, test: StoreFeed) -> dict[str, dict[str, float | None]]:
    """The same hidden numbers by the mean of their column, and by all of each other."""
    single = [isinstance(h, NumberTarget) and len(h.mean) == 1 for h in output.heads]
    if not any(single):
        return {}
    truth = numbers(output, test)
    mask = drawn(known(test), test.rows)[:, torch.tensor(single)]
    left = truth.masked_fill(mask, torch.nan)
    if not mask.any():
        return {}
    found: dict[str, dict[str, float | None]] = {
        "independent columns": {"imputation_rmse": float(truth[mask].square().mean().sqrt())}
    }
    whole = normal(numbers(output, train))
    if whole is not None:
        name = "full covariance" if all(single) else "full covariance of the numbers"
        off = whole.impute(left)[mask] - truth[mask]
        found[name] = {"imputation_rmse": float(off.square().mean().sqrt())}
    return found
