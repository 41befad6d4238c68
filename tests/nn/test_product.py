"""Packed weights against the plain product: as exact, never stale, and left alone where they do not suit."""

import pytest
import torch
import torch.nn.functional as F

from mapsto.models.mapper import Mapper
from mapsto.models.search import Beam, Greedy, search
from mapsto.nn import product
from mapsto.nn.initial import initialise
from mapsto.nn.position import Learned
from mapsto.nn.product import MOST, TRIES, Products
from mapsto.nn.transformer import Encoder, Prior
from mapsto.outputs.sequence import SequenceOutput
from mapsto.stream import stream
from mapsto.vocabulary import BEGIN, Characters

usable = pytest.mark.skipif(product._fewest() > MOST, reason="this torch packs no weights here")


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=stream(seed, "test", *shape))


@pytest.fixture
def made(monkeypatch):
    """The shapes that are packed, or are about to be: small ones and single rows too."""
    found, pack, real = [], product._pack, product._Made
    if product._fewest() <= MOST:
        monkeypatch.setattr(product, "_fewest", lambda: 1)
    monkeypatch.setattr(product, "SMALL", 0)
    monkeypatch.setattr(product, "_pack", lambda w, m: found.append(tuple(w.shape)) or pack(w, m))
    monkeypatch.setattr(product, "_Made", lambda w: found.append(tuple(w.shape)) or real(w))
    return found


def model(dtype=torch.float32):
    output = SequenceOutput(16, name="text", vocabulary=Characters(list("abcdefgh")), window=64)
    made = Mapper({}, Encoder(16, 0, 2), Prior(16, 2, 2, position=Learned(16, 64)), output)
    initialise(made, 0)
    with torch.no_grad():
        made.reader.position.table.mul_(20)
    return made.eval().to(dtype)


def written(made, how=None, tokens=40):
    prompt = torch.full((3, 2), BEGIN)
    prompt[:, 1] = torch.arange(3, 6)
    found = search(made.write, made.begin({}, 3, tokens + 2), prompt, strategy=how or Greedy(), limit=tokens, ends=())
    return [(line.ids, line.log_probability) for (line,) in found]


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2, 7, MOST, MOST + 1])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_the_plain_ones(rows, bias, made):
    weight, b, products = draw(96, 64, seed=1), draw(96) if bias else None, Products(16)
    for x in (draw(rows, 64), draw(rows, 1, 64), draw(1, rows, 64)):
        for _ in range(TRIES + 1):
            torch.testing.assert_close(products(x, weight, b), F.linear(x, weight, b), atol=1e-5, rtol=1e-5)
    assert len(made) <= 2  # once for all


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 256), (256,), (1, 1, 256)])
def test_a_single_row_is_multiplied_in_parts_that_threads_share(shape, bias, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(product, "_fewest", lambda: 2)
    monkeypatch.setattr(product, "has_avx512", lambda: False)
    taken = []
    monkeypatch.setattr(product, "_parted", lambda *given, plain=product._parted: taken.append(0) or plain(*given))
    x, weight, b = draw(*shape), draw(160, 256, seed=1), draw(160, seed=2) if bias else None
    with torch.no_grad():
        found = Products(100)(x, weight, b)
        Products(100)(x, draw(150, 256), None)  # does not part evenly
    assert len(taken) == 1
    torch.testing.assert_close(found, torch.nn.functional.linear(x, weight, b), rtol=1e-6, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 256), (256,), (1, 1, 256)])
def test_with_avx512_a_single_row_is_a_vector(shape, bias, monkeypatch):
    monkeypatch.setattr(product, "_fewest", lambda: 4)
    monkeypatch.setattr(product, "has_avx512", lambda: True)
    x, whole, b = draw(*shape), draw(160, 512, seed=1), draw(160, seed=2) if bias else None
    for weight in (whole[:, :256].contiguous(), whole[:, 256:]):
        found = Products(100)(x, weight, b)
        torch.testing.assert_close(found, F.linear(x, weight, b), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("wide", "slow", "least"), [(False, False, 2), (True, False, 4), (True, True, 1)])
def test_few_rows_are_packed_where_that_was_measured_to_pay(wide, slow, least, monkeypatch):
    monkeypatch.setattr(product, "_packs", lambda: True)
    monkeypatch.setattr(product, "has_avx512", lambda: wide)
    monkeypatch.setattr(product, "slow_mkl", lambda: slow)
    assert product._fewest() == least


def test_parts_and_transposes_of_a_weight_are_told_apart(made):
    weight, x, products = draw(64, 64), draw(4, 64), Products(16)
    for part in TRIES * (weight, weight[:16], weight[16:], weight.T, weight[:, :32]):
        y = x[:, : part.shape[1]]
        torch.testing.assert_close(products(y, part, None), y @ part.T, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 4])
def test_a_weight_that_changes_is_made_anew(rows, made):
    weight, x, products = torch.nn.Parameter(draw(64, 64)), draw(rows, 64), Products(16)

    def holds():
        for part in (weight, weight[:16]):
            torch.testing.assert_close(products(x, part, None), x @ part.T, atol=1e-5, rtol=1e-5)

    for _ in range(TRIES):
        holds()
    weight.mul_(-2)
    holds()
    weight.data = draw(64, 64, seed=5)
    for _ in range(TRIES):
        holds()


def test_what_does_not_suit_is_the_plain_product_to_the_bit(made, monkeypatch):
    monkeypatch.setattr(product, "TRIES", 1)
    weight, x = draw(64, 64), draw(4, 64)
    with torch.no_grad():
        for kind in (torch.float64, torch.bfloat16):
            assert torch.equal(Products(16)(x.to(kind), weight.to(kind), None), F.linear(x.to(kind), weight.to(kind)))
        assert torch.equal(Products(15)(x, weight, None), F.linear(x, weight))
        long = draw(MOST + 1, 64)
        assert torch.equal(Products(16)(long, weight, None), F.linear(long, weight))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert Products(16)(x, weight, None).dtype == torch.bfloat16
    with torch.inference_mode():
        inside = weight.clone()
        assert torch.equal(Products(16)(x, inside, None), F.linear(x, inside))
    learned = weight.clone().requires_grad_()
    Products(16)(x, learned, None).sum().backward()
    assert learned.grad is not None
    assert not made


@pytest.mark.parametrize("fault", ["gone", "rounds"])
def test_a_torch_without_exact_packed_products_packs_nothing(fault, monkeypatch):
    def gone(*_):
        raise AttributeError("no such operator")

    def rounds(x, weight, *_):
        return (x.bfloat16() @ weight.to_dense().bfloat16().T).float() if weight.is_mkldnn else x.bfloat16().float()

    name, broken = ("_reorder_linear_weight", gone) if fault == "gone" else ("_linear_pointwise", rounds)
    monkeypatch.setattr(torch.ops.mkldnn, name, broken, raising=False)
    assert not product._packs.__wrapped__()
    monkeypatch.setattr(product, "_packs", lambda: False)
    assert product._fewest() > MOST


@usable
def test_decoding_with_packed_weights_writes_what_the_plain_ones_write(made, monkeypatch):
    for how in (Greedy(), Beam(4, penalty=0.0)):
        fast = written(model(), how)
        assert made
        with monkeypatch.context() as plain:
            plain.setattr(product, "_fewest", lambda: MOST + 1)
            slow = written(model(), how)
        wide = written(model(torch.float64), how)
        for (ids, log_p), (same, plainly), (double, true) in zip(fast, slow, wide, strict=True):
            assert ids == same == double
            assert log_p == pytest.approx(plainly, abs=1e-4) == pytest.approx(true, abs=1e-4)


@usable
def test_weights_that_change_after_a_first_line_are_seen_by_the_next(made):
    made = model()
    first = written(made)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * draw(*p.shape, seed=7))
    again, fresh = written(made), model()
    fresh.load_state_dict(made.state_dict())
    assert again == written(fresh) != first


def test_logits_are_those_of_the_last_token_that_exists():
    made, ids = model(torch.float64), torch.randint(3, 9, (3, 5), generator=stream(0, "test"))
    valid = torch.arange(5) < torch.tensor([5, 2, 4])[:, None]
    logits, answers, _ = made.write(ids, made.begin({}, 3, 8), valid=valid)
    assert logits.shape == (3, 1, made.output.vocabulary.size)
    assert answers.shape == (3, 5, 16)
    for row, n in enumerate((5, 2, 4)):
        alone, _, _ = made.write(ids[row : row + 1, :n], made.begin({}, 1, 8))
        torch.testing.assert_close(logits[row], alone[0])
