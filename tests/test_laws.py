"""Every kind of every open folder is held to the laws: a new file needs an example here only if it cannot be made bare."""

import inspect
import itertools

import numpy as np
import pytest
import torch

from mapsto import kinds
from mapsto.collection import Collection, Edges, Packed
from mapsto.likelihoods.gaussian import GaussianLikelihood
from mapsto.models.mapper import Mapper
from mapsto.nn.distance import T5, ALiBi, Relative
from mapsto.nn.initial import initialise
from mapsto.nn.memory import CompositeMemory, GatedMemory, Recall
from mapsto.nn.multihead import MultiheadAttention
from mapsto.nn.pool import POOLS, pool
from mapsto.nn.position import Learned, NoPosition, Rotary, Sinusoidal
from mapsto.nn.reader import Keep
from mapsto.nn.transformer import Decoder, Encoder, PostNorm, PreNorm, Prior
from mapsto.outputs.sequence import SequenceOutput
from mapsto.ragged import Ragged
from mapsto.stream import stream
from mapsto.testing import (
    check_attention,
    check_input,
    check_likelihood,
    check_model,
    check_output,
    require,
)
from mapsto.vocabulary import Bytes, Characters, Symbols

DIM = 8


def noise(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def pixels(*size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def series(*lengths):
    rows = [noise(n, 2, seed=n) for n in lengths]
    rows[0][0, 1] = np.nan
    return rows


COLUMNS = [
    {"name": "size", "kind": "number", "mean": [0.0, 1.0], "scale": [1.0, 2.0]},
    {"name": "colour", "kind": "label", "classes": ["red", "blue"]},
    {"name": "age", "kind": "number", "mean": [0.0], "scale": [1.0]},
]
GREY = {"channels": 1, "mean": [0.5], "scale": [0.3]}
RED = {"channels": 3, "mean": [0.5, 0.4, 0.3], "scale": [0.3, 0.2, 0.1]}
TEXTS = ["one", "and two", "3"]
PICTURES = [pixels(8, 8), pixels(5, 12), pixels(9, 3)]

INPUTS = {
    "sequence": [
        ({"vocabulary": Bytes()}, TEXTS),
        ({"vocabulary": Symbols(["a", "b"]), "stem": 3}, [["a", "b", "a"], ["c"], ["b", "b"]]),
    ],
    "series": [
        ({"mean": [0.0, 1.0], "scale": [1.0, 2.0]}, series(5, 9, 1)),
        (
            {"mean": [0.0, 1.0], "scale": [1.0, 2.0], "gap": 0.5, "patch": 2},
            [(x, np.arange(len(x)) * 0.4) for x in series(5, 9, 2)],
        ),
        ({"mean": [0.0, 1.0], "scale": [1.0, 2.0], "relative": True, "limit": 12}, series(5, 9, 1)),
        (
            {"mean": [0.0, 1.0], "scale": [1.0, 2.0], "gap": 0.5, "patch": 2, "relative": True},
            [(x, np.arange(len(x)) * 0.4) for x in series(5, 9, 2)],
        ),
    ],
    "vector": [
        ({"columns": COLUMNS}, [([1.0, 2.0], "red", 3.0), (None, None, 0.5), ([0.0, 1.0], "green", None)]),
    ],
    "image": [
        (GREY, PICTURES),
        ({**RED, "stem": "patches", "patch": 2}, [pixels(4, 4, 3), pixels(3, 6, 3), pixels(5, 1, 3)]),
    ],
    "latent": [
        ({"latent": 3}, noise(3, 3)),
        ({"latent": 2, "items": 4}, noise(3, 2)),
    ],
}
LABELS = {"kind": "label", "classes": ["x", "y", "z"]}
OUTPUTS = {
    "vector": [
        (
            {
                "targets": {
                    "one": LABELS,
                    "some": {"kind": "labels", "classes": ["x", "y"]},
                    "much": {"kind": "number", "mean": [3.0, 0.0], "scale": [10.0, 1.0], "sigma": "datum"},
                },
                "smoothing": 0.1,
            },
            [("x", ["x"], [1.0, 2.0]), ("y", [], [2.0, 0.0]), ("z", ["x", "y"], [3.0, 1.0])],
        ),
        (
            {"targets": {"seen": {"kind": "number", "mean": [3.0], "scale": [2.0], "counted": True}}, "holes": True},
            [(0.0,), (7.0,), (2.0,)],
        ),
        *(
            ({"targets": {"z": {"kind": "latent", "latent": 2, "posterior": kind}}}, [(z,) for z in noise(3, 2)])
            for kind in ("normal", "full", "flow:layers=2")
        ),
    ],
    "sequence": [
        ({"name": "said", "vocabulary": Characters(["a", "b"]), "smoothing": 0.1}, [("ab",), ("c",), ("bba",)]),
        ({"name": "said", "vocabulary": Characters(["a"]), "tie": False, "limit": 3}, [("aa",), ("ba",), ("aaaa",)]),
        ({"name": "said", "vocabulary": Symbols(["x", "y"]), "window": 4}, [(["x"],), (["y", "z"],), (["x"] * 7,)]),
        ({"name": "said", "vocabulary": Bytes()}, [("ab",), ("é",), ("b",)]),
    ],
    "parallel": [
        (
            {"name": "said", "vocabulary": Characters(["a", "b"]), "limit": 4, "smoothing": 0.1},
            [("ab",), ("c",), ("bba",)],
        ),
        ({"name": "said", "vocabulary": Symbols(["x", "y"]), "limit": 3}, [(["x"],), (["y", "z"],), (["x"] * 7,)]),
    ],
    "items": [
        ({"name": "tag", "target": LABELS, "smoothing": 0.1}, [(["x", "y", "x"],), (["z"],), (["y", "y"],)]),
        (
            {"name": "much", "target": {"kind": "number", "mean": [1.0], "scale": [2.0]}},
            [([1, 2, 0.5],), ([3],), ([2, 2],)],
        ),
    ],
}
SMALL = {"name": "face", "channels": 1, "size": [4, 6]}
OUTPUTS["image"] = [
    (SMALL, [(pixels(4, 6, seed=i),) for i in range(3)]),
    ({**SMALL, "patch": [2, 3], "density": "logistic:components=2"}, [(pixels(4, 6, seed=i),) for i in range(3)]),
    ({**SMALL, "density": "bernoulli"}, [(np.uint8(255) * (pixels(4, 6, seed=i) > 99),) for i in range(3)]),
    ({**SMALL, "channels": 3, "density": "continuous_bernoulli"}, [(pixels(4, 6, 3, seed=i),) for i in range(3)]),
]
STEPS = {"mean": [0.0, 1.0], "scale": [1.0, 2.0]}
OUTPUTS["series"] = [
    ({"name": "next", "horizon": 4, **STEPS, "noise": noise}, [(x,) for x in series(4, 3, 6)])
    for noise in ("gaussian", "student")
]
LIKELIHOODS = {
    "gaussian": [
        {"dims": 1},
        {"dims": 2},
        {"dims": 2, "sigma": "dims"},
        {"dims": 1, "sigma": "datum"},
        {"dims": 2, "sigma": 0.5},
    ],
    "student": [{"dims": 1}, {"dims": 2}],
    "bernoulli": [{"dims": 3}],
    "categorical": [{"classes": 4}],
    "continuous_bernoulli": [{"dims": 1}, {"dims": 2}],
    "poisson": [{"dims": 1, "scale": 3.0}, {"dims": 2}],
    "negative_binomial": [{"dims": 1, "scale": 3.0}, {"dims": 2}],
    "logistic": [{"dims": 1}, {"dims": 2, "levels": 16}, {"dims": 1, "levels": 8, "components": 2}],
}

POSTERIORS = {
    "normal": [{"latent": 1}, {"latent": 2}],
    "full": [{"latent": 1}, {"latent": 2}],
    "flow": [{"latent": 2, "context": 3, "hidden": 5}],
}


def examples(folder, known):
    """Every kind of a folder with the settings to try; one that is new is made bare, and must be makeable."""
    return [(kind, i) for kind in kinds.names(folder) for i in range(len(known.get(kind, [None])))]


def settings(known, kind, i):
    assert kind in known, f"{kind} is new: give test_laws settings and values to try it with"
    return known[kind][i]


@pytest.mark.parametrize("kind", kinds.names("attention"))
def test_every_attention_keeps_the_laws(kind):
    cls = kinds.find("attention", kind)
    bare = all(p.default is not p.empty for p in inspect.signature(cls).parameters.values())
    require(check_attention(cls if bare else lambda: cls(5), laws="PBSCTMKDR"))


@pytest.mark.parametrize("kind", kinds.names("attention"))
def test_every_attention_compiles_and_exports(kind):
    cls = kinds.find("attention", kind)
    bare = all(p.default is not p.empty for p in inspect.signature(cls).parameters.values())
    require(check_attention(cls if bare else lambda: cls(5), laws="G"))


@pytest.mark.parametrize("beta", [0.3, 4.0])
def test_softmax_attention_keeps_the_laws_at_any_temperature(beta):
    cls = kinds.find("attention", "softmax")
    require(check_attention(lambda: cls(beta), heads=1, width=4, laws="PCTM"))


@pytest.mark.parametrize(("kind", "i"), examples("likelihoods", LIKELIHOODS))
def test_every_likelihood_keeps_the_laws(kind, i):
    cls = kinds.find("likelihoods", kind)
    require(check_likelihood(lambda: cls(**settings(LIKELIHOODS, kind, i)), laws="LBD"))


@pytest.mark.parametrize(("kind", "i"), examples("posteriors", POSTERIORS))
def test_every_posterior_keeps_the_laws_of_likelihoods(kind, i):
    cls = kinds.find("posteriors", kind)

    def make():
        made = cls(**settings(POSTERIORS, kind, i))
        for number, p in enumerate(made.parameters()):  # bent in earnest
            p.data = 0.5 * torch.randn(p.shape, generator=torch.Generator().manual_seed(number))
        return made

    require(check_likelihood(make, laws="LBD"))


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "i"), examples("likelihoods", LIKELIHOODS))
def test_every_likelihood_compiles(kind, i):
    cls = kinds.find("likelihoods", kind)
    require(check_likelihood(lambda: cls(**settings(LIKELIHOODS, kind, i)), laws="G"))


@pytest.mark.parametrize(("kind", "i"), examples("inputs", INPUTS))
def test_every_input_keeps_the_laws(kind, i):
    cls, (made, values) = kinds.find("inputs", kind), settings(INPUTS, kind, i)
    require(check_input(lambda: cls(DIM, **made), values, laws="PBMDR"))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "i"), examples("inputs", INPUTS))
def test_every_input_compiles_and_exports(kind, i):
    cls, (made, values) = kinds.find("inputs", kind), settings(INPUTS, kind, i)
    require(check_input(lambda: cls(DIM, **made), values, laws="G"))


@pytest.mark.parametrize(("kind", "i"), examples("outputs", OUTPUTS))
def test_every_output_keeps_the_laws(kind, i):
    cls, (made, values) = kinds.find("outputs", kind), settings(OUTPUTS, kind, i)
    require(check_output(lambda: cls(DIM, **made), values))


def gather(part, values):
    parsed = [part.parse(value) for value in values]
    columns = {n: Ragged.pack([row[n] for row in parsed]) for n in parsed[0]}
    return part.gather({n: c.take(np.arange(len(values))) for n, c in columns.items()})


def make(inputs, output, reader, *, position=None, seed=0, **parts):
    """A small model and a batch of its rows; an items output answers the first input's items."""
    made, batch = {}, {}
    for name, (kind, i) in inputs.items():
        given, values = INPUTS[kind][i]
        made[name] = kinds.find("inputs", kind)(DIM, **given)
        batch[name] = gather(made[name], values)
    given, values = OUTPUTS[output][0]
    out = kinds.find("outputs", output)(DIM, **given)
    if output == "items":
        with torch.no_grad():
            lengths = next(iter(made.values()))(next(iter(batch.values()))).lengths.tolist()
        values = [(["x", "y", "z", "y"] * n,) for n in lengths]
        values = [(tags[:n],) for (tags,), n in zip(values, lengths, strict=True)]
    batch["target"] = gather(out, values)
    encoder = Encoder(DIM, parts.pop("depth", 1), 2, position=position, hidden=12, **parts)
    model = Mapper(made, encoder, reader, out, masking=0.1)
    initialise(model, seed)
    return model, batch


POSITIONS = {
    "none": NoPosition,
    "sinusoidal": lambda: Sinusoidal(DIM),
    "rotary": Rotary,
    "learned": lambda: Learned(DIM, 600),
    "alibi": lambda: ALiBi(2),
    "t5": lambda: T5(2, buckets=8, longest=20),
    "relative": lambda: Relative(2, DIM // 2, longest=5),
}
# Every pool with every input, every placement and position; together they are too many to try all combinations.
PLANS = [
    *((kind, name, PreNorm, "none" if kind == "vector" else "sinusoidal") for kind in INPUTS for name in POOLS),
    *((kind, "attention", PostNorm, "rotary") for kind in INPUTS),
    *(("sequence", "class", PreNorm, position) for position in ("alibi", "t5", "relative")),
    *((kind, "mean", norm, position) for kind in INPUTS for norm in (PreNorm, PostNorm) for position in POSITIONS),
]


def possible(kind, position):
    if position == "learned":
        return kind == "sequence"  # ranks in one coordinate
    if position in ("t5", "relative"):
        return kind in ("sequence", "series")  # one coordinate
    return kind != "vector" or position in (
        "none",
        "rotary",
    )  # a set has no places, so what they need would learn nothing


@pytest.mark.parametrize(
    ("kind", "reader", "norm", "position"), [p for p in dict.fromkeys(PLANS) if possible(p[0], p[3])]
)
def test_every_pooled_model_keeps_the_laws(kind, reader, norm, position):
    model, batch = make(
        {"x": (kind, 0)}, "vector", pool(reader, DIM, 2), norm=norm(), position=POSITIONS[position](), dropout=0.2
    )
    require(check_model(model, batch, laws="PBSMKDR"))


@pytest.mark.parametrize(
    ("kind", "norm", "position"),
    [
        p
        for p in itertools.product(["sequence", "series", "image"], [PreNorm, PostNorm], POSITIONS)
        if possible(p[0], p[2])
    ],
)
def test_every_model_of_items_keeps_the_laws(kind, norm, position):
    model, batch = make({"x": (kind, 0)}, "items", Keep(), norm=norm(), position=POSITIONS[position](), dropout=0.2)
    require(check_model(model, batch, laws="PBSMKDR"))


MIXERS = {
    "composite": lambda: Recall(CompositeMemory, DIM),
    "gated": lambda: Recall(GatedMemory, DIM),
    "one way": lambda: Recall(GatedMemory, DIM, both=False),
}


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize(
    ("kind", "output", "reader", "position"),
    [
        ("sequence", "vector", "mean", "none"),
        ("sequence", "vector", "class", "sinusoidal"),
        ("series", "vector", "attention", "none"),
        ("series", "items", None, "sinusoidal"),
        ("sequence", "items", None, "none"),
    ],
)
def test_every_model_of_memories_keeps_the_laws(mixer, kind, output, reader, position):
    if reader == "class" and mixer == "one way":
        reader = "attention"  # a class item in front has nothing before it
    read = Keep() if reader is None else pool(reader, DIM, 2)
    model, batch = make(
        {"x": (kind, 0)}, output, read, position=POSITIONS[position](), mixer=MIXERS[mixer], depth=2, dropout=0.2
    )
    require(check_model(model, batch, laws="PBSMKDR"))


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["composite", "gated"])
def test_a_model_of_memories_compiles_and_exports(mixer):
    model, batch = make({"x": ("sequence", 0)}, "vector", pool("mean", DIM, 2), mixer=MIXERS[mixer])
    require(check_model(model, batch, laws="G"))


@pytest.mark.parametrize("second", ["vector", "image", "series"])
def test_models_of_two_inputs_keep_the_laws(second):
    reader = pool("attention", DIM, 2)
    model, batch = make(
        {"x": ("sequence", 0), "y": (second, 0)}, "vector", reader, depth=2, normalise=True, dropout=0.2
    )
    require(check_model(model, batch, laws="PBSMKDR"))


def test_a_model_with_a_decoder_keeps_the_laws():
    reader = Decoder(DIM, 1, 2, hidden=12, dropout=0.2)
    model, batch = make({"x": ("sequence", 0)}, "vector", reader, position=Sinusoidal(DIM), activation="silu")
    require(check_model(model, batch, laws="PBSMKDR"))


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("noise", ["gaussian", "student"])
def test_a_model_that_forecasts_keeps_the_laws(which, noise):
    made, values = INPUTS["series"][which]
    part = kinds.find("inputs", "series")(DIM, **made)
    given = {"name": "next", "horizon": 4, **STEPS, "noise": noise, "source": 0, "past": 6}
    out = kinds.find("outputs", "series")(DIM, **given)
    batch = {"x": gather(part, values), "target": gather(out, [(x,) for x in series(4, 3, 6)])}
    encoder = Encoder(DIM, 1, 2, position=Sinusoidal(DIM), hidden=12, dropout=0.2)
    reader = Decoder(DIM, 1, 2, position=Sinusoidal(DIM), hidden=12, dropout=0.2)
    model = Mapper({"x": part}, encoder, reader, out, masking=0.1)
    initialise(model, 0)
    with torch.no_grad():
        out.linear.copy_(torch.randn(4, 6, generator=stream(0, "test")))
    require(check_model(model, batch, laws="PBSMKDR"))


def test_a_model_that_normalises_queries_keeps_the_laws():
    model, batch = make({"x": ("series", 1)}, "vector", pool("mean", DIM, 2), normalise=True, position=Rotary())
    require(check_model(model, batch, laws="PBSMKDR"))


@pytest.mark.parametrize(
    "kind", ["hard", "window:2,shared=1", "favor:16", "favor:16,feature=relu", "memory", "memory:gated=true"]
)
@pytest.mark.parametrize("items", [False, True])
def test_models_with_every_attention_keep_the_laws(kind, items):
    attention = kinds.make("attention", kind)
    output, reader = ("items", Keep()) if items else ("vector", pool("attention", DIM, 2))
    model, batch = make(
        {"x": ("sequence", 0)},
        output,
        reader,
        attention=attention,
        normalise=True,
        position=Sinusoidal(DIM),
        dropout=0.2,
    )
    laws = "PBMKDR" if kind in ("hard", "memory:gated=true", "window:2,shared=1") else "PBSMKDR"
    require(check_model(model, batch, laws=laws))


def test_a_model_compiles_and_exports():
    reader = pool("attention", DIM, 2)
    model, batch = make({"x": ("sequence", 0)}, "vector", reader, position=Sinusoidal(DIM))
    require(check_model(model, batch, laws="G"))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "reader"), [("series", "class"), ("vector", "mean"), ("image", "mean")])
def test_models_of_every_input_compile_and_export(kind, reader):
    model, batch = make({"x": (kind, 0)}, "vector", pool(reader, DIM, 2), position=Rotary())
    require(check_model(model, batch, laws="G"))


@pytest.mark.parametrize("position", ["alibi", "t5", "relative"])
def test_a_model_whose_logits_know_distances_compiles_and_exports(position):
    model, batch = make({"x": ("sequence", 0)}, "vector", pool("mean", DIM, 2), position=POSITIONS[position]())
    require(check_model(model, batch, laws="G"))


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "position"), [(PostNorm, "rotary"), (PreNorm, "learned")])
def test_models_of_items_compile_and_export(norm, position):
    made = POSITIONS[position]()
    model, batch = make({"x": ("sequence", 0)}, "items", Keep(), norm=norm(), position=made)
    require(check_model(model, batch, laws="G"))


WRITTEN = [("ab c",), ("h",), ("defgh a cab",)]


def writing(inputs, *, tie=True, smoothing=0.0, encoder=None, places=None, **parts):
    """A small model that writes, and a batch of its rows; one without inputs is a language model."""
    made, batch = {}, {}
    for name, (kind, i) in inputs.items():
        given, values = INPUTS[kind][i]
        made[name] = kinds.find("inputs", kind)(DIM, **given)
        batch[name] = gather(made[name], values)
    output = SequenceOutput(DIM, name="said", vocabulary=Characters(list("abcdefgh ")), tie=tie, smoothing=smoothing)
    batch["target"] = gather(output, WRITTEN)
    usual = {"hidden": 12, "dropout": 0.2}
    reader = (Decoder if inputs else Prior)(DIM, 2, 2, position=places or Sinusoidal(DIM), **usual, **parts)
    read = torch.nn.Identity() if not inputs else Encoder(DIM, 1, 2, position=encoder or Sinusoidal(DIM), **usual)
    model = Mapper(made, read, reader, output)
    initialise(model, 0)
    return model, batch


TEXT = {"x": ("sequence", 0)}
HABITS = ["hard", "window:3,shared=1", "window:4", "favor:16", "favor:16,feature=relu", "memory", "memory:gated=true"]


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(
    ("inputs", "norm", "tie"), [(TEXT, PreNorm, True), ({}, PostNorm, False)], ids=["texts", "nothing"]
)
def test_every_model_that_writes_keeps_the_laws(inputs, norm, tie, position):
    model, batch = writing(inputs, tie=tie, smoothing=0.1, places=POSITIONS[position](), norm=norm())
    require(check_model(model, batch, laws="PBSCTMKDR"))


@pytest.mark.parametrize("kind", HABITS)
def test_models_that_write_with_every_attention_keep_the_laws(kind):
    parts = {"attention": kinds.make("attention", kind), "normalise": True, "places": Rotary()}
    require(check_model(*writing({}, **parts), laws="PBCTMKDR"))
    require(check_model(*writing(TEXT, **parts), laws="T"))


@pytest.mark.parametrize(
    ("kind", "position"), list(itertools.product(["hard", "window:3,shared=1"], ["alibi", "t5", "relative"]))
)
def test_models_that_write_with_a_bias_on_every_attention_that_takes_one_keep_the_laws(kind, position):
    model, batch = writing({}, attention=kinds.make("attention", kind), places=POSITIONS[position]())
    require(check_model(model, batch, laws="CT"))


@pytest.mark.parametrize("kind", [k for k in HABITS if "window" not in k])
def test_models_that_write_what_every_attention_reads_keep_the_laws(kind):
    model, batch = writing(TEXT, cross=kinds.make("attention", kind), attention=kinds.make("attention", "favor:16"))
    require(check_model(model, batch, laws="PBCTMKDR"))


@pytest.mark.parametrize("kind", HABITS)
def test_models_that_write_from_every_encoder_keep_the_laws(kind):
    model, batch = writing(TEXT)
    model.encoder = Encoder(DIM, 1, 2, attention=kinds.make("attention", kind), position=Rotary(), hidden=12)
    initialise(model, 1)
    require(check_model(model, batch, laws="PBMKD"))


@pytest.mark.parametrize(
    "inputs",
    [{"x": ("vector", 0)}, {"x": ("image", 0)}, {"x": ("series", 1)}, {**TEXT, "y": ("image", 0)}],
    ids=["rows", "pictures", "series", "texts and pictures"],
)
def test_models_that_write_of_every_input_keep_the_laws(inputs):
    model, batch = writing(inputs, encoder=NoPosition() if "vector" in str(inputs) else None)
    require(check_model(model, batch, laws="PBSCTMKDR"))


def test_a_model_that_writes_of_nothing_compiles_and_exports():
    require(check_model(*writing({}), laws="G"))


@pytest.mark.slow
@pytest.mark.parametrize("position", ["rotary", pytest.param("relative", marks=pytest.mark.sample), "learned"])
def test_models_that_write_compile_and_export(position):
    require(check_model(*writing(TEXT, places=POSITIONS[position]()), laws="G"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["image", "vector"])
def test_models_that_write_of_other_inputs_compile_and_export(kind):
    encoder = NoPosition() if kind == "vector" else None
    require(check_model(*writing({"x": (kind, 0)}, encoder=encoder), laws="G"))


def test_a_query_with_nothing_to_see_gets_the_layers_bias():
    """Law M in a layer: attention answers zeros, so W_o 0 + b_o is left."""
    layer = MultiheadAttention(DIM, 2)
    initialise(layer, 0)
    with torch.no_grad():
        layer.out.bias.copy_(torch.arange(DIM))
    x = Collection.build(torch.randn(2, 3, DIM, generator=stream(0, "test")))
    for memory in (
        Collection.build(torch.ones(2, 4, DIM), torch.zeros(2, 4, dtype=torch.bool)),
        Collection.build(torch.ones(2, 0, DIM)),
    ):
        assert torch.equal(layer(x, memory), layer.out.bias.expand(2, 3, DIM))


# Law R of the currency.


def collection():
    items = torch.randn(4, 5, 3, generator=stream(0, "test"))
    valid = torch.arange(5) < torch.tensor([5, 2, 0, 3])[:, None]
    edges = Edges(
        torch.tensor([0, 0, 1, 3]),
        torch.tensor([0, 4, 1, 2]),
        torch.tensor([1, 0, 0, 0]),
        torch.ones(4, 2),
        torch.arange(4.0),
    )
    return Collection.build(items, valid, torch.rand(4, 5, 2, generator=stream(1, "test")), edges)


def fields(x):
    """Every tensor of a collection, by name, those of its edges too."""
    found = {}
    for name in ("items", "valid", "places", "lengths", "graph", "source", "target", "attributes", "weights"):
        for one in (x, getattr(x, "edges", None)):
            if torch.is_tensor(getattr(one, name, None)):
                found[name] = getattr(one, name)
    return found


def test_moving_a_collection_keeps_every_field():
    whole = collection()
    for moved in (whole.to("cpu"), whole.to(torch.float32), whole.to(torch.device("cpu"), non_blocking=True)):
        assert all(torch.equal(fields(moved)[n], t) for n, t in fields(whole).items())
    double = whole.to(torch.float64)
    assert double.items.dtype == torch.float64
    assert double.places.dtype == torch.float32
    assert double.valid.dtype == torch.bool
    assert double.edges.source.dtype == torch.int64
    meta = whole.to("meta")
    assert {t.device.type for t in fields(meta).values()} == {"meta"}


def test_indexing_a_collection_keeps_every_field_of_the_rows():
    whole = collection()
    for rows in (torch.tensor([3, 0, 0]), slice(1, 4)):
        picked = whole[rows]
        index = torch.arange(4)[rows]
        assert torch.equal(picked.items, whole.items[index])
        assert torch.equal(picked.valid, whole.valid[index])
        assert torch.equal(picked.places, whole.places[index])
        wanted = [
            (new, int(whole.edges.source[e]), int(whole.edges.target[e]), float(whole.edges.weights[e]))
            for new, old in enumerate(index.tolist())
            for e in range(4)
            if int(whole.edges.graph[e]) == old
        ]
        found = zip(
            *(t.tolist() for t in (picked.edges.graph, picked.edges.source, picked.edges.target, picked.edges.weights)),
            strict=True,
        )
        assert list(found) == wanted
        assert len(picked.edges.attributes) == len(wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning needs a GPU's driver")
def test_pinning_a_collection_keeps_every_field():
    whole = collection()
    pinned = whole.pin_memory()
    assert all(torch.equal(fields(pinned)[n], t) and fields(pinned)[n].is_pinned() for n, t in fields(whole).items())


def test_pinning_asks_every_field(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: asked.append(self) or self)
    whole = collection()
    whole.pin_memory()
    assert len(asked) == len(fields(whole)) - 1  # lengths are counted from valid


@pytest.mark.parametrize("lengths", [[5, 2, 0, 3], [0, 0], [1], [], [4, 4, 4]])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_padded_to_packed_to_padded_is_the_identity(lengths, groups):
    longest = max(lengths, default=0)
    valid = torch.arange(longest) < torch.tensor(lengths, dtype=torch.int64)[:, None]
    whole = Collection.build(
        torch.randn(len(lengths), longest, 3, generator=stream(0, "test")),
        valid,
        torch.rand(len(lengths), longest, 2, generator=stream(1, "test")),
    )
    packed = whole.pack(groups)
    assert isinstance(packed, Packed)
    assert len(packed.items) == sum(lengths)
    again = packed.unpack()
    for name in ("items", "valid", "places"):
        assert torch.equal(getattr(again, name), getattr(whole, name))
    scattered = (
        packed.scatter([packed.group(index, ok).items for _, index, ok in packed.plan])
        if sum(lengths)
        else packed.items
    )
    assert torch.equal(scattered, packed.items)


def test_the_gaussian_density_is_the_formula():
    kind = GaussianLikelihood(2)
    theta, x = torch.tensor([[0.5, -1.0]]).double(), torch.tensor([[0.0, 2.0]]).double()
    sigma = kind.sigma(theta)
    wanted = (-0.5 * ((x - theta) / sigma) ** 2 - torch.log(sigma) - 0.5 * np.log(2 * np.pi)).sum(-1)
    torch.testing.assert_close(kind.log_prob(theta, x), wanted)
