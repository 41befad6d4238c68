"""The learning rate as a pure function of the step: nothing to save, nothing to jump on resume."""

import math

__all__ = ["average_decay", "learning_rate"]


def learning_rate(step: int, *, peak: float, warmup: int, steps: int, floor: float = 0.01) -> float:
    """Linear warm-up, then half a cosine down to ``floor`` times the peak.

    η(t) = peak · (t+1)/warmup for t < warmup, then
    peak · (floor + (1 − floor) · ½(1 + cos π (t − warmup)/(steps − warmup))).

    Example:
        >>> [round(learning_rate(t, peak=1.0, warmup=2, steps=6, floor=0.0), 3) for t in range(6)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))


def average_decay(step: int, decay: float) -> float:
    """Decay of the averaged weights at a step: min(decay, (1 + t)/(10 + t)), so that the start is soon forgotten."""
    return min(decay, (1 + step) / (10 + step))
