"""How good a model is: the metrics of its answers and of what it writes, with intervals, beside simple models."""

from typing import Any

from numpy.typing import NDArray

from mapsto.models.mapper import Mapper
from mapsto.models.vae import VAE
from mapsto.tasks import forecast, latent
from mapsto.tasks.config import Config
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.future import forecasting
from mapsto.tasks.score import Answers, Scores, baselines, score
from mapsto.tasks.written import alone, beside, strategy, transcript
from mapsto.training.parallel import World

__all__ = ["judge"]


def judge(
    model: Mapper,
    config: Config,
    test: StoreFeed,
    known: tuple[StoreFeed, StoreFeed] | None,
    found: Answers | None,
    *,
    groups: NDArray | None = None,
    world: World | None = None,
) -> dict[str, Any]:
    """Judge a model on some rows.

    Args:
        model: the model.
        config: of its run: the seed, and how sequences are searched for.
        test: the rows, with targets.
        known: training and validation rows for the simple models; None leaves them out.
        found: what the model answered for the rows; None of an autoencoder.
        groups: of the rows.
        world: processes that share the work; intervals and simple models are the first one's.

    Returns:
        ``{"metrics", "intervals", "baselines"}``, and ``"signatures"`` and ``"missing"`` of written texts' scores, if there
        are any: what to quote beside a score, and why one is left out; ``"steps"`` of a forecast: the errors of each.
    """
    first = world is None or world.first
    if isinstance(model, VAE):
        return latent.judged(model, config, test, known, resamples=1000 if first else 0, world=world)
    how: dict[str, Any] = {"groups": groups, "seed": config.seed, "resamples": 1000 if first else 0}
    assert found is not None
    series = forecast.forecasts(model)
    if series is not None:
        scores = Scores()
        simple, unit = forecast.beside(model, *known, test) if known is not None and first else ({}, None)
        if forecasting(config):  # the windows of few long series: resampled one by one, whatever series they are of
            how["groups"] = None
        scores.add(forecast.measured(series.head, found, series.name, unit), len(test.rows), **how)
        each = forecast.stepwise(series, found)
        return {"metrics": scores.metrics, "intervals": _listed(scores), "baselines": simple, "steps": each}
    scores = score(model, found, **how)
    writes, notes = alone(model), {}
    if writes is not None and model.names:  # a language model has nothing to write from
        said = transcript(model, test, strategy(config.output), world=world)
        scores.add(said, len(test.rows), **how)
        notes = {k: v for k, v in (("signatures", said.signatures), ("missing", said.missing)) if v}
    simple = {}
    if known is not None and first:
        simple = (baselines if writes is None else beside)(model, *known, test)
    return {"metrics": scores.metrics, "intervals": _listed(scores), "baselines": simple, **notes}


def _listed(scores: Scores) -> dict[str, list[float]]:
    return {name: list(span) for name, span in scores.intervals.items()}
