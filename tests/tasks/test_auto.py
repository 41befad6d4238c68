"""attention=auto: what is timed decides, by the work of all rows, once, and is written down."""

import io
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from mapsto.errors import ConfigError
from mapsto.tasks import crossover
from mapsto.tasks.config import Config, override, read_config
from mapsto.tasks.crossover import Crossover, choose, race
from mapsto.tasks.folds import train_folds
from mapsto.tasks.plan import settle, sized
from mapsto.tasks.train import train

QUIET = Console(quiet=True)


def shaped(calls):
    """A timer that knows the work of each call: softmax L² seconds a row, favor 300 L."""

    def timer(call):
        kind, batch, _, length = call.__closure_values__
        calls.append((kind, length))
        return batch * (length**2 if kind == "SoftmaxAttention" else 300 * length)

    return timer


@pytest.fixture
def known(monkeypatch):
    """Calls that say what they are instead of computing."""

    def call(kind, batch, heads, length, *_):
        made = lambda: None  # noqa: E731
        made.__closure_values__ = (type(kind).__name__, batch, heads, length)
        return made

    monkeypatch.setattr(crossover, "_call", call)


def test_the_crossover_of_known_times_is_found(known):
    calls = []
    found = race(4, 16, longest=4096, timer=shaped(calls))
    assert found.lengths[0] == 64
    assert found.lengths[-1] == 4096
    assert found.length == pytest.approx(300, rel=0.02)
    np.testing.assert_allclose(found.cost("softmax", [100, 5000]), [100**2, 5000**2], rtol=1e-6)
    np.testing.assert_allclose(found.cost("favor", [10, 100, 10**6]), [300 * 10, 300 * 100, 300 * 10**6], rtol=1e-6)
    assert {kind for kind, _ in calls} == {"SoftmaxAttention", "FavorAttention"}


def test_short_data_are_timed_up_to_five_hundred_items_and_long_ones_extrapolated(known):
    assert race(4, 16, longest=100, timer=shaped([])).lengths[-1] == 512
    assert race(4, 16, longest=10**6, timer=shaped([])).lengths[-1] == 1 << 14
    one = Crossover([64, 128], [1.0, 4.0], [8.0, 16.0])
    assert one.length == pytest.approx(512, rel=0.02)
    assert Crossover([64], [1.0], [1e9]).length == math.inf
    assert Crossover([64], [1.0], [0.5]).length == 64


def test_both_kinds_are_really_timed_forward_and_backward():
    for causal in (False, True):
        found = race(2, 8, causal=causal, longest=64, budget=0.05)
        assert min(*found.softmax, *found.favor) > 0
        assert len(found.lengths) == len(found.softmax) == len(found.favor) >= 1


def decided(monkeypatch, lengths, found, **settings):
    monkeypatch.setattr(crossover, "race", lambda *a, **k: found)
    monkeypatch.setattr(crossover, "lengths", lambda dataset: np.array(lengths))
    config = override(Config(), ["model.attention=auto", "model.dim=32", "model.heads=2"])
    config = override(config, [f"{k}={v}" for k, v in settings.items()])
    return choose(config, SimpleNamespace(schema=SimpleNamespace(inputs=[1])), device=torch.device("cpu"))


CROSS = Crossover([64, 128, 1024, 2048], [64.0**2, 128.0**2, 1024.0**2, 2048.0**2], [64e3, 128e3, 1024e3, 2048e3])


def test_the_work_decides_and_not_the_mean_length(monkeypatch):
    rows = [100] * 990 + [4000] * 10  # a mean of 139, far below the crossover of 1,000; most work is in ten rows
    config, line = decided(monkeypatch, rows, CROSS)
    assert np.mean(rows) < 1000
    assert config.model.attention == "favor:256"
    ratio = (990 * 100e3 + 10 * 4000e3) / (990 * 100**2 + 10 * 4000**2)
    assert f"favor:256 takes {ratio:.2f} of the time" in line
    assert "100 to 4 000 items a row" in line
    assert "from about 1 000 items on" in line
    config, line = decided(monkeypatch, [100] * 999 + [1500], CROSS)
    assert config.model.attention == "softmax"
    assert "would take 8.3 times as long" in line


def test_a_kind_that_never_wins_is_said_so(monkeypatch):
    config, line = decided(monkeypatch, [100], Crossover([64, 128], [1.0, 1.0], [1e9, 1e9]))
    assert config.model.attention == "softmax"
    assert "never faster" in line


def test_nothing_is_timed_for_short_rows_and_positions_with_a_bias(monkeypatch):
    config, line = decided(monkeypatch, [5, 63], None)  # timing would fail: there is no Crossover
    assert config.model.attention == "softmax"
    assert "at most 63 items" in line
    config, line = decided(monkeypatch, [5000], None, **{"model.position": "alibi"})
    assert config.model.attention == "softmax"
    assert "alibi adds to its logits" in line


def test_a_memory_in_the_place_of_attention_has_nothing_to_choose(monkeypatch):
    with pytest.raises(ConfigError, match=r"model.mixer=gated.*Leave out model.attention=auto"):
        decided(monkeypatch, [5000], None, **{"model.mixer": "gated"})


def test_a_kind_that_was_named_stays(monkeypatch):
    config, line = decided(monkeypatch, [5000], None, **{"model.attention": "favor:64"})
    assert (config.model.attention, line) == ("favor:64", "")


class World:
    """One of several processes, that is told what the first found."""

    first, size, sharded = False, 2, False

    def __init__(self, sent):
        self.sent = sent

    def share(self, data, *, starting=False):
        assert data == b""
        return [self.sent, b""]


def test_other_processes_follow_the_first(monkeypatch):
    monkeypatch.setattr(crossover, "race", None)
    config = override(Config(), ["model.attention=auto", "model.dim=32", "model.heads=2"])
    world = World(b'["favor:256", "because"]')
    config, line = choose(config, SimpleNamespace(), device=torch.device("cpu"), world=world)
    assert config.model.attention == "favor:256"
    assert line.endswith("auto: because")


def words(path, length=100, rows=60):
    lines = [f"{'ab' if i % 2 else 'cd'}{'xyz'[i % 3] * length}{i},{'pos' if i % 2 else 'neg'}" for i in range(rows)]
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    config = override(Config(), ["size=xs", "model.depth=1", "train.steps=2", "model.attention=auto"])
    config.data.source, config.data.inputs, config.data.targets = str(path), ["text:sequence"], ["label"]
    return override(config, ["input.vocabulary=characters"])


def test_the_choice_is_written_down_and_not_made_again(tmp_path, monkeypatch):
    calls = []
    wins = Crossover([64, 128], [2.0, 8.0], [1.0, 2.0])
    monkeypatch.setattr(crossover, "race", lambda *a, **k: (calls.append(k["longest"]), wins)[1])
    stream = io.StringIO()
    config = words(tmp_path / "a.csv")
    run, _ = train(config, name="one", console=Console(file=stream, width=300), root=tmp_path)
    assert len(calls) == 1
    assert calls[0] > 100
    kept = read_config(run.folder / "config.yaml")
    assert kept.model.attention == "favor:256"
    assert kept.model.normalise is True
    assert stream.getvalue().count("attention     auto: favor:256 takes") == 1
    train(Config(), name="one", resume=True, console=QUIET, root=tmp_path)
    run.evaluate()
    assert len(calls) == 1


def test_all_folds_get_what_the_first_chose(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = []
    answers = [Crossover([64], [2.0], [1.0]), Crossover([64], [1.0], [2.0])]
    monkeypatch.setattr(crossover, "race", lambda *a, **k: (calls.append(1), answers[len(calls) - 1])[1])
    config = override(words(tmp_path / "a.csv", rows=90), ["data.folds=2"])
    runs, _ = train_folds(config, name="folds", console=QUIET)
    assert [run.config.model.attention for run in runs] == ["favor:256"] * 2
    assert len(calls) == 1
    assert config.model.attention == "auto"


def test_sizes_are_settled_before_and_the_rest_after(tmp_path):
    split = SimpleNamespace(rows=lambda part: np.arange(500))
    data = SimpleNamespace(split=split, schema=SimpleNamespace(inputs=[1]))
    config = sized(Config(), data)
    assert (config.model.dim, config.model.heads, config.train.lr) == (32, 2, 0)
    assert settle(config, data) == settle(Config(), data)


def test_a_kind_that_is_none_is_still_refused():
    with pytest.raises(ConfigError, match='Did you mean "favor"'):
        override(Config(), ["model.attention=favour"])
