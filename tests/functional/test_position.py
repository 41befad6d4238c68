import math

import pytest
import torch

from mapsto.errors import ConfigError
from mapsto.functional.position import rotate, sinusoidal
from mapsto.nn.position import Learned, NoPosition, Position, Rotary, Sinusoidal
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


@pytest.mark.parametrize("position", [NoPosition(), Sinusoidal(8), Learned(8, 4), Rotary(), Position()])
def test_a_set_is_left_as_it_is(position):
    items, x = draw(2, 3, 8), draw(2, 2, 3, 8)
    assert torch.equal(position.add(items, None), items)
    assert torch.equal(position.rotate(x, None), x)
    assert position.between(None, None) is None


def test_each_kind_uses_its_own_hook_only():
    items, x, places = draw(2, 3, 8), draw(2, 2, 3, 8), torch.arange(3.0).expand(2, 3)[..., None] + 1
    for position in (NoPosition(), Rotary()):
        assert torch.equal(position.add(items, places), items)
    for position in (NoPosition(), Sinusoidal(8), Learned(8, 4)):
        assert torch.equal(position.rotate(x, places), x)
        assert position.between(places, places) is None
    assert not torch.equal(Sinusoidal(8).add(items, places), items)
    assert torch.equal(Rotary(50.0).rotate(x, places), rotate(x, places, 50.0))


def test_a_bias_is_asked_for_block_by_block():
    class Distance(Position):
        def bias(self, places_q, places_k):
            return -(places_q - places_k.transpose(1, 2)).abs()[:, None]

    places = draw(2, 6, 1)
    block = Distance().between(places, places[:, :5])
    whole = Distance().bias(places, places[:, :5])
    assert whole.shape == (2, 1, 6, 5)
    assert torch.equal(block(slice(2, 4), slice(1, 5)), whole[:, :, 2:4, 1:5])


def test_learned_positions_add_their_vector_and_learn():
    position = Learned(4, 10)
    position.reset(stream(0, "init"))
    places = torch.tensor([[[0.0], [3.0], [9.0]]])
    items = torch.zeros(1, 3, 4, requires_grad=True)
    out = position.add(items, places)
    assert torch.equal(out[0], position.table[[0, 3, 9]])
    out.sum().backward()
    assert position.table.grad.sum(1).tolist() == [4, 0, 0, 4, 0, 0, 0, 0, 0, 4]
    again = Learned(4, 10)
    again.reset(stream(0, "init"))
    assert torch.equal(again.table, position.table)


@pytest.mark.parametrize(("place", "text"), [(10.0, "at place 10, but 10 places"), (-1.0, "at place -1")])
def test_a_place_beyond_the_learned_ones_is_named(place, text):
    with pytest.raises(ConfigError, match=text):
        Learned(4, 10).add(torch.zeros(1, 2, 4), torch.tensor([[[0.0], [place]]]))


def test_learned_positions_count_in_one_coordinate():
    with pytest.raises(ConfigError, match="these places have 2"):
        Learned(4, 10).add(torch.zeros(1, 2, 4), torch.zeros(1, 2, 2))


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
