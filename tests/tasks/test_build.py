"""A model from its settings: what goes together is put together, and what does not is told what to type."""

import pytest
import torch

from mapsto.errors import ConfigError
from mapsto.nn.distance import T5, ALiBi, Relative
from mapsto.nn.memory import CompositeMemory, GatedMemory, Recall
from mapsto.nn.position import NoPosition, Sinusoidal
from mapsto.tasks.build import build
from mapsto.tasks.dataset import Measured
from mapsto.tasks.schema import Field, Schema
from mapsto.tasks.section import ModelConfig
from mapsto.vocabulary import Bytes

NUMBER = {"name": "x", "kind": "number", "mean": [0.0], "scale": [1.0]}
SETTINGS = {
    "sequence": {"vocabulary": Bytes(), "limit": 20},
    "series": {"mean": [0.0], "scale": [1.0]},
    "image": {"channels": 1, "mean": [0.5], "scale": [0.3]},
    "vector": {"columns": [NUMBER]},
}


def made(*kinds, **settings):
    fields = [Field(f"in{i}", kind, [(f"in{i}", kind)]) for i, kind in enumerate(kinds)]
    schema = Schema(fields, Field("y", "vector", [("y", "label")]))
    measured = Measured([SETTINGS[k] for k in kinds], {"targets": {"y": {"kind": "label", "classes": ["a", "b"]}}})
    return build(schema, measured, ModelConfig(dim=8, depth=2, heads=2, **settings), seed=0)


@pytest.mark.parametrize(("name", "kind"), [("alibi", ALiBi), ("t5", T5), ("relative", Relative)])
@pytest.mark.parametrize("source", ["sequence", "series"])
def test_logits_by_distance_are_for_one_sequence_or_series(name, kind, source):
    position = made(source, position=name).encoder.position
    assert type(position) is kind
    assert position.heads == 2
    if name != "alibi":
        assert position.longest == (20 if source == "sequence" else 128)
        assert position.table.std() > 0.1
    assert torch.equal(*(torch.cat([p.flatten() for p in made(source, position=name).parameters()]) for _ in "12"))


def test_distances_on_a_grid_add_up_or_are_refused():
    assert type(made("image", position="alibi").encoder.position) is ALiBi
    for name in ("t5", "relative"):
        with pytest.raises(
            ConfigError, match=rf"model.position={name} counts in one .* Use auto, sinusoidal, rotary or"
        ):
            made("image", position=name)


@pytest.mark.parametrize("name", ["alibi", "t5", "relative"])
def test_items_without_a_distance_are_refused(name):
    with pytest.raises(ConfigError, match=rf"model.position={name}: items of several inputs \(sequence, vector\)"):
        made("sequence", "vector", position=name)
    with pytest.raises(ConfigError, match=rf"model.position={name}: the columns of a table are a set"):
        made("vector", position=name)


@pytest.mark.parametrize(("name", "kind"), [("composite", CompositeMemory), ("gated", GatedMemory)])
@pytest.mark.parametrize("source", ["sequence", "series"])
def test_memories_take_the_place_of_attention(name, kind, source):
    model = made(source, mixer=name)
    for block in model.encoder.blocks:
        assert type(block.attention) is Recall
        assert type(block.attention.ahead) is type(block.attention.back) is kind
    assert type(model.encoder.position) is NoPosition
    assert type(made(source, mixer=name, position="sinusoidal").encoder.position) is Sinusoidal


@pytest.mark.parametrize(
    ("kinds", "settings", "text"),
    [
        (["vector"], {}, "vector items have none.*Use model.mixer=attention"),
        (["image"], {}, "image items have none"),
        (["sequence", "vector"], {}, "sequence and vector items have none"),
        (["sequence"], {"attention": "hard"}, "Leave out model.attention"),
        (["sequence"], {"normalise": True}, "and model.normalise"),
        (["sequence"], {"position": "rotary"}, "Rotary positions are for attention.*Use model.position=none"),
        (["sequence"], {"position": "t5"}, "T5 positions are for attention"),
    ],
)
def test_what_does_not_go_with_a_memory_is_refused(kinds, settings, text):
    with pytest.raises(ConfigError, match=text):
        made(*kinds, mixer="gated", **settings)


def test_settings_say_what_lets_items_know_of_each_other():
    assert ModelConfig(heads=4).mixing == "4 heads, softmax attention"
    assert ModelConfig(heads=4, mixer="gated").mixing == "gated memory"
