"""What forecasts reach beside simple ones, on the same rows.

    python benchmarks/forecast.py                (about five minutes)
    python benchmarks/forecast.py airline

``waves``: 200 generated series of two seasons and noise of a known size, on levels of their own: the noise is the floor.
``airline``: one series of 144 months, the last fifth of which is the test. ``storms``: tracks, parted by storm; beside them is
what nobody may fall behind, a storm that moves on as it did in its last six hours.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import recipe
from mapsto.tasks.forecast import futures, pasts
from mapsto.tasks.run import Run
from mapsto.training.horizon import ending, steps
from quality import Row, fit, less, main
from sequences import beside


def forecasted(result: Row) -> str:
    """The simple forecasts' errors, and the model's other metrics."""
    metrics = result["metrics"]
    more = ", ".join(f"{name} {metrics[name]:.3f}" for name in ("coverage", "mase", "nll"))
    return f"{beside(result, 'rmse')}; {more}"


def waves() -> list[Row]:
    """Noise of standard deviation 0.5; an oracle that knows the waves has RMSE 0.5."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(200):
        t = rng.uniform(0, 1000) + np.arange(120)
        x = 20 * rng.normal() + 5 * np.sin(2 * np.pi * t / 12) + 2 * np.sin(2 * np.pi * t / 7)
        rows.append({"x": (x + 0.5 * rng.normal(size=len(t))).tolist()})
    _, result = fit({"output.horizon": 12, "train.steps": 80}, rows, inputs=[], targets=["x"])
    return [less("waves, 12 steps: RMSE", result["metrics"]["rmse"], 0.56, result["seconds"], 120, forecasted(result))]


def airline() -> list[Row]:
    """Twelve months ahead."""
    settings = {"output.horizon": 12, "output.history": 24, "data.shares": [0.6, 0.2, 0.2], "train.steps": 100}
    _, result = fit(settings, recipe.airline(), inputs=[], targets=["passengers"])
    others = [v["rmse"] for v in result["baselines"].values()]
    return [
        less(
            "airline, 12 months: RMSE",
            result["metrics"]["rmse"],
            min(others),
            result["seconds"],
            60,
            forecasted(result),
        )
    ]


def storms() -> list[Row]:
    """A day ahead."""
    settings: dict[str, Any] = {"data.group": "storm", "input.relative": False, "train.epochs": 4}
    run, result = fit(settings, recipe.storms(), inputs=["track:series"], targets=["next:series"])
    steady = velocity(run)
    note = f"constant velocity {steady:.4f}, {forecasted(result)}"
    return [less("storms, a day: RMSE in degrees", result["metrics"]["rmse"], steady, result["seconds"], 180, note)]


def velocity(run: Run) -> float:
    """The RMSE of tracks that go on as between their last two fixes: the mean of steps and coordinates."""
    output: Any = run.model.output
    feed = run.feed("test")
    past, true = pasts(run.model, feed), futures(output, feed)
    last = ending(past)
    said = last[:, None] + np.arange(1, output.horizon + 1)[None, :, None] * (last - past[:, -2])[:, None]
    square = [float(np.mean([one["rmse"] or 0.0])) ** 2 for one in steps(said, true)]
    return float(np.sqrt(np.mean(square)))


CLAIMS: dict[str, Callable[[], list[Row]]] = {f.__name__: f for f in (waves, airline, storms)}

if __name__ == "__main__":
    main(__doc__, CLAIMS)
