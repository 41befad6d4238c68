"""Answers as a person reads them: arrays and ids as a dict a row."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapsto.models.mapper import Mapper
from mapsto.models.search import Written
from mapsto.nn.step import StepTarget
from mapsto.nn.target import LabelsTarget, LabelTarget, Target
from mapsto.tasks.score import Answers
from mapsto.tasks.written import written

__all__ = ["readable", "told"]


def readable(model: Mapper, found: Answers, rows: int) -> list[dict[str, Any]]:
    """Arrays as what a person reads, a dict a row."""
    items = model.output.kind in ("items", "series")
    readable: list[dict[str, Any]] = [{} for _ in range(rows)]
    for name, head in model.output.targets.items():
        events = _events(head, found.predicted[name])
        for row, event in zip(found.row.tolist(), events, strict=True):
            for key, value in event.items():
                label = name if key == "value" else f"{name}.{key}"
                if items:
                    readable[row].setdefault(label, []).append(value)
                else:
                    readable[row][label] = value
    return readable


def _events(head: Target, arrays: Mapping[str, NDArray]) -> list[dict[str, Any]]:
    if isinstance(head, LabelTarget):
        p = np.exp(arrays["log_probability"].astype(np.float64))
        return [
            {"value": head.classes[v], "probability": dict(zip(head.classes, row, strict=True))}
            for v, row in zip(arrays["value"].tolist(), p.tolist(), strict=True)
        ]
    if isinstance(head, LabelsTarget):
        return [
            {
                "value": [c for c, yes in zip(head.classes, said, strict=True) if yes],
                "probability": dict(zip(head.classes, row, strict=True)),
            }
            for said, row in zip(arrays["value"].tolist(), arrays["probability"].tolist(), strict=True)
        ]
    single = arrays["value"].shape[-1] == 1
    if isinstance(head, StepTarget):
        columns = {k: (v[:, 0] if single else v).tolist() for k, v in arrays.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [
        {"value": v[0] if single else v, "sigma": s[0] if single else s}
        for v, s in zip(arrays["value"].tolist(), arrays["sigma"].tolist(), strict=True)
    ]


def told(model: Mapper, found: list[list[Written]]) -> list[dict[str, Any]]:
    """Written sequences as what a person reads, a dict a row."""
    output = written(model)
    rows: list[dict[str, Any]] = []
    for lines in found:
        texts = [(output.vocabulary.decode(line.ids), line.log_probability) for line in lines]
        row: dict[str, Any] = {output.name: texts[0][0], f"{output.name}.log_probability": texts[0][1]}
        if len(texts) > 1:
            row[f"{output.name}.best"] = [{"value": text, "log_probability": log_p} for text, log_p in texts]
        rows.append(row)
    return rows
