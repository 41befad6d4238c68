import math

import pytest
import torch

from mapsto.errors import ConfigError
from mapsto.functional.position import alibi, bucket, gathered, rotate, sinusoidal, skew, skewed
from mapsto.nn.position import Learned, Rotary, Sinusoidal
from mapsto.stream import stream


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=stream(seed, "test", *shape), dtype=torch.float64)


@pytest.mark.parametrize("place", [0.0, 1.0, 17.0, 0.37, -2.5, 4000.25])
def test_sinusoidal_is_the_formula_at_real_places(place):
    out = sinusoidal(torch.tensor([[place]], dtype=torch.float64), 8)[0]
    for i in range(4):
        angle = place / 10000 ** (2 * i / 8)
        assert abs(float(out[2 * i]) - math.sin(angle)) < 1e-9
        assert abs(float(out[2 * i + 1]) - math.cos(angle)) < 1e-9


def test_coordinates_share_the_width_equally():
    places = draw(2, 5, 3)
    out = sinusoidal(places, 24)
    for p in range(3):
        torch.testing.assert_close(out[..., 8 * p : 8 * p + 8], sinusoidal(places[..., p : p + 1], 8))


def test_sinusoidal_is_computed_in_float32_whatever_comes():
    assert sinusoidal(torch.arange(4)[:, None], 4).dtype == torch.float32
    assert sinusoidal(torch.arange(4.0)[:, None].bfloat16(), 4).dtype == torch.float32
    position = Sinusoidal(4, amplitude=1.0)
    items = torch.zeros(1, 300, 4, dtype=torch.bfloat16)
    places = torch.arange(300.0)[None, :, None]
    out = position.add(items, places)
    assert out.dtype == torch.bfloat16
    # In bfloat16 the place 299 would have been 300 or 298.
    torch.testing.assert_close(out[0].float().detach(), sinusoidal(places[0], 4), atol=4e-3, rtol=0)


def test_a_width_that_cannot_be_shared_is_refused():
    with pytest.raises(ConfigError, match="2 coordinates need a width that is a multiple of 4, got 6"):
        sinusoidal(torch.zeros(1, 2), 6)
    with pytest.raises(ConfigError, match="1 coordinate need a width that is a multiple of 2, got 5"):
        rotate(torch.zeros(1, 1, 1, 5), torch.zeros(1, 1, 1))


def test_rotate_is_a_product_of_complex_numbers():
    x, places = draw(2, 3, 5, 8), draw(2, 5, 1) * 30
    angle = places * 10000.0 ** -(torch.arange(4).double() / 4)
    turned = torch.view_as_complex(x.unflatten(-1, (4, 2)).contiguous()) * torch.exp(1j * angle)[:, None]
    torch.testing.assert_close(rotate(x, places), torch.view_as_real(turned).flatten(-2), atol=1e-9, rtol=0)


@pytest.mark.parametrize("coordinates", [1, 2])
def test_rotated_products_depend_on_differences_only(coordinates):
    q, k = draw(1, 2, 6, 8, seed=1), draw(1, 2, 6, 8, seed=2)
    places = draw(1, 6, coordinates, seed=3) * 10
    shifted = places + torch.tensor([7.5, -3.0]).double()[:coordinates]

    def logits(p):
        return rotate(q, p) @ rotate(k, p).transpose(-1, -2)

    torch.testing.assert_close(logits(places), logits(shifted), atol=1e-9, rtol=0)
    assert not torch.allclose(logits(places), logits(2 * places))
    torch.testing.assert_close(rotate(q, places).norm(dim=-1), q.norm(dim=-1), atol=1e-12, rtol=0)


def test_rotate_keeps_the_type_of_the_items():
    x = torch.ones(1, 1, 2, 4, dtype=torch.bfloat16)
    assert rotate(x, torch.arange(2.0)[None, :, None]).dtype == torch.bfloat16


@pytest.mark.parametrize("position", [Sinusoidal(8), Learned(8, 64), Rotary()], ids=lambda p: type(p).__name__)
def test_positions_compile_whole_with_any_length(position):
    def both(items, x, places):
        return position.add(items, places), position.rotate(x, places)

    torch._dynamo.reset()
    compiled = torch.compile(both, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (5, 9):
        given = draw(2, length, 8), draw(2, 2, length, 8), torch.arange(float(length)).expand(2, length)[..., None]
        for mine, theirs in zip(compiled(*given), both(*given), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_alibi_is_the_formula_at_real_places_of_any_coordinates():
    for coordinates in (1, 2):
        q, k = 9 * draw(2, 4, coordinates, seed=1), 9 * draw(2, 3, coordinates, seed=2)
        found = alibi(q, k, heads=3)
        for b in range(2):
            for h in range(3):
                for l in range(4):
                    for m in range(3):
                        distance = sum(abs(float(q[b, l, p]) - float(k[b, m, p])) for p in range(coordinates))
                        assert abs(float(found[b, h, l, m]) + 2 ** (-8 * (h + 1) / 3) * distance) < 1e-12


def plain_bucket(offset, count, longest, causal):
    """T5's formula, a number at a time; its logarithms are compared as whole powers."""
    if causal:
        start, n = 0, max(0, -offset)
    else:
        count //= 2
        start, n = count * (offset > 0), abs(offset)
    exact = count // 2
    if n < exact:
        return start + n
    j = 0  # floor(log(n / exact) / log(longest / exact) · (count - exact))
    while j < count - exact and n ** (count - exact) * exact ** (j + 1) >= longest ** (j + 1) * exact ** (
        count - exact
    ):
        j += 1
    return start + min(exact + j, count - 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("count", "longest"), [(32, 128), (8, 20), (6, 5), (4, 2), (64, 1000), (32, 9)])
def test_buckets_are_t5s(causal, count, longest):
    if causal and longest <= count // 2:
        longest += count
    offsets = list(range(-2 * longest, 2 * longest + 1))
    found = bucket(torch.tensor(offsets).float(), count, longest, causal=causal).tolist()
    assert found == [plain_bucket(o, count, longest, causal) for o in offsets]
    assert set(found) <= set(range(count))


def test_the_bounds_of_buckets_are_those_of_the_logarithm():
    for offset in range(8, 128):
        wanted = 8 + math.floor(math.log(offset / 8) / math.log(16) * 8 + 1e-9)
        assert int(bucket(torch.tensor(-float(offset)))) == wanted


@pytest.mark.parametrize("causal", [False, True])
def test_farther_keys_have_later_buckets(causal):
    found = bucket(-torch.arange(300.0), causal=causal)
    assert (found.diff() >= 0).all()
    assert int(found[-1]) == (31 if causal else 15)
    ahead = bucket(torch.arange(300.0), causal=causal)
    assert torch.equal(ahead[1:], torch.zeros(299) if causal else found[1:] + 16)


def test_buckets_of_real_offsets_are_those_of_the_nearest_whole_one():
    assert torch.equal(bucket(torch.tensor([-2.6, 0.4, 17.2])), bucket(torch.tensor([-3.0, 0.0, 17.0])))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"count": 7}, "7 buckets; expected an even"),
        ({"count": 2}, "2 buckets"),
        ({"longest": 8}, "longest=8; expected more"),
    ],
)
def test_buckets_that_cannot_be_are_refused(given, text):
    with pytest.raises(ConfigError, match=text):
        bucket(torch.zeros(1), **given)


@pytest.mark.parametrize("length", range(1, 21))
def test_the_skew_trick_is_the_gathered_form(length):
    """Every length, more and fewer distances than there are, blocks anywhere; values and gradients."""
    for far in (1, 3, 30):
        table = draw(2, 2 * far + 1, 4, seed=far).requires_grad_()
        for rows, keys in (
            (slice(0, length), slice(0, length)),
            (slice(length // 2, length), slice(0, 25)),
            (slice(3, 3 + length), slice(5, 9)),
        ):
            q = draw(2, 2, rows.stop - rows.start, 4).requires_grad_()
            count = keys.stop - keys.start
            places = (torch.arange(p.start, p.stop).double()[None, :, None] for p in (rows, keys))
            wanted = gathered(q, table, *places)
            found = skewed(q, table, rows.start - keys.start, count)
            torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
            upstream = draw(*found.shape, seed=5)
            for mine, theirs in zip(
                *(torch.autograd.grad(x, (q, table), upstream) for x in (found, wanted)), strict=True
            ):
                torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=0)


def test_relative_logits_are_the_formula():
    q, table, places_q, places_k = draw(2, 3, 4, 5), draw(3, 7, 5), 4 * draw(2, 4, 1), 4 * draw(2, 6, 1, seed=1)
    found = gathered(q, table, places_q, places_k)
    for b in range(2):
        for h in range(3):
            for l in range(4):
                for m in range(6):
                    offset = round(float(places_k[b, m, 0]) - float(places_q[b, l, 0]))
                    vector = table[h, min(max(offset, -3), 3) + 3]
                    wanted = sum(float(q[b, h, l, i]) * float(vector[i]) for i in range(5)) / math.sqrt(5)
                    assert abs(float(found[b, h, l, m]) - wanted) < 1e-12


def test_skew_reads_every_row_from_its_own_start():
    for queries in range(1, 6):
        for keys in range(1, 6):
            x = draw(2, queries, queries + keys)
            found = skew(x, keys)
            for i in range(queries):
                assert torch.equal(found[:, i], x[:, i, queries - 1 - i : queries - 1 - i + keys])


def test_logits_by_distance_do_not_change_when_all_places_move():
    q, table, places = draw(1, 2, 6, 4), draw(2, 9, 4), torch.arange(6.0)[None, :, None]
    for move in (5.0, 1000.0):
        moved = places + move
        assert torch.equal(alibi(moved, moved, 2), alibi(places, places, 2))
        assert torch.equal(gathered(q, table, moved, moved), gathered(q, table, places, places))
        offset = places.transpose(1, 2) - places
        assert torch.equal(bucket(moved.transpose(1, 2) - moved), bucket(offset))


def test_relative_logits_are_summed_in_float32():
    q, table = draw(1, 2, 6, 64).bfloat16(), draw(2, 9, 64).bfloat16()
    found = skewed(q, table, 0, 6)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), skewed(q.double(), table.double(), 0, 6), atol=1e-5, rtol=1e-5)
