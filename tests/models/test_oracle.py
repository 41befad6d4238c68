"""Weights of transformers' GPT-2, BART and ViT in our parts: the same logits, the same lines."""

import copy
import warnings

import pytest
import torch
from torch import nn

from mapsto.inputs.image import ImageInput
from mapsto.inputs.sequence import SequenceInput
from mapsto.models.mapper import Mapper
from mapsto.models.search import Beam, Greedy, search
from mapsto.nn.pool import ClassPool
from mapsto.nn.position import Learned, Position
from mapsto.nn.transformer import Decoder, Encoder, PostNorm, Prior
from mapsto.outputs.sequence import SequenceOutput
from mapsto.outputs.vector import VectorOutput
from mapsto.stream import stream
from mapsto.vocabulary import BEGIN, END, UNKNOWN, Symbols

transformers = pytest.importorskip("transformers", reason="the oracle whose weights are copied is not installed")

SIZE, DIM, HEADS, PLACES, LIMIT = 40, 32, 4, 48, 12
SYMBOLS = Symbols([f"s{i}" for i in range(SIZE - 3)])


def drawn(make, config, seed):
    """A model of the peer's with wide weights, so that tokens differ, from a stream of its own."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        model = make(config).eval()
    source = stream(seed, "test")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            norm = "norm" in name or "ln_" in name
            noise = torch.randn(weight.shape, generator=source)
            weight.copy_(
                (1.0 if norm and name.endswith("weight") else 0.0) + (0.1 if weight.ndim < 2 else 0.25) * noise
            )
    return model


def copied(layer, weight, bias):
    """Fill a linear layer or a norm."""
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


def attended(layer, peer):
    """Fill an attention layer from three projections and an output."""
    parts = [peer.q_proj, peer.k_proj, peer.v_proj]
    copied(layer.qkv, torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts]))
    copied(layer.out, peer.out_proj.weight, peer.out_proj.bias)


def written(model, tokens, valid=None):
    """The batch whose questions are these tokens."""
    valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
    return {
        "ids": torch.cat([tokens[:, 1:], torch.zeros_like(tokens[:, :1])], 1),
        "valid": valid,
        "before": tokens[:, 0],
    }


def generate(peer, **given):
    """What the peer writes, a line and its score each."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        out = peer.generate(
            do_sample=False, suppress_tokens=[UNKNOWN, BEGIN], return_dict_in_generate=True, output_scores=True, **given
        )
    scores = out.get("sequences_scores")
    return out.sequences.tolist(), None if scores is None else scores.tolist()


def line(ids, prompt):
    """What was written after the prompt, up to the end."""
    ids = ids[prompt:]
    return ids[: ids.index(END)] if END in ids else ids


def same_lines(ours, greedy, theirs, scores):
    """Ours is the peer's best line, or the greedy one, which ours carries along and the peer's beam may lose."""
    for one, likeliest, ids, score in zip(ours, greedy, theirs, scores, strict=True):
        wanted = likeliest if likeliest.score > score + 1e-5 else None
        assert one.ids == (ids if wanted is None else wanted.ids)
        assert one.score == pytest.approx(score if wanted is None else wanted.score, abs=1e-4)


# GPT-2: before the branch the norm, learned places, tied embeddings


@pytest.fixture(scope="module", params=range(2))
def gpt2(request):
    """The peer, and the same in our parts. Its activation is ``gelu``, ours; its usual one is an approximation of it."""
    config = transformers.GPT2Config(
        vocab_size=SIZE,
        n_positions=PLACES,
        n_embd=DIM,
        n_layer=2,
        n_head=HEADS,
        activation_function="gelu",
        bos_token_id=BEGIN,
        eos_token_id=END,
        pad_token_id=UNKNOWN,
    )
    peer = drawn(transformers.GPT2LMHeadModel, config, request.param)
    position = Learned(DIM, PLACES)
    reader = Prior(DIM, 2, HEADS, position=position)
    model = Mapper({}, nn.Identity(), reader, SequenceOutput(DIM, name="y", vocabulary=SYMBOLS, window=PLACES))
    body = peer.transformer
    with torch.no_grad():
        position.table.copy_(body.wpe.weight)
        model.output.embedding.weight.copy_(body.wte.weight)
        model.output.head.head.bias.zero_()
    for block, theirs in zip(reader.blocks, body.h, strict=True):
        copied(block.attention_norm, theirs.ln_1.weight, theirs.ln_1.bias)
        copied(block.attention.qkv, theirs.attn.c_attn.weight.T, theirs.attn.c_attn.bias)
        copied(block.attention.out, theirs.attn.c_proj.weight.T, theirs.attn.c_proj.bias)
        copied(block.feedforward_norm, theirs.ln_2.weight, theirs.ln_2.bias)
        copied(block.feedforward[0], theirs.mlp.c_fc.weight.T, theirs.mlp.c_fc.bias)
        copied(block.feedforward[3], theirs.mlp.c_proj.weight.T, theirs.mlp.c_proj.bias)
    copied(reader.norm, body.ln_f.weight, body.ln_f.bias)
    return peer, model.eval()


def prompts():
    lengths = [1, 4, 7, 2, 5, 3]
    rows = [[BEGIN, *torch.randint(3, SIZE, (n - 1,), generator=stream(n, "prompt")).tolist()] for n in lengths]
    longest = max(lengths)
    tokens = torch.tensor([[*row, *[UNKNOWN] * (longest - len(row))] for row in rows])
    return rows, tokens, torch.arange(longest) < torch.tensor(lengths)[:, None]


@torch.no_grad()
def test_gpt2_in_our_parts_has_its_logits(gpt2):
    peer, model = gpt2
    tokens = torch.randint(SIZE, (3, PLACES), generator=stream(0, "test"))
    assert torch.allclose(model({"target": written(model, tokens)})["y"], peer(tokens).logits, atol=1e-5)


@torch.no_grad()
def test_gpt2_in_our_parts_writes_step_by_step_what_it_writes(gpt2):
    peer, model = gpt2
    rows, tokens, valid = prompts()

    def write(strategy):
        draft = model.begin({}, len(rows), tokens.shape[1] + LIMIT)
        return [one for (one,) in search(model.write, draft, tokens, valid=valid, strategy=strategy, limit=LIMIT)]

    greedy, told = write(Greedy()), write(Beam(4, 1.0))
    found = {"greedy": [], "beam": [], "score": []}
    for row in rows:
        given = {"input_ids": torch.tensor([row]), "attention_mask": torch.ones(1, len(row), dtype=torch.long)}
        ids, _ = generate(peer, max_new_tokens=LIMIT, **given)
        found["greedy"].append(line(ids[0], len(row)))
        ids, scores = generate(
            peer, max_new_tokens=LIMIT, num_beams=4, length_penalty=1.0, early_stopping="never", **given
        )
        found["beam"].append(line(ids[0], len(row)))
        found["score"] += scores
    assert [one.ids for one in greedy] == found["greedy"]
    same_lines(told, write(Greedy(1.0)), found["beam"], found["score"])
    assert len({tuple(ids) for ids in found["beam"]}) > 3


# BART: after the branch the norm, encoder and decoder


class NormedPlaces(Position):
    """Places are added, and the sum is normalised, as BART does; its table begins with two places that nobody has."""

    def __init__(self, peer):
        super().__init__()
        self.table = nn.Parameter(peer.embed_positions.weight[2:].clone())
        self.norm = copy.deepcopy(peer.layernorm_embedding)

    def add(self, items, places):
        return self.norm(items + self.table[places[..., 0].long()])


@pytest.fixture(scope="module", params=range(2))
def bart(request):
    """The peer without dropout and without scaled embeddings, which is as it comes."""
    config = transformers.BartConfig(
        vocab_size=SIZE,
        max_position_embeddings=PLACES,
        d_model=DIM,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        activation_function="gelu",
        bos_token_id=BEGIN,
        decoder_start_token_id=BEGIN,
        eos_token_id=END,
        forced_eos_token_id=None,
        pad_token_id=UNKNOWN,
    )
    peer = drawn(transformers.BartForConditionalGeneration, config, request.param)
    body = peer.model
    parts = {"norm": PostNorm(), "hidden": 48}
    encoder = Encoder(DIM, 2, HEADS, position=NormedPlaces(body.encoder), **parts)
    reader = Decoder(DIM, 2, HEADS, position=NormedPlaces(body.decoder), **parts)
    text = SequenceInput(DIM, vocabulary=SYMBOLS)
    model = Mapper({"x": text}, encoder, reader, SequenceOutput(DIM, name="y", vocabulary=SYMBOLS))
    with torch.no_grad():
        text.embedding.weight.copy_(body.shared.weight)
        model.output.embedding.weight.copy_(body.shared.weight)
        model.output.head.head.bias.copy_(peer.final_logits_bias[0])
    for stack, theirs in ((encoder, body.encoder), (reader, body.decoder)):
        for block, layer in zip(stack.blocks, theirs.layers, strict=True):
            attended(block.attention, layer.self_attn)
            copied(block.attention_norm, layer.self_attn_layer_norm.weight, layer.self_attn_layer_norm.bias)
            if block.cross is not None:
                attended(block.cross, layer.encoder_attn)
                copied(block.cross_norm, layer.encoder_attn_layer_norm.weight, layer.encoder_attn_layer_norm.bias)
            copied(block.feedforward[0], layer.fc1.weight, layer.fc1.bias)
            copied(block.feedforward[3], layer.fc2.weight, layer.fc2.bias)
            copied(block.feedforward_norm, layer.final_layer_norm.weight, layer.final_layer_norm.bias)
    return peer, model.eval()


def asked():
    lengths = torch.tensor([9, 4, 1, 6, 7, 2])
    ids = torch.randint(3, SIZE, (6, 9), generator=stream(1, "test"))
    valid = torch.arange(9) < lengths[:, None]
    return ids.masked_fill(~valid, UNKNOWN), valid


@torch.no_grad()
def test_bart_in_our_parts_has_its_logits(bart):
    peer, model = bart
    ids, valid = asked()
    tokens = torch.randint(SIZE, (6, 11), generator=stream(2, "test"))
    wanted = peer(input_ids=ids, attention_mask=valid.long(), decoder_input_ids=tokens).logits
    found = model({"x": {"ids": ids, "valid": valid}, "target": written(model, tokens)})["y"]
    assert torch.allclose(found, wanted, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_bart_in_our_parts_writes_step_by_step_what_it_writes(bart):
    peer, model = bart
    ids, valid = asked()
    batch = {"x": {"ids": ids, "valid": valid}}

    def write(strategy):
        prompt = torch.full((6, 1), BEGIN)
        draft = model.begin(batch, 6, LIMIT)
        return [one for (one,) in search(model.write, draft, prompt, strategy=strategy, limit=LIMIT)]

    greedy, told = write(Greedy()), write(Beam(4, 1.0))
    given = {"input_ids": ids, "attention_mask": valid.long(), "max_new_tokens": LIMIT}
    theirs, _ = generate(peer, num_beams=1, **given)
    assert [one.ids for one in greedy] == [line(row, 1) for row in theirs]
    theirs, scores = generate(peer, num_beams=4, length_penalty=1.0, early_stopping="never", **given)
    same_lines(told, write(Greedy(1.0)), [line(row, 1) for row in theirs], scores)
    assert len({tuple(one.ids) for one in told}) > 3


# ViT: a class item before the patches of a picture


class NumberedPlaces(Position):
    """One vector an item, in their order: the class item has the first."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table.clone())

    def add(self, items, places):
        return items + self.table


@torch.no_grad()
@pytest.mark.parametrize("seed", range(2))
def test_vit_in_our_parts_has_its_logits(seed):
    config = transformers.ViTConfig(
        image_size=16,
        patch_size=4,
        num_channels=3,
        hidden_size=DIM,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=48,
        num_labels=5,
    )
    peer = drawn(transformers.ViTForImageClassification, config, seed)
    body = peer.vit
    picture = ImageInput(DIM, channels=3, mean=[0.5] * 3, scale=[0.5] * 3, stem="patches", patch=4)
    projection = body.embeddings.patch_embeddings.projection
    copied(picture.linear, projection.weight.flatten(1), projection.bias)
    places = NumberedPlaces(body.embeddings.position_embeddings[0])
    encoder = Encoder(DIM, 2, HEADS, position=places, hidden=48, eps=config.layer_norm_eps)
    names = dict(body.named_modules())
    layers = sorted(n for n in names if n.endswith("layernorm_before"))
    for block, name in zip(encoder.blocks, layers, strict=True):
        stem = name.removesuffix("layernorm_before")
        linears = [part for n, part in names.items() if n.startswith(stem) and isinstance(part, nn.Linear)]
        query, key, value, out, wide, narrow = linears  # in the order they are made and used
        assert (wide.out_features, narrow.in_features) == (48, 48)
        copied(
            block.attention.qkv, *(torch.cat([getattr(p, n) for p in (query, key, value)]) for n in ("weight", "bias"))
        )
        for ours, theirs in (
            (block.attention.out, out),
            (block.feedforward[0], wide),
            (block.feedforward[3], narrow),
            (block.attention_norm, names[name]),
            (block.feedforward_norm, names[stem + "layernorm_after"]),
        ):
            copied(ours, theirs.weight, theirs.bias)
    copied(encoder.norm, body.layernorm.weight, body.layernorm.bias)
    reader = ClassPool(DIM)
    reader.item.copy_(body.embeddings.cls_token[0, 0])
    output = VectorOutput(DIM, targets={"y": {"kind": "label", "classes": list("abcde")}})
    copied(output.heads[0].head, peer.classifier.weight, peer.classifier.bias)
    model = Mapper({"x": picture}, encoder, reader, output).eval()
    pixels = torch.randint(256, (3, 16, 16, 3), generator=stream(3, "test"), dtype=torch.uint8)
    found = model({"x": {"pixels": pixels, "size": torch.full((3, 2), 16)}})["y"][:, 0]
    wanted = peer((pixels.permute(0, 3, 1, 2) / 255 - 0.5) / 0.5).logits
    assert torch.allclose(found, wanted, atol=1e-5, rtol=1e-5)
