"""How a run is to go, fixed before its first step, and how far it has come."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from mapsto.errors import ModelFileError

__all__ = ["Plan", "Progress"]


@dataclass(frozen=True)
class Plan:
    """How to train; all numbers are fixed before the first step.

    Attributes:
        steps: optimiser steps in all.
        lr: the peak of the learning rate.
        warmup: steps of linear warm-up.
        weight_decay: of AdamW, on matrices only.
        clip: largest norm of the gradient; 0 is no limit.
        average: decay of the averaged weights; 0 keeps none.
        accumulate: micro-batches a step, over all processes.
        evaluate_every: steps between evaluations.
        save_every: steps between checkpoints; 0 is at evaluations and every minute, in at most 5 % of the time.
        patience: evaluations without a better validation loss before training ends early; 0 never ends it.
        seed: of the noise in training.
        bfloat16: compute in bfloat16 where that is safe (autocast); weights and sums stay in float32.
        workers: threads that gather batches ahead; 0 gathers each when it is needed.
    """

    steps: int
    lr: float
    warmup: int
    weight_decay: float = 0.01
    clip: float = 1.0
    average: float = 0.99
    accumulate: int = 1
    evaluate_every: int = 100
    save_every: int = 0
    patience: int = 0
    seed: int = 0
    bfloat16: bool = False
    workers: int = 0


@dataclass
class Progress:
    """Where a run is: all of a checkpoint's state that is not a tensor.

    Attributes:
        step: optimiser steps done.
        epoch: the epoch of the next micro-batch.
        index: the next micro-batch within its epoch.
        best: the lowest validation loss so far.
        best_step: the step it was reached at.
        waited: evaluations since then.
        bad: steps in a row that were skipped.
        loss: sum of the losses since the last evaluation.
        count: sum of the counts since the last evaluation.
    """

    step: int = 0
    epoch: int = 0
    index: int = 0
    best: float | None = None
    best_step: int = 0
    waited: int = 0
    bad: int = 0
    loss: float = 0.0
    count: float = 0.0

    @classmethod
    def of(cls, state: Mapping[str, Any], step: int) -> "Progress":
        """The progress in a checkpoint's state.

        Raises:
            ModelFileError: it is not what this version writes at that step.
        """
        content = state.get("progress")
        if not isinstance(content, dict) or set(content) != {field.name for field in fields(cls)}:
            raise ModelFileError(f"the state of step {step} is of another version of mapsto")
        for name, value in content.items():
            number = int | float if name in ("best", "loss", "count") else int
            if not isinstance(value, number) and not (name == "best" and value is None):
                raise ModelFileError(f"the state of step {step}: {name} is {value!r:.60}")
        if content["step"] != step:
            raise ModelFileError(f"the state of step {step} is of step {content['step']}")
        return cls(**content)
