import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapsto.document import dump, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def unpaired(value):
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


@given(VALUES)
@settings(deadline=None)
def test_what_is_written_is_read_as_json_does_and_has_one_text(value):
    if unpaired(value):
        with pytest.raises(UnicodeEncodeError):
            dump(value)
        return
    text = dump(value).decode()
    assert parse(text) == json.loads(text) == value
    assert dump(parse(text)).decode() == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 1}', 'the key "a" is given 2 times'),
        ('{"a": {"b": 1, "c": 2, "b": 3, "b": 4}}', 'the key "b" is given 3 times'),
        ('{"\\u001b[31m\\u202e": 1, "\\u001b[31m\\u202e": 2}', r'the key "\\x1b\[31m\\u202e" is given'),
        ('{"' + "k" * 500 + '": 1, "' + "k" * 500 + '": 2}', r'the key "k{60}\.\.\." is given'),
        ("[NaN]", "NaN is not a number in JSON"),
        ("-Infinity", "-Infinity is not a number in JSON"),
        ("[1e400]", "1e400 is beyond the range of 64 bits"),
        ("[" + "9" * 5000 + "]", "more than 4300 digits"),
        ('"\\ud800"', "half of a surrogate pair"),
        ('{"\\udfff": 1}', "half of a surrogate pair"),
        ("[" * 65 + "]" * 65, "nested deeper than 64"),
        ('{"a":' * 100_000, "nested deeper than 64"),
        ("[1] [2]", "Extra data"),
        ("{'a': 1}", "Expecting property name"),
        ("", "Expecting value"),
        ('"a\nb"', "Invalid control character"),
    ],
)
def test_a_text_that_is_no_json_or_could_be_read_twice_is_refused(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse(text)
    assert str(caught.value).isprintable()


def test_what_only_looks_odd_is_read():
    assert parse('"' + "[{" * 1000 + '"') == "[{" * 1000
    assert parse("[" * 64 + "]" * 64)
    assert parse('"\\ud83d\\ude00"') == "😀"
    assert parse('["\\\\ud800"]') == ["\\ud800"]
    assert parse(" [1E3, -0.0, 5e-324] ") == [1000.0, -0.0, 5e-324]


def test_numbers_that_json_cannot_hold_are_not_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump({"a": float("nan")})
