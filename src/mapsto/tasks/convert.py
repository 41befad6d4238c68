"""The verb ``convert``: a trained model with another kind of attention, in a run of its own."""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from mapsto import disk, document, kinds
from mapsto.attention import Attention
from mapsto.errors import ConfigError, ModelFileError
from mapsto.models.mapper import Mapper
from mapsto.tasks.build import build, save_model
from mapsto.tasks.card import model_card
from mapsto.tasks.config import Config
from mapsto.tasks.dataset import Measured
from mapsto.tasks.environment import environment
from mapsto.tasks.honesty import Trust, some, trust
from mapsto.tasks.pictures.text import visible
from mapsto.tasks.run import Run, load
from mapsto.tasks.runfolder import RunFolder
from mapsto.tasks.score import Scores, answer, score
from mapsto.tasks.train import train
from mapsto.tasks.transfer import Shift, shifts, transfer
from mapsto.tasks.verdict import shown, word
from mapsto.tasks.watch import RunWatcher, amount
from mapsto.training.parallel import World, joined

__all__ = ["convert"]

EVALUATIONS = 8  # of a fine-tuning
GENTLE = 0.1  # of the run's learning rate: with all of it, the first steps undo what was learned
TIMEOUT = 300.0


def convert(
    run: Path,
    attention: str,
    *,
    normalise: bool = False,
    tune: str = "",
    name: str = "",
    device: str = "auto",
    console: Console | None = None,
    tuned: dict[str, Any] | None = None,
) -> tuple[Run, dict[str, Any]]:
    """Give a trained model another kind of attention: all weights stay, only how heads mix values changes.

    The run is not touched; the new one stands beside it, and its ``init`` names it.

    Args:
        run: the folder of a finished run.
        attention: the new kind, such as ``favor:256``, ``window:128`` or ``softmax``.
        normalise: normalise queries and keys, too, which takes fine-tuning.
        tune: train on, on the run's own data and settings: for so many steps (``200``), or for a share of the steps
            that the run was trained for (``5%``).
        name: of the new run; by default that of the old with the kind behind it.
        device: where to compute.
        console: where to show progress; None shows nothing.
        tuned: what was set for the whole process (:func:`mapsto.process.tune_process`).

    Returns:
        The new run, and ``{"run", "from", "attention", "normalise", "layers", "metrics", "intervals", "steps", "share",
        "seconds"}``: ``layers`` has the error of each head right after, ``metrics`` those of the test part ``before``,
        ``converted`` and, if so, ``tuned``.

    Raises:
        ConfigError: what cannot be; says what to type.
        ModelFileError: no finished run.
    """
    began = time.perf_counter()
    with joined(TIMEOUT) as world:
        console = console if console is not None and world.first else Console(quiet=True)
        old = load(run, device=device)
        if old.config.model.latent:
            raise ConfigError(
                f"{run} is an autoencoder, and maps are converted.   Train it anew with model.attention={attention}"
            )
        if not (run / "result.json").is_file():
            raise ModelFileError(f"{run} is not finished.   Go on with --resume --run {run.name}")
        steps = _steps(tune, old.config.train.steps)
        config = _settings(old, attention, normalise, steps, run)
        model = _changed(old, config)
        test = old.feed("test")
        batch = some(test, seed=config.seed)
        if batch is None:
            raise ConfigError(f"{run} has no test rows, so nothing can be said of what the change does")
        console.print(Text(visible(f"{run}    {_title(old.config)} -> {_title(config)}")), soft_wrap=True)
        judged = trust(model, batch, seed=config.seed)
        found = shifts(model, old.model, batch)
        scores = {"before": _score(old, old.model, world), "converted": _score(old, model, world)}
        lines = [*_layers(found, judged)]
        for line in lines:
            console.print(Text(line), soft_wrap=True)
        name = name or f"{run.name}-{attention.partition(':')[0]}"
        if steps:
            new, ended = train(config, name=name, root=run.parent, console=console, tuned=tuned, world=world)
            scores["tuned"] = Scores()
            scores["tuned"].metrics, scores["tuned"].intervals = ended["metrics"], ended["intervals"]
        else:
            new = _leave(old, model, config, run.parent / name, scores["converted"], world, tuned or {}, began)
        share = steps / max(1, old.config.train.steps)
        result = {
            "run": str(new.folder),
            "from": str(run),
            "attention": {"before": old.config.model.attention, "after": config.model.attention},
            "normalise": bool(config.model.normalise),
            "layers": _joined(found, judged),
            "metrics": {stage: one.metrics for stage, one in scores.items()},
            "intervals": {stage: {k: list(v) for k, v in one.intervals.items()} for stage, one in scores.items()},
            "steps": steps,
            "share": round(share, 6),
            "seconds": round(time.perf_counter() - began, 2),
        }
        said = [*_stages(scores, steps, share), *_advice(run, attention, judged, steps, config), f"saved {new.folder}"]
        for line in said:
            console.print(Text(visible(line)), soft_wrap=True)
        if world.first:
            _keep(new.folder, result, [*lines, *said])
        return new, result


def _steps(tune: str, before: int) -> int:
    """Steps of fine-tuning."""
    share = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", tune)
    if not tune:
        return 0
    if share is not None:
        steps = math.ceil(float(share[1]) / 100 * before)
    else:
        steps = int(tune) if re.fullmatch(r"[0-9]{1,12}", tune) else 0
    if steps < 1:
        raise ConfigError(f"--tune {tune}: expected steps such as 200, or a share of the run's {before} such as 5%")
    return steps


def _settings(old: Run, attention: str, normalise: bool, steps: int, path: Path) -> Config:
    """The new run's config; refuses what cannot be."""
    config = old.config.model_copy(deep=True)
    was = config.model.attention
    if config.model.mixer != "attention":
        raise ConfigError(f"{path} has a {config.model.mixer} memory in the place of attention: nothing to convert")
    if attention == "auto":
        raise ConfigError("--attention auto: say which kind to convert to, such as favor:256")
    kind, before = _kind(attention), _kind(was)
    typed = f"mapsto convert {path} --attention {attention}"
    if normalise and config.model.normalise:
        raise ConfigError(f"{path} has normalised queries and keys already.   {typed}")
    if type(kind) is type(before) and kind.settings() == before.settings() and not normalise:
        raise ConfigError(f"{path} has {was} attention already: there is nothing to convert")
    if normalise and not steps:
        raise ConfigError(
            f"--normalise changes what every head computes, so the model must be trained on.   {typed} --normalise --tune 5%"
        )
    config.model.attention, config.model.normalise = attention, bool(config.model.normalise) or normalise
    config.init, config.time = str(path.resolve()), ""
    if steps:
        t = config.train
        t.epochs = max(0.001, round(t.epochs * steps / max(1, t.steps), 3))
        t.lr, t.warmup = GENTLE * t.lr, max(t.warmup, 0.1)
        t.steps, t.patience, t.evaluate_every = steps, 0, max(1, math.ceil(steps / EVALUATIONS))
    return config


def _kind(text: str) -> Attention:
    made: Attention = kinds.make("attention", text)
    return made


def _changed(old: Run, config: Config) -> Mapper:
    """The model with the new kind and the old weights."""
    measured = Measured([part.settings() for part in old.model.sources.values()], old.model.output.settings())
    model = build(old.schema, measured, config.model, seed=config.seed).to(old.device)
    transfer(model, old.model, some(old.feed("train"), seed=config.seed))
    return model.eval()


def _score(run: Run, model: Mapper, world: World) -> Scores:
    test, groups = run.feed("test"), run.dataset().groups
    found = answer(model, test, world=world)
    groups = None if groups is None else groups[test.owners]
    return score(model, found, groups=groups, seed=run.config.seed, resamples=1000 if world.first else 0)


def _leave(
    old: Run,
    model: Mapper,
    config: Config,
    path: Path,
    scores: Scores,
    world: World,
    tuned: dict[str, Any],
    began: float,
) -> Run:
    """The new run's folder, of a model that was not trained on."""
    data = old.dataset()
    folder = ""
    if world.first:
        known = {**environment(tuned), "device": str(old.device), "processes": world.size, "data": data.facts()}
        place = RunFolder.new(path, config, known)
        try:
            new = Run(place.path, model, old.schema, config, data)
            result = {
                "run": str(place.path),
                "metrics": scores.metrics,
                "intervals": {k: list(v) for k, v in scores.intervals.items()},
                "baselines": old.result["baselines"],  # of the same rows
                "seconds": round(time.perf_counter() - began, 2),
            }
            save_model(place.path / "model", model, old.schema, config.model, model_card(new, result))
            disk.replace(place.path / "result.json", document.dump(result))
        except OSError as error:
            raise disk.full(place.path, error) from None
        finally:
            place.close()
        folder = str(place.path)
    folder = world.share(folder.encode())[0].decode()
    return Run(Path(folder), model, old.schema, config, data)


def _keep(folder: Path, result: Mapping[str, Any], lines: Sequence[str]) -> None:
    watcher = RunWatcher(folder, Console(quiet=True))
    try:
        disk.replace(folder / "conversion.json", document.dump(result))
        for line in lines:
            watcher.log(line)
        watcher.positions()
    except OSError as error:
        raise disk.full(folder, error) from None


def _title(config: Config) -> str:
    return config.model.attention + (", normalised" if config.model.normalise else "")


def _joined(found: Sequence[Shift], judged: Sequence[Trust]) -> list[dict[str, Any]]:
    known = {(one.layer, one.head): one for one in judged}
    return [
        asdict(one)
        | (
            {}
            if (t := known.get((one.layer, one.head))) is None
            else {k: v for k, v in asdict(t).items() if k != "layer"}
        )
        for one in found
    ]


def _layers(found: Sequence[Shift], judged: Sequence[Trust]) -> list[str]:
    """A line a layer: how far its heads' answers moved, and what theory says of favor's weights."""
    width = max([5, *(len(one.layer) for one in found)])
    theory = "   variance of a weight (predicted, worst head)" if judged else ""
    lines = [f"{'layer':<{width}}   answers moved by   worst head{theory}"]
    for layer in dict.fromkeys(one.layer for one in found):
        errors = {one.head: one.error for one in found if one.layer == layer}
        worst = max(errors, key=lambda head: errors[head])
        mean = sum(errors.values()) / len(errors)
        said = max((one.predicted for one in judged if one.layer == layer), default=None)
        more = "" if said is None else f"   {said:.2g}{'   ! more noise than weight' if said > 1 else ''}"
        lines.append(f"{layer:<{width}}   {mean:>16.1%}   {f'{worst}: {errors[worst]:.1%}':>10}{more}")
    return lines


def _stages(scores: Mapping[str, Scores], steps: int, share: float) -> list[str]:
    """The test part's metrics, a line a stage."""
    names = [n for n, v in scores["before"].metrics.items() if v is not None][:6]
    widths = [max(9, len(word(n))) for n in names]
    lines = ["test        " + "   ".join(f"{word(n):>{w}}" for n, w in zip(names, widths, strict=True))]
    for stage, one in scores.items():
        cells = "   ".join(f"{shown(one.metrics.get(n)):>{w}}" for n, w in zip(names, widths, strict=True))
        after = f"   after {amount(steps)} steps, {share:.1%} of the run's own" if stage == "tuned" else ""
        lines.append(f"{stage:<12}{cells}{after}")
    return lines


def _advice(run: Path, attention: str, judged: Sequence[Trust], steps: int, config: Config) -> list[str]:
    """What to type where the new attention cannot be trusted and nothing was done about it."""
    worst = max((one.doubt for one in judged), default=0.0)
    if steps or worst <= 1:
        return []
    more = "" if config.model.normalise else " --normalise"
    return [
        "note: the features are too few for these queries and keys.   "
        f"mapsto convert {run} --attention {attention}{more} --tune 5%"
    ]
