import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapsto.ragged import Ragged


@st.composite
def columns(draw):
    lengths = draw(st.lists(st.integers(0, 6), max_size=8))
    shape = draw(st.sampled_from([(), (2,), (2, 3)]))
    dtype = draw(st.sampled_from([np.int32, np.float32, np.bool_, np.uint8]))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    rows = [(random.normal(size=(n, *shape)) * 5).astype(dtype) for n in lengths]
    taken = draw(st.lists(st.integers(0, len(rows) - 1), max_size=10)) if rows else []
    return rows, np.array(taken, np.int64)


@settings(max_examples=150, deadline=None)
@given(columns())
def test_gathering_equals_a_loop_over_rows(given):
    rows, taken = given
    column = Ragged.pack(rows)
    assert len(column) == len(rows)
    some = column.take(taken)
    assert some.lengths.tolist() == [len(rows[i]) for i in taken]
    values, valid = some.pad()
    assert values.shape[:2] == valid.shape == (len(taken), max((len(rows[i]) for i in taken), default=0))
    for b, i in enumerate(taken):
        n = len(rows[i])
        np.testing.assert_array_equal(values[b, :n], rows[i])
        assert not values[b, n:].any()
        assert valid[b].tolist() == [True] * n + [False] * (valid.shape[1] - n)
    flat, lengths = some.flat()
    assert lengths.tolist() == some.lengths.tolist()
    np.testing.assert_array_equal(flat, np.concatenate([flat[:0], *(rows[i] for i in taken)]))
    assert not rows or values.dtype == flat.dtype == rows[0].dtype


def test_padding_is_zero_even_where_the_next_row_is_not_a_number():
    column = Ragged.pack([np.array([1.0]), np.array([np.nan, np.inf, np.nan])])
    values, valid = column.take(np.array([0, 1])).pad()
    assert values[0].tolist() == [1.0, 0.0, 0.0]
    assert valid.sum() == 4


def test_rows_of_one_length_are_dense():
    column = Ragged.pack([np.arange(4.0).reshape(2, 2) + i for i in range(3)])
    np.testing.assert_array_equal(column.take(np.array([2, 0])).dense(), np.stack([column[2], column[0]]))
    assert column.take(np.array([], np.int64)).dense().shape == (0, 0, 2)
    with pytest.raises(AssertionError):
        Ragged.pack([np.zeros(1), np.zeros(2)]).take(np.array([0, 1])).dense()


def test_gathering_does_not_write_to_the_column():
    values = np.arange(5)
    values.flags.writeable = False
    column = Ragged(values, np.array([0, 2, 5]))
    padded, _ = column.take(np.array([0, 1])).pad()
    padded += 1
    assert column.values.tolist() == [0, 1, 2, 3, 4]
