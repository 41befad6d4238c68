"""Learn maps between collections.

::

    sequence  |                                                  |  label, number
    series    |->  input  ->  encoder  ->  reader  ->  output  ->|  several of them
    image     |    items      attention    queries    likelihood |  one an item
    table     |

    import mapsto
    run = mapsto.fit("reviews.csv", source="text", target="label")
    run.predict(["a slow, lovely film"])
    run.evaluate("test.csv")
    mapsto.load("runs/reviews")

Importing mapsto imports neither torch nor anything else that is slow, and changes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mapsto.tasks.run import Run

__all__ = ["__version__", "fit", "load", "tune_process"]

__version__ = "0.1.0"


def fit(
    data: Any,
    *,
    source: str | Sequence[str] = (),
    target: str | Sequence[str] = (),
    latent: int = 0,
    run: str = "",
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> "Run":
    """Train a map and leave a run folder: the same as ``mapsto train``.

    Args:
        data: a file or folder, a list of dicts, a dict of arrays, or a table of pandas, polars or pyarrow.
        source: columns to map from, each ``name`` or ``name:kind``; by default all that are not the target.
        target: columns to map to; by default the one called label, target, class or y.
        latent: dimensions of a latent variable: an autoencoder is trained, which says its source again; 0: a map.
        run: the run's name; its folder is ``runs/NAME``.
        settings: by ``section.key``, such as ``{"train.epochs": 3}``; ``mapsto config`` lists them all.
        resume: go on with the run of this name, with its own settings; a run on rows in memory needs them again.
        quiet: show nothing.

    Raises:
        MapstoError: something the user can mend; says what.
    """
    from rich.console import Console

    from mapsto.tasks.config import Config, override
    from mapsto.tasks.train import train

    config = Config()
    listed = lambda x: [x] if isinstance(x, str) else list(x)  # noqa: E731
    config.data.inputs, config.data.targets, config.model.latent = listed(source), listed(target), latent
    if isinstance(data, str) or hasattr(data, "__fspath__"):
        config.data.source, data = str(data), None
    config = override(config, [f"{k}={v if isinstance(v, str) else _plain(v)}" for k, v in (settings or {}).items()])
    return train(config, data, name=run, resume=resume, console=Console(stderr=True, quiet=quiet))[0]


def load(folder: str, *, device: str = "auto") -> "Run":
    """Open a finished run: ``mapsto.load("runs/reviews").predict([...])``."""
    from mapsto.tasks.run import load as load_run

    return load_run(folder, device=device)


def tune_process() -> dict[str, Any]:
    """Set up this process for speed (see :func:`mapsto.process.tune_process`); never done unasked."""
    from mapsto.process import tune_process as tune

    return tune()


def _plain(value: Any) -> str:
    import json

    return json.dumps(value)
