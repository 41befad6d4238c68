import contextlib
import itertools
import math

import pytest
import torch

from mapsto.errors import ConfigError
from mapsto.functional import attention
from mapsto.functional.attention import attend, softargmax
from mapsto.stream import stream

FORMS = ["tiles", "fused"]


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """Both ways of computing it, whichever this machine would choose; with blocks small enough to be several."""
    monkeypatch.setattr(attention, "_tiles_win", lambda *_: request.param == "tiles")
    if request.param == "tiles":  # never given bfloat16 as it is
        monkeypatch.setattr(attention, "_matrix_units", lambda: False)
    return request.param


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr("mapsto.functional.block.SCORES", 600)
    monkeypatch.setattr("mapsto.functional.block.QUERIES", 5)
    monkeypatch.setattr("mapsto.functional.attention.MASK", 1)
    monkeypatch.setattr(attention, "_blocks", blocks_of_five)


def blocks_of_five(q, k, visible):
    for i in range(0, q.shape[2], 5):
        yield slice(i, min(i + 5, q.shape[2]))


def draw(*shape, seed=0, dtype=torch.float64, scale=1.0):
    return (torch.randn(*shape, generator=stream(seed, "test", *shape), dtype=torch.float64) * scale).to(dtype)


def qkv(batch=3, heads=2, queries=17, keys=17, key=8, value=8, dtype=torch.float64, scale=1.0):
    return (
        draw(batch, heads, queries, key, seed=1, dtype=dtype, scale=scale).requires_grad_(),
        draw(batch, heads, keys, key, seed=2, dtype=dtype, scale=scale).requires_grad_(),
        draw(batch, heads, keys, value, seed=3, dtype=dtype, scale=scale).requires_grad_(),
    )


def reference(q, k, v, *, valid=None, segment=None, allowed=None, causal=False, bias=None, decay=None, beta=None):
    """The formula, one query at a time, with sums over the seen keys only."""
    (B, H, L, K), M = q.shape, k.shape[2]
    beta = K**-0.5 if beta is None else beta
    whole = torch.zeros(1, 1, L, M).double() if bias is None else bias(slice(0, L), slice(0, M))
    whole = whole.expand(B, H, L, M)
    rows = []
    for b, h, l in itertools.product(range(B), range(H), range(L)):
        logits, values = [], []
        for m in range(M):
            if valid is not None and not valid[b, m]:
                continue
            if segment is not None and segment[b, l] != segment[b, m]:
                continue
            if allowed is not None and not allowed.expand(B, H, L, M)[b, h, l, m]:
                continue
            if causal and m > l:
                continue
            logit = beta * q[b, h, l] @ k[b, h, m] + whole[b, h, l, m]
            if decay is not None:
                known = decay[b, h] if valid is None else decay[b, h].where(valid[b], torch.zeros(()).double())
                logit = logit + known[m + 1 : l + 1].sum()
            logits.append(logit)
            values.append(v[b, h, m])
        seen = bool(logits)
        rows.append(torch.stack(logits).softmax(0) @ torch.stack(values) if seen else 0 * q[b, h, l].sum() * v[0, 0, 0])
    return torch.stack(rows).view(B, H, L, -1)


def prefix(lengths, longest):
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


def masks():
    valid, segment = prefix([17, 9, 0], 17), torch.arange(17).div(6, rounding_mode="floor").expand(3, 17)
    allowed = torch.rand(3, 1, 17, 17, generator=stream(4, "test")) > 0.4
    allowed[0, 0, 3] = False
    slopes = torch.tensor([0.5, 0.25]).double()

    def alibi(queries, keys):
        distance = torch.arange(queries.start, queries.stop)[:, None] - torch.arange(keys.start, keys.stop)
        return -slopes[:, None, None] * distance.abs()[None]

    decay = -draw(3, 2, 17, seed=5).abs()
    return {
        "nothing": {},
        "valid": {"valid": valid},
        "scattered valid": {"valid": torch.rand(3, 17, generator=stream(6, "test")) > 0.5},
        "causal": {"causal": True},
        "causal valid": {"causal": True, "valid": valid},
        "segment": {"segment": segment, "valid": valid, "causal": True},
        "allowed": {"allowed": allowed},
        "allowed by head": {"allowed": (torch.rand(1, 2, 17, 17, generator=stream(7, "test")) > 0.5), "valid": valid},
        "bias": {"bias": lambda a, b: alibi(a, b)[None], "valid": valid},
        "decay": {"decay": decay, "causal": True},
        "decay valid bias": {"decay": decay, "causal": True, "valid": valid, "bias": lambda a, b: alibi(a, b)[None]},
        "beta": {"beta": 3.0, "valid": valid},
    }


def gradients(out, inputs, weight=None):
    weight = draw(*out.shape, seed=9, dtype=out.dtype) if weight is None else weight
    return torch.autograd.grad(out, inputs, weight)


@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("blocks", [True, False])
def test_it_equals_the_formula_forward_and_backward(name, blocks, form, request):
    if blocks:
        request.getfixturevalue("small")
    seen = masks()[name]
    q, k, v = inputs = qkv()
    if "decay" in seen:
        seen["decay"].requires_grad_()
        inputs = (*inputs, seen["decay"])
    out, wanted = attend(q, k, v, **seen), reference(q, k, v, **seen)
    torch.testing.assert_close(out, wanted, atol=1e-10, rtol=0)
    for mine, theirs in zip(gradients(out, inputs), gradients(wanted, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=0)


@pytest.mark.parametrize("blocks", [True, False])
def test_a_learned_bias_gets_its_gradient(blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr(attention, "_blocks", blocks_of_five)
    table = draw(2, 33, seed=8).requires_grad_()

    def relative(queries, keys):
        distance = torch.arange(queries.start, queries.stop)[:, None] - torch.arange(keys.start, keys.stop)
        return table[:, distance + 16][None]

    q, k, v = qkv()
    seen = {"bias": relative, "valid": prefix([17, 4, 1], 17)}
    out, wanted = attend(q, k, v, **seen), reference(q, k, v, **seen)
    torch.testing.assert_close(out, wanted, atol=1e-10, rtol=0)
    for mine, theirs in zip(gradients(out, (q, k, v, table)), gradients(wanted, (q, k, v, table)), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=0)


@pytest.mark.parametrize(("queries", "keys", "value"), [(5, 9, 3), (1, 40, 8), (40, 1, 16)])
def test_cross_attention_with_values_of_another_width(queries, keys, value):
    q, k, v = qkv(queries=queries, keys=keys, value=value)
    seen = {"valid": prefix([keys, 1, 0], keys)}
    torch.testing.assert_close(attend(q, k, v, **seen), reference(q, k, v, **seen), atol=1e-10, rtol=0)


def test_it_equals_torch_in_float32_on_long_rows(form):
    q, k, v = qkv(1, 2, 700, 700, 16, 16, torch.float32)
    for causal in (False, True):
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out = attend(q, k, v, causal=causal)
        torch.testing.assert_close(out, wanted, atol=1e-5, rtol=0)
        for mine, theirs in zip(gradients(out, (q, k, v)), gradients(wanted, (q, k, v)), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


def padding_is_seen(answer, seen, shape=(3, 2, 17, 8), dtype=torch.float64):
    """Whether anything but zeros in padded items changes any bit of a real output or gradient (law P)."""
    valid = seen["valid"]
    gone = ~valid[:, None, :, None]
    upstream = draw(*shape, seed=9, dtype=dtype).masked_fill(gone, 0)
    results = []
    for filling in (0.0, 7.0, 1e38, math.inf, math.nan):
        x = [t.detach().masked_fill(gone, filling).requires_grad_() for t in qkv(dtype=dtype)]
        more = dict(seen)
        if "decay" in seen:
            more["decay"] = seen["decay"].detach().masked_fill(~valid[:, None], filling).requires_grad_()
        out = answer(*x, **more)
        given = (*x, more["decay"]) if "decay" in seen else tuple(x)
        results.append((out.masked_fill(gone, 0), *gradients(out, given, upstream)))
    return any(not torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("name", [n for n, s in masks().items() if "valid" in s and n != "scattered valid"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_padding_changes_nothing(name, dtype, form):
    assert not padding_is_seen(attend, masks()[name], dtype=dtype)


def test_the_check_of_padding_catches_plain_attention():
    def plain(q, k, v, valid):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None])

    assert padding_is_seen(plain, {"valid": prefix([17, 9, 1], 17)})


def test_the_amount_of_padding_changes_nothing(form):
    q, k, v = qkv(dtype=torch.float32)
    out = attend(q, k, v)
    for amount in (1, 10, 500):
        pad = [torch.cat([t, torch.full((3, 2, amount, 8), math.nan)], 2) for t in (q, k, v)]
        padded = attend(*pad, valid=prefix([17] * 3, 17 + amount))
        torch.testing.assert_close(padded[:, :, :17], out, atol=1e-5, rtol=0)


def test_a_query_that_is_not_finite_and_unused_poisons_nothing(form):
    for bad in (math.nan, math.inf, 1e38):
        q, k, v = qkv(dtype=torch.float32)
        upstream = draw(3, 2, 17, 8, dtype=torch.float32)
        upstream[:, :, 4] = 0
        hurt = q.detach().clone()
        hurt[:, :, 4] = bad
        hurt.requires_grad_()
        clean = q.detach().clone()
        clean[:, :, 4] = 0
        clean.requires_grad_()
        out, wanted = attend(hurt, k, v), attend(clean, k, v)
        for mine, theirs in zip(
            gradients(out, (hurt, k, v), upstream), gradients(wanted, (clean, k, v), upstream), strict=True
        ):
            assert torch.equal(mine, theirs)


def test_a_query_that_is_not_finite_and_used_is_not_hidden(form):
    q, k, v = qkv(dtype=torch.float32)
    hurt = q.detach().clone()
    hurt[0, 0, 4] = math.nan
    out = attend(hurt.requires_grad_(), k, v)
    assert out[0, 0, 4].isnan().all()
    assert out.isnan().sum() == 8


@pytest.mark.parametrize("name", ["valid", "allowed", "causal valid", "segment", "decay valid bias"])
def test_a_query_with_nothing_to_see_gets_zeros_and_the_others_do_not_change(name, form):
    seen = masks()[name]
    blind = torch.ones(3, 1, 17, 17, dtype=torch.bool)
    blind[:, :, 6] = False
    with_blind = {**seen, "allowed": blind if "allowed" not in seen else seen["allowed"] & blind}
    if "allowed" not in seen:
        seen = {**seen, "allowed": torch.ones_like(blind)}
    q, k, v = qkv()
    out, before = attend(q, k, v, **with_blind), attend(q, k, v, **seen)
    assert (out[:, :, 6] == 0).all()
    others = torch.arange(17) != 6
    assert torch.equal(out[:, :, others], before[:, :, others])
    upstream = draw(3, 2, 17, 8)
    changes = gradients(out, (q, k, v), upstream)
    assert all(g.isfinite().all() for g in changes)
    assert (changes[0][:, :, 6] == 0).all()
    upstream[:, :, 6] = 0
    for mine, theirs in zip(changes, gradients(before, (q, k, v), upstream), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 4, 4), (2, 0, 4), (2, 4, 0), (2, 0, 0), (2, 1, 1)])
def test_empty_batches_and_sets_give_zeros_and_zero_gradients(batch, queries, keys, form):
    q, k, v = qkv(batch, 2, queries, keys)
    for seen in ({}, {"valid": torch.ones(batch, keys, dtype=torch.bool)}, {"causal": queries == keys}):
        out = attend(q, k, v, **seen)
        assert out.shape == (batch, 2, queries, 8)
        assert all(g.isfinite().all() for g in gradients(out, (q, k, v)))
        if not keys:
            assert (out == 0).all()


def future_is_seen(answer, seen, size):
    """Whether what comes after place 10 changes any bit up to it (law C)."""
    q, k, v = (t.detach() for t in qkv(dtype=torch.float32))
    later, more = [t.clone() for t in (q, k, v)], dict(seen)
    for i, t in enumerate(later):
        t[:, :, 11:] = size * draw(3, 2, 6, 8, seed=20 + i, dtype=torch.float32)
    if "decay" in seen:
        more["decay"] = torch.cat([seen["decay"][:, :, :11], seen["decay"][:, :, 11:] * (1 + size)], 2)
    out, changed = answer(q, k, v, **seen), answer(*later, **more)
    assert not torch.equal(changed[:, :, 11:], out[:, :, 11:])
    return not torch.equal(changed[:, :, :11], out[:, :, :11])


@pytest.mark.parametrize("name", ["causal", "causal valid", "segment", "decay", "decay valid bias"])
@pytest.mark.parametrize("size", [1, 10, 1000])
def test_the_future_changes_nothing(name, size, form, small):
    assert not future_is_seen(attend, masks()[name], size)


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_the_check_of_causality_catches_a_stabiliser_that_looks_ahead(size):
    def stabilised(q, k, v, causal):
        logits = q @ k.transpose(-1, -2) * 8**-0.5
        weights = torch.exp(
            logits - logits.amax(-1, keepdim=True)
        ).tril()  # the largest of all keys, also of later ones
        return weights @ v / weights.sum(-1, keepdim=True)

    assert future_is_seen(stabilised, {"causal": True}, size)


def test_a_row_alone_is_the_row_in_any_company(form, small):
    q, k, v = (t.detach() for t in qkv(dtype=torch.float32))
    valid = prefix([17, 9, 3], 17)
    out = attend(q, k, v, valid=valid)
    for b in range(3):
        torch.testing.assert_close(
            attend(q[b : b + 1], k[b : b + 1], v[b : b + 1], valid=valid[b : b + 1])[0], out[b], atol=1e-5, rtol=0
        )
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(attend(q[order], k[order], v[order], valid=valid[order]), out[order], atol=1e-5, rtol=0)


def test_permuting_keys_changes_nothing_and_permuting_queries_permutes(form):
    q, k, v = qkv()
    order = torch.randperm(17, generator=stream(11, "test"))
    out = attend(q, k, v)
    torch.testing.assert_close(attend(q, k[:, :, order], v[:, :, order]), out, atol=1e-10, rtol=0)
    torch.testing.assert_close(attend(q[:, :, order], k, v), out[:, :, order], atol=1e-10, rtol=0)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_finite_inputs_give_finite_outputs_and_gradients(scale, dtype, form):
    q, k, v = qkv(dtype=dtype, scale=scale)
    for seen in ({}, {"valid": prefix([17, 9, 0], 17)}, {"causal": True}):
        out = attend(q, k, v, **seen)
        assert out.isfinite().all()
        assert all(g.isfinite().all() for g in gradients(out, (q, k, v)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_as_exact_as_its_inputs(dtype, form):
    q, k, v = qkv(dtype=dtype)
    out = attend(q, k, v, causal=True)
    assert out.dtype == dtype
    wanted = attend(q.double(), k.double(), v.double(), causal=True)
    torch.testing.assert_close(out.double(), wanted, atol=torch.finfo(dtype).eps, rtol=torch.finfo(dtype).eps)
    assert all(g.dtype == dtype for g in gradients(out, (q, k, v)))


def test_short_rows_are_trained_in_float32_whatever_the_machine(monkeypatch):
    monkeypatch.setattr(attention, "_matrix_units", lambda: True)
    q, k, v = qkv(dtype=torch.bfloat16)
    exact = attend(q.detach().float(), k.detach().float(), v.detach().float(), causal=True).bfloat16()
    assert torch.equal(attend(q, k, v, causal=True), exact)
    with torch.no_grad():
        seen = []
        monkeypatch.setattr(attention, "_fused", lambda q, *_: seen.append(q.dtype) or q)
        attend(q, k, v, causal=True)
    long = torch.zeros(1, 1, 256, 64, dtype=torch.bfloat16, requires_grad=True)
    attend(long, long, long)
    attend(long[..., :32], long[..., :32], long[..., :32])
    assert seen == [torch.bfloat16, torch.bfloat16, torch.float32]


def test_autocast_does_not_lower_the_products(form):
    q, k, v = qkv(dtype=torch.float32)
    wanted = attend(q, k, v)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attend(q, k, v), wanted)


def test_eight_thousand_places_and_long_decays_stay_finite(form):
    q, k, v = qkv(1, 1, 8192, 8192, 4, 4, torch.float32)
    decay = torch.full((1, 1, 8192), -0.5)
    out = attend(q, k, v, causal=True, decay=decay)
    assert out.isfinite().all()
    # With so short a memory the last answers are those of the last 200 places alone.
    last = attend(*(t[:, :, -200:] for t in (q, k, v)), causal=True, decay=decay[..., -200:])
    torch.testing.assert_close(out[:, :, -50:], last[:, :, -50:], atol=1e-5, rtol=0)


def test_inputs_are_not_written_to(form):
    q, k, v = (t.detach() for t in qkv())
    before = [t.clone() for t in (q, k, v)]
    attend(q, k, v, valid=prefix([3, 4, 5], 17))
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v), strict=True))


def test_the_kernel_is_chosen_without_looking_at_the_batch(monkeypatch):
    """No comparison of values decides anything: the same shapes take the same way whatever is in them."""
    chosen = []
    old = attention._tiles_win
    monkeypatch.setattr(attention, "_tiles_win", lambda *a: chosen.append(old(*a)) or chosen[-1])
    for scale in (0.0, 1.0, 1e4):
        q, k, v = qkv(dtype=torch.float32, scale=scale)
        attend(q, k, v, valid=prefix([17, 1, 0] if scale else [17, 17, 17], 17))
    assert len(set(chosen)) == 1


@pytest.mark.parametrize(
    ("name", "learning"),
    [
        (n, n in ("valid", "causal valid", "decay"))
        for n in ("valid", "causal valid", "segment", "allowed", "bias", "decay")
    ],
)
def test_it_compiles_whole_with_any_length(name, learning):
    torch._dynamo.reset()
    seen = masks()[name]
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=True)
    with contextlib.nullcontext() if learning else torch.no_grad():
        for length in (17, 7):
            cut = {
                n: s[..., :length, :length] if n == "allowed" else s[..., :length] if torch.is_tensor(s) else s
                for n, s in seen.items()
            }
            q, k, v = inputs = qkv(queries=length, keys=length)
            out, wanted = compiled(q, k, v, **cut), attend(q, k, v, **cut)
            torch.testing.assert_close(out, wanted, atol=1e-10, rtol=0)
            if learning:
                for mine, theirs in zip(gradients(out, inputs), gradients(wanted, inputs), strict=True):
                    torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_it_exports_with_any_batch_and_length(causal):
    class Whole(torch.nn.Module):
        def forward(self, q, k, v, valid):
            return attend(q, k, v, valid=valid, causal=causal)

    q, k, v = (t.detach() for t in qkv(dtype=torch.float32))
    auto = torch.export.Dim.AUTO
    shapes = {"q": {0: auto, 2: auto}, "k": {0: auto, 2: auto}, "v": {0: auto, 2: auto}, "valid": {0: auto, 1: auto}}
    with torch.no_grad():
        program = torch.export.export(Whole(), (q, k, v, prefix([17, 9, 0], 17)), dynamic_shapes=shapes).module()
        for batch, length in ((3, 17), (5, 30), (2, 4)):
            q, k, v = (t.detach() for t in qkv(batch, 2, length, length, dtype=torch.float32))
            valid = prefix([length] + [2] * (batch - 1), length)
            torch.testing.assert_close(
                program(q, k, v, valid), attend(q, k, v, valid=valid, causal=causal), atol=1e-5, rtol=0
            )


def test_softargmax_tends_to_the_argmax_and_to_the_mean():
    s = torch.tensor([[0.3, -1.0, 2.0, 1.9]], dtype=torch.float64)
    torch.testing.assert_close(softargmax(s, 0.7), torch.exp(0.7 * s) / torch.exp(0.7 * s).sum(), atol=1e-12, rtol=0)
    torch.testing.assert_close(softargmax(s, 1e4), torch.tensor([[0.0, 0.0, 1.0, 0.0]]).double())
    assert (softargmax(s, 0.0) == 0.25).all()
    assert torch.equal(softargmax(s), torch.softmax(s, -1))
    torch.testing.assert_close(softargmax(s.T, 2.0, dim=0), softargmax(s, 2.0).T)
    assert softargmax(1e30 * s, 2.0).isfinite().all()


def test_wrong_sizes_are_named():
    q, k, v = qkv()
    with pytest.raises(ConfigError, match="as many queries as keys, got 9 and 17"):
        attend(q[:, :, :9], k, v, causal=True)
    with pytest.raises(ConfigError, match="equally wide"):
        attend(q[..., :4], k, v)
    with pytest.raises(ConfigError, match="batch × heads × items × width"):
        attend(q[0], k[0], v[0])
    with pytest.raises(ConfigError, match="causal=True"):
        attend(q, k, v, decay=torch.zeros(3, 2, 17))


@pytest.mark.parametrize(
    ("wide", "slow", "short_trained", "short", "long"),
    [(False, False, True, False, False), (True, False, False, False, False), (True, True, True, True, True)],
)
def test_tiles_are_taken_where_they_were_measured_to_win(wide, slow, short_trained, short, long, monkeypatch):
    monkeypatch.setattr(attention, "has_avx512", lambda: wide)
    monkeypatch.setattr(attention, "slow_mkl", lambda: slow)
    chosen, old = [], attention._tiles_win
    monkeypatch.setattr(attention, "_tiles_win", lambda *a: chosen.append(old(*a)) or chosen[-1])
    with torch.no_grad():
        for length in (16, 300):
            q = draw(1, 1, length, 8, dtype=torch.float32)
            attend(q, q, q)
    q = draw(1, 1, 16, 8, dtype=torch.float32).requires_grad_()
    attend(q, q, q)
    attend(q, q, draw(1, 1, 16, 4, dtype=torch.float32))  # which the kernel does not know
    assert chosen == [short, long, short_trained, True]
