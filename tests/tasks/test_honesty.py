"""Favor attention is judged by formulas written out here, and is doubted once and only when it deserves it."""

import io
import json
import math

import pytest
import torch
from rich.console import Console

from mapsto.attention.favor import FavorAttention
from mapsto.inputs.sequence import SequenceInput
from mapsto.models.mapper import Mapper
from mapsto.nn.initial import initialise
from mapsto.nn.pool import MeanPool
from mapsto.nn.transformer import Encoder
from mapsto.outputs.vector import VectorOutput
from mapsto.stream import stream
from mapsto.tasks.check import check_run
from mapsto.tasks.config import Config, override
from mapsto.tasks.evaluate import evaluate
from mapsto.tasks.honesty import MEASURED, PREDICTED, Doubt, Trust, cures, listed, place, trust, warning
from mapsto.tasks.pictures.gallery import gallery
from mapsto.tasks.train import train
from mapsto.tasks.watch import RunWatcher
from mapsto.vocabulary import Bytes

DIM, HEADS = 16, 2


def mapper(attention=None, *, normalise=False, depth=2, scale=1.0, causal=False):
    encoder = Encoder(DIM, depth, HEADS, attention=attention or FavorAttention(64), normalise=normalise)
    targets = {"y": {"kind": "label", "classes": ["a", "b"]}}
    inputs = {"text": SequenceInput(DIM, vocabulary=Bytes())}
    model = Mapper(inputs, encoder, MeanPool(), VectorOutput(DIM, targets=targets))
    initialise(model, 0)
    for block in encoder.blocks:
        block.attention.qkv.weight.data[: 2 * DIM] *= scale
    return model.eval()


def batch(rows=5, length=13, seed=0):
    source = stream(seed, "test")
    lengths = torch.randint(1, length + 1, (rows,), generator=source)
    lengths[0] = length
    return {
        "text": {
            "ids": torch.randint(0, 200, (rows, length), generator=source),
            "valid": torch.arange(length) < lengths[:, None],
        }
    }


def captured(model, given):
    """What every favor module was asked and answered."""
    calls = []
    hooks = [
        m.register_forward_hook(lambda m, args, seen, out: calls.append((m, *args, seen, out)), with_kwargs=True)
        for m in model.modules()
        if isinstance(m, FavorAttention)
    ]
    with torch.no_grad():
        model.answers(given)
    for hook in hooks:
        hook.remove()
    return calls


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("feature", ["positive", "hyperbolic", "optimal"])
def test_what_is_reported_equals_the_formulas_over_all_pairs(scale, feature):
    model, given = mapper(FavorAttention(32, feature=feature), scale=scale), batch()
    found = trust(model, given, queries=10_000, keys=10_000)
    assert [(one.layer, one.head) for one in found] == [(f"encoder {n}", h) for n in (1, 2) for h in (1, 2)]
    for layer, (module, q, k, v, seen, out) in enumerate(captured(model, given)):
        assert int(seen["valid"].sum()) < seen["valid"].numel()
        width, valid = q.shape[-1], seen["valid"]
        for head in range(HEADS):
            variances, off, size = [], 0.0, 0.0
            for b in range(len(q)):
                n = int(valid[b].sum())
                for l in range(n):
                    logits = (k[b, head, :n].double() @ q[b, head, l].double()) / math.sqrt(width)
                    exact = torch.softmax(logits, 0) @ v[b, head, :n].double()
                    off += float((out[b, head, l].double() - exact).square().sum())
                    size += float(exact.square().sum())
                    z = (q[b, head, l] + k[b, head, :n]).double().square().sum(-1) / math.sqrt(width)
                    variances += [relative_variance(x, module, width) for x in z.tolist()]
            one = found[layer * HEADS + head]
            logs = torch.tensor(variances, dtype=torch.float64).log()  # a percentile between two pairs, in logs
            low, high = logs.quantile(torch.tensor([0.5, 0.95]).double()).exp()
            assert one.predicted == pytest.approx(float(low), rel=1e-3)
            assert one.predicted_95 == pytest.approx(float(high), rel=1e-3)
            assert one.measured == pytest.approx(math.sqrt(off / size), rel=1e-3)


def relative_variance(z, module, width):
    if module.feature == "positive":
        return (math.exp(z) - 1) / module.features
    if module.feature == "hyperbolic":
        return (math.cosh(z) - 1) / module.features
    norm = math.sqrt(width)
    rho = (math.sqrt((2 * norm + width) ** 2 + 8 * width * norm) - 2 * norm - width) / (4 * norm)
    a = (1 - 1 / rho) / 8
    return ((1 - 4 * a) ** width * (1 - 8 * a) ** (-width / 2) * math.exp(z / (1 - 8 * a)) - 1) / module.features


def test_a_sample_is_near_the_whole_and_always_the_same():
    model, given = mapper(scale=2.0), batch(rows=8, length=60)
    whole, part, again = (
        trust(model, given, **limits)
        for limits in ({"queries": 10_000, "keys": 10_000}, {"queries": 200}, {"queries": 200})
    )
    assert part == again
    for one, other in zip(whole, part, strict=True):
        assert other.predicted == pytest.approx(one.predicted, rel=0.35)
        assert other.measured == pytest.approx(one.measured, rel=0.35)


def test_causal_pairs_segments_and_decay_are_those_that_are_seen():
    source = stream(3, "test")
    q, k, v = (torch.randn(2, 2, 9, 8, generator=source) for _ in range(3))
    module = FavorAttention(4096, feature="positive")
    segment = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 2, 2, 2]])
    decay = -torch.rand(2, 2, 9, generator=source)
    seen = {"causal": True, "segment": segment, "decay": decay}

    class Asked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = module

        def answers(self, given):
            return self.attention(q * 0.5, k * 0.5, v, **seen)

    # With so many features the estimate is good, so the exact answers must be those of the same pairs and weights.
    assert max(one.measured for one in trust(Asked(), {}, queries=1000, keys=1000)) < 0.1
    out, variances = module(q, k, v, **seen), []
    for head in range(2):
        pairs = [(b, l, m) for b in range(2) for l in range(9) for m in range(l + 1) if segment[b, l] == segment[b, m]]
        z = [float((q[b, head, l] + k[b, head, m]).square().sum()) / 8**0.5 / 4 for b, l, m in pairs]
        variances.append(float(torch.tensor([(math.exp(x) - 1) / 4096 for x in z]).quantile(0.5)))
    found = trust(Asked(), {}, queries=1000, keys=1000)
    assert [one.predicted for one in found] == pytest.approx(variances, rel=1e-3)
    assert out.isfinite().all()


def test_kinds_that_approximate_nothing_are_not_judged():
    assert trust(mapper(FavorAttention(16, feature="relu")), batch()) == []
    from mapsto.attention.softmax import SoftmaxAttention

    assert trust(mapper(SoftmaxAttention()), batch()) == []


def test_judging_leaves_the_model_as_it_was():
    model = mapper().train()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    trust(model, batch())
    assert model.training
    assert not any(m._forward_hooks for m in model.modules())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


class Rows:
    """A feed of one batch."""

    def __init__(self, given):
        import numpy as np

        self.given, self.rows, self.tokens = given, np.arange(len(given["text"]["ids"])), 1 << 20
        self.lengths = given["text"]["valid"].sum(1).numpy()

    def batch(self, rows):
        return {"text": {n: t[rows] for n, t in self.given["text"].items()}}


def told(model, times=3):
    stream = io.StringIO()
    doubt = Doubt(model, Rows(batch()), RunWatcher(None, Console(file=stream, width=400)))
    for _ in range(times):
        doubt.check()
    return stream.getvalue()


def test_the_warning_comes_once_and_only_when_deserved():
    assert told(mapper(FavorAttention(256), scale=0.2)) == ""
    text = told(mapper(FavorAttention(256), scale=8.0))
    assert text.count("warning: favor attention cannot be trusted") == 1
    assert "encoder " in text
    assert "head " in text
    assert text.rstrip().endswith("Type one of: model.normalise=true, model.attention=softmax")


def test_normalised_attention_begins_trusted():
    for dim, heads in ((32, 2), (64, 4), (128, 4), (256, 4)):
        encoder = Encoder(dim, 1, heads, attention=FavorAttention(256), normalise=True)
        inputs = {"text": SequenceInput(dim, vocabulary=Bytes())}
        targets = {"y": {"kind": "label", "classes": ["a", "b"]}}
        model = Mapper(inputs, encoder, MeanPool(), VectorOutput(dim, targets=targets))
        initialise(model, 0)
        found = trust(model.eval(), batch(rows=8, length=60))
        assert max(one.doubt for one in found) < 1, found


def test_more_features_are_offered_where_they_help_and_normalisation_where_it_is_not():
    worst = Trust("encoder 1", 2, predicted=3.0, predicted_95=9.0, measured=0.4)
    assert cures(mapper(FavorAttention(64, feature="positive")), worst) == [
        "model.normalise=true",
        "model.attention=favor:256,feature=positive",
        "model.attention=softmax",
    ]
    assert cures(mapper(FavorAttention(64), normalise=True), worst) == [
        "model.attention=favor:256",
        "model.attention=softmax",
    ]
    hopeless = Trust("encoder 1", 2, predicted=1e9, predicted_95=1e30, measured=1.4)
    assert cures(mapper(normalise=True), hopeless) == ["model.attention=softmax"]
    text = warning(mapper(), worst)
    assert "encoder 1, head 2" in text
    assert f"good below {PREDICTED:g}" in text
    assert f"{MEASURED:.0%}" in text


def test_layers_are_counted_as_people_count():
    assert place("reader.blocks.3.attention.attention") == "reader 4"
    assert place("reader.blocks.3.cross.attention") == "reader 4 cross"
    assert place("other.attention") == "other"
    lines = listed([Trust("encoder 1", 1, 0.1, 0.2, 0.1), Trust("encoder 1", 2, 1e12, 1e30, 1.5)])
    assert "!" not in lines[2]
    assert "1e+12" in lines[3]
    assert lines[3].endswith("! not to be trusted")


@pytest.fixture(scope="module")
def favored(tmp_path_factory):
    """A run with favor attention and loud queries, and what its training said."""
    root = tmp_path_factory.mktemp("favored")
    path = root / "words.csv"
    rows = [f"{'abba' if i % 2 else 'cddc'}{'xyz'[i % 3]}{i % 10},{'pos' if i % 2 else 'neg'}" for i in range(90)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    config = override(Config(), ["size=xs", "model.depth=1", "train.steps=4", "train.evaluate_every=2"])
    config.data.source, config.data.inputs, config.data.targets = str(path), ["text:sequence"], ["label"]
    config = override(config, ["model.attention=favor:4", "model.normalise=false", "train.lr=0.3", "train.warmup=0"])
    stream = io.StringIO()
    run, _ = train(config, name="run", console=Console(file=stream, width=400), root=root)
    return run, stream.getvalue()


def test_training_warns_once_in_terminal_and_log(favored):
    run, text = favored
    assert text.count("warning: favor attention cannot be trusted") == 1
    assert (run.folder / "log.txt").read_text().count("warning: favor attention cannot be trusted") == 1


def test_evaluate_and_check_report_every_head(favored, monkeypatch):
    run, _ = favored
    stream = io.StringIO()
    result = evaluate(run.folder, console=Console(file=stream, width=400))
    assert {"metrics", "intervals", "baselines", "attention"} == set(result)
    assert [set(one) for one in result["attention"]] == [{"layer", "head", "predicted", "predicted_95", "measured"}] * 2
    json.dumps(result, allow_nan=False)
    assert "predicted" in stream.getvalue()
    assert evaluate(run.folder)["attention"] == result["attention"]
    monkeypatch.setattr("mapsto.testing.check_model", lambda *_: [])  # the laws are tested elsewhere, and take long
    report = check_run(run.folder, Console(quiet=True))
    assert report["attention"] == result["attention"]


def test_pictures_show_every_head(favored):
    run, _ = favored
    made = {picture.name: picture for picture in gallery(run).pictures}
    assert made["trust"].file.startswith(b"\x89PNG")
