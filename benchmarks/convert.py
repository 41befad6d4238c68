"""A converted softmax model starts worse and recovers in a small share of its steps: the claim of the Performer paper.

    python benchmarks/convert.py [--demo peptides] [--attention favor:256] [--shares 1 2 5 10] [--epochs N] [--run RUN]

Trains the demo with softmax attention (or takes a finished run), converts it plainly and with normalised queries and
keys, fine-tunes each for every share of its steps, and prints the test metrics of all stages. A control starts from
nothing and trains with the new attention for as many steps as the largest share.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from mapsto.process import tune_process
from mapsto.tasks.config import Config, override
from mapsto.tasks.convert import convert
from mapsto.tasks.demo import demo
from mapsto.tasks.run import load
from mapsto.tasks.train import train

QUIET = Console(quiet=True)


def configured(name: str, epochs: float) -> Config:
    chosen = demo(name)
    config = override(Config(), [f"{k}={json.dumps(v)}" for k, v in chosen.settings.items()])
    config.data.source, config.data.inputs, config.data.targets = f"demo:{name}", chosen.inputs, chosen.targets
    return override(config, [f"train.epochs={epochs}"]) if epochs else config


def line(what: str, steps: int, metrics: dict, names: list[str], worst: float | None = None) -> None:
    cells = "".join(f"{metrics[n]:>12.4f}" for n in names)
    more = "" if worst is None else f"{worst:>14.0%}"
    print(f"{what:<34}{steps:>7}{cells}{more}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", default="peptides")
    parser.add_argument("--attention", default="favor:256")
    parser.add_argument("--shares", nargs="*", type=float, default=[1, 2, 5, 10])
    parser.add_argument("--epochs", type=float, default=0)
    parser.add_argument("--run", type=Path, help="a finished softmax run, instead of training one")
    parser.add_argument("--plain", action="store_true", help="without the normalised conversions")
    given = parser.parse_args()
    tuned = tune_process()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if given.run:
            shutil.copytree(given.run, root / "softmax")
            base = load(root / "softmax")
        else:
            config = configured(given.demo, given.epochs)
            base = train(config, name="softmax", console=QUIET, root=root, tuned=tuned)[0]
        steps, before = base.config.train.steps, base.result["metrics"]
        names = [n for n in ("accuracy", "rmse", "nll") if before.get(n) is not None]
        print(f"{base.config.data.source}: softmax -> {given.attention}, {steps} steps of training before")
        print(f"{'':<34}{'steps':>7}" + "".join(f"{n:>12}" for n in names) + f"{'worst head':>14}")
        line("softmax", steps, before, names)
        for normalise in (False,) if given.plain else (False, True):
            kind = given.attention + (", normalised" if normalise else "")
            shown = False
            for share in given.shares:
                typed = {"normalise": normalise, "tune": f"{share}%", "name": f"{normalise}-{share}", "tuned": tuned}
                _, result = convert(base.folder, given.attention, **typed)
                if not shown:
                    worst = max(one["error"] for one in result["layers"])
                    line(f"{kind}: right after", 0, result["metrics"]["converted"], names, worst)
                    shown = True
                line(f"{kind}: after {share:g} %", result["steps"], result["metrics"]["tuned"], names)
        config = override(base.config, [f"model.attention={given.attention}", "model.normalise=null", "init="])
        config.train.steps = max(1, round(max(given.shares, default=10) / 100 * steps))
        control = train(config, name="control", console=QUIET, root=root, tuned=tuned)[1]
        line(f"{given.attention}: from nothing", config.train.steps, control["metrics"], names)


if __name__ == "__main__":
    main()
