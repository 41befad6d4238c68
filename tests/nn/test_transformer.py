"""Encoder and decoder against torch's own layers with the same weights, and poolings against their formulas."""

import pytest
import torch
from torch import nn

from mapsto import kinds
from mapsto.collection import Collection
from mapsto.errors import ConfigError
from mapsto.nn.initial import initialise
from mapsto.nn.multihead import MultiheadAttention
from mapsto.nn.pool import POOLS, AttentionPool, ClassPool, LambdaPool, MaxPool, MeanPool, SumPool, pool
from mapsto.nn.transformer import Decoder, Encoder, PostNorm, PreNorm
from mapsto.stream import stream

DIM, HEADS, DEPTH = 16, 4, 2


def collection(sizes, seed=0):
    """Random items of rows of these lengths, float64."""
    n = max(sizes)
    items = torch.randn(len(sizes), n, DIM, generator=stream(seed, "test"), dtype=torch.float64)
    return Collection.build(items, torch.arange(n) < torch.tensor(sizes)[:, None])


def copy_attention(ours, theirs):
    theirs.in_proj_weight.copy_(ours.qkv.weight)
    theirs.in_proj_bias.copy_(ours.qkv.bias)
    theirs.out_proj.weight.copy_(ours.out.weight)
    theirs.out_proj.bias.copy_(ours.out.bias)


def copy_norm(ours, theirs):
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)


def copy_feedforward(block, theirs):
    for ours, linear in ((block.feedforward[0], theirs.linear1), (block.feedforward[3], theirs.linear2)):
        linear.weight.copy_(ours.weight)
        linear.bias.copy_(ours.bias)


def shaken(module):
    """Seeded weights, norms included, in float64."""
    initialise(module, 0)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=stream(1, name)))
    return module.double().eval()


@pytest.mark.parametrize(("placement", "first"), [(PreNorm(), True), (PostNorm(), False)])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_an_encoder_is_torchs_with_the_same_weights(placement, first, activation):
    ours = shaken(Encoder(DIM, DEPTH, HEADS, norm=placement, activation=activation, hidden=24))
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 24, 0.0, activation, batch_first=True, norm_first=first)
    final = nn.LayerNorm(DIM) if first else None
    theirs = nn.TransformerEncoder(layer, DEPTH, norm=final, enable_nested_tensor=False).double()
    with torch.no_grad():
        for block, other in zip(ours.blocks, theirs.layers, strict=True):
            copy_attention(block.attention, other.self_attn)
            copy_norm(block.attention_norm, other.norm1)
            copy_norm(block.feedforward_norm, other.norm2)
            copy_feedforward(block, other)
        if final is not None:
            copy_norm(ours.norm, theirs.norm)
    x = collection([5, 3, 1])
    wanted = theirs.train()(x.items, src_key_padding_mask=~x.valid)
    torch.testing.assert_close(ours(x).items[x.valid], wanted[x.valid], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("placement", "first"), [(PreNorm(), True), (PostNorm(), False)])
def test_a_decoder_is_torchs_with_the_same_weights(placement, first):
    ours = shaken(Decoder(DIM, DEPTH, HEADS, norm=placement, hidden=24))
    layer = nn.TransformerDecoderLayer(DIM, HEADS, 24, 0.0, "gelu", batch_first=True, norm_first=first)
    theirs = nn.TransformerDecoder(layer, DEPTH, norm=nn.LayerNorm(DIM) if first else None).double()
    with torch.no_grad():
        for block, other in zip(ours.blocks, theirs.layers, strict=True):
            copy_attention(block.attention, other.self_attn)
            copy_attention(block.cross, other.multihead_attn)
            copy_norm(block.attention_norm, other.norm1)
            copy_norm(block.cross_norm, other.norm2)
            copy_norm(block.feedforward_norm, other.norm3)
            copy_feedforward(block, other)
        if first:
            copy_norm(ours.norm, theirs.norm)
    queries, memory = collection([4, 4]), collection([6, 2], seed=3)
    ahead = torch.ones(4, 4, dtype=torch.bool).triu(1)
    wanted = theirs(queries.items, memory.items, tgt_mask=ahead, memory_key_padding_mask=~memory.valid)
    torch.testing.assert_close(ours(queries, memory, causal=True), wanted, rtol=1e-10, atol=1e-10)


def test_poolings_are_their_formulas():
    x = collection([3, 1])
    query = Collection.build(torch.randn(2, 1, DIM, generator=stream(5, "test"), dtype=torch.float64))
    rows = [x.items[0, :3], x.items[1, :1]]
    for made, formula in (
        (SumPool(), lambda r: r.sum(0)),
        (MeanPool(), lambda r: r.mean(0)),
        (MaxPool(), lambda r: r.amax(0)),
    ):
        wanted = torch.stack([formula(r) for r in rows])[:, None] + query.items
        torch.testing.assert_close(made(query, x), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spread", ["sigmoid", "softmax"])
def test_lambda_attention_is_the_lectures_formula(spread):
    x = collection([3, 1])
    made = shaken(LambdaPool(DIM, spread=spread))
    query = Collection.build(torch.zeros(2, 1, DIM, dtype=torch.float64))
    found = made(query, x)
    theta, bias = made.score.weight[0], made.score.bias[0]
    for b, n in enumerate([3, 1]):
        score = torch.stack([theta @ x.items[b, i] + bias for i in range(n)])
        weight = torch.sigmoid(score) if spread == "sigmoid" else torch.exp(score) / torch.exp(score).sum()
        wanted = sum(weight[i] * (made.value.weight @ x.items[b, i]) for i in range(n))
        torch.testing.assert_close(found[b, 0], wanted, rtol=1e-12, atol=1e-12)


def test_attention_pooling_is_torchs_attention_of_the_query():
    made = shaken(AttentionPool(DIM, HEADS))
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True).double()
    with torch.no_grad():
        copy_attention(made.attention, theirs)
    x = collection([5, 2])
    query = Collection.build(torch.randn(2, 1, DIM, generator=stream(5, "test"), dtype=torch.float64))
    wanted = query.items + theirs(query.items, x.items, x.items, key_padding_mask=~x.valid)[0]
    torch.testing.assert_close(made(query, x), wanted, rtol=1e-10, atol=1e-10)


def test_a_class_item_stands_in_front_and_answers():
    made = shaken(ClassPool(DIM))
    x = collection([3, 1])
    entered = made.enter(x)
    assert entered.valid.sum(1).tolist() == [4, 2]
    assert torch.equal(entered.items[:, 0], made.item.expand(2, -1))
    query = Collection.build(torch.zeros(2, 1, DIM, dtype=torch.float64))
    assert torch.equal(made(query, entered)[:, 0], made.item.expand(2, -1))


def test_every_named_pooling_answers_an_empty_group_with_the_query():
    empty = Collection.build(torch.zeros(2, 3, DIM), torch.zeros(2, 3, dtype=torch.bool))
    query = Collection.build(torch.ones(2, 1, DIM))
    for name in POOLS:
        made = pool(name, DIM, HEADS)
        if name == "attention":  # the output bias of the layer still applies
            nn.init.zeros_(made.attention.out.bias)
        if name == "class":
            continue  # its own item is never missing
        assert torch.equal(made(query, empty), query.items), name
    with pytest.raises(ConfigError, match=r'"meen" is not one of mean.*Did you mean "mean"'):
        pool("meen", DIM, HEADS)


def test_normalised_heads_depend_on_directions_only():
    ours = shaken(Encoder(DIM, 1, HEADS, normalise=True))
    attention = ours.blocks[0].attention
    q = torch.randn(2, HEADS, 5, DIM // HEADS, generator=stream(2, "test"), dtype=torch.float64)
    torch.testing.assert_close(attention._normalise(7 * q), attention._normalise(q), rtol=1e-9, atol=1e-9)
    unit = q / q.norm(dim=-1, keepdim=True)
    logits = attention._normalise(q) @ attention._normalise(q).transpose(2, 3) / (DIM // HEADS) ** 0.5
    tau = attention.log_temperature.exp()[:, None, None]
    torch.testing.assert_close(logits, tau * unit @ unit.transpose(2, 3), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["softmax", "window:3", "favor:16", "memory:0.9"])
def test_packed_rows_keep_their_own_segments_decays_and_masks(kind):
    """Each padded group of a packed collection takes its own rows, and no more columns than it has."""
    layer = MultiheadAttention(8, 2, attention=kinds.make("attention", kind)).double()
    lengths = torch.tensor([3, 9, 20, 40])
    valid = torch.arange(40) < lengths[:, None]
    items = torch.randn(4, 40, 8, generator=stream(0, "packed"), dtype=torch.float64)
    whole = Collection.build(items, valid)
    row = torch.arange(4)[:, None]
    seen = {
        "segment": torch.arange(40) // (2 + row),
        "decay": -torch.rand(4, 2, 40, generator=stream(1, "packed")).double(),
    }
    if kind == "softmax":
        seen["allowed"] = torch.rand(4, 1, 40, 40, generator=stream(2, "packed")) > 0.3
    wanted = layer(whole, causal=True, **seen)[valid]
    torch.testing.assert_close(layer(whole.pack(3), causal=True, **seen), wanted, atol=1e-10, rtol=0)
