"""Mutants of text files (CSV, TSV, JSONL, TXT, also as gz), and models of these formats: a character at a time."""

import gzip
import json
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mutant import Mutant, Want, damage

__all__ = ["CELLS", "draw_csv", "draw_jsonl", "draw_tsv", "draw_txt"]

# fmt: off
CELLS = [
    "007", "NA", "nan", "1e400", "2024-05-01", "\0", "a\0b", "1_000", "0x10", "１２", "1,5", "--1", "inf", "Infinity",
    "null", "None", "true", "é", "\u2028", "=1+1", "\u202e", "'", " ", " x ", "9" * 400, "x" * 5000, "", "\x1b[31m",
    '"', '""', 'a"b', ',"', "a\nb", "a\rb", "a\r\nb", "\t", ";", "|", "\ufeff", "1", "2.5", "-3", "word",
    "two words",
]
# fmt: on
ENDS = ["\n", "\r\n", "\r"]


class Broken(Exception):
    """What a model refuses, with the place."""

    def __init__(self, *places: str):
        super().__init__(*places)
        self.places = frozenset(places)


def split_cells(data: bytes, delimiter: int) -> tuple[list[list[tuple[bytes, bool]]], int | None]:
    """Rows of (cell, whether it was quoted), and the byte at which a quoted cell is malformed."""
    rows: list[list[tuple[bytes, bool]]] = []
    row: list[tuple[bytes, bool]] = []
    at, start, size = 0, 0, len(data)
    while at < size:
        start, cell, quoted = at, b"", data[at] == 34
        if quoted:
            at += 1
            while True:
                close = data.find(b'"', at)
                if close < 0:
                    return rows, start
                cell += data[at:close]
                at = close + 1
                if data[at : at + 1] != b'"':
                    break
                cell += b'"'
                at += 1
            if at < size and data[at] not in (delimiter, 10, 13):
                return rows, start
        else:
            while at < size and data[at] not in (delimiter, 10, 13):
                at += 1
            cell = data[start:at]
        row.append((cell, quoted))
        if at < size and data[at] == delimiter:
            at += 1
            if at == size or data[at] in (10, 13):
                row.append((b"", False))
            else:
                continue
        rows.append(row)
        row = []
        at += 2 if data[at : at + 2] == b"\r\n" else 1
    return rows, None


def line_of(data: bytes, at: int) -> str:
    return f"line {len(data[:at].replace(bytes([13, 10]), bytes([10])).replace(bytes([13]), bytes([10])).split(bytes([10])))}"


def text_of(data: bytes) -> bytes:
    """Without its mark; what is not UTF-8 is refused."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Broken
    return data[3:] if data[:3] == b"\xef\xbb\xbf" else data


def undecodable(data: bytes) -> set[str]:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return {line_of(data, error.start)}
    return set()


def model_cells(data: bytes, delimiter: bytes) -> dict[str, list[Any]]:
    """A CSV or TSV."""
    data = text_of(data)
    rows, bad = split_cells(data, delimiter[0])
    places = undecodable(data) | (set() if bad is None else {line_of(data, bad)})
    rows = [row for row in rows if row != [(b"", False)]]
    names = [cell.decode(errors="replace").strip() for cell, _ in rows[0]] if rows else []
    if len(set(names)) < len(names) or (len(rows) < 2 and bad is None):
        raise Broken
    ragged = [f"row {number}" for number, row in enumerate(rows[1:], 1) if len(row) != len(names)]
    if places or ragged:
        raise Broken(*places, *ragged[:1])  # a file may be broken twice
    cells = [[None if not c and not quoted else c.decode() for c, quoted in row] for row in rows[1:]]
    return {name: [row[i] for row in cells] for i, name in enumerate(names)}


def model_lines(data: bytes) -> list[bytes]:
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return lines if lines[-1] else lines[:-1]


def model_text(data: bytes) -> dict[str, list[Any]]:
    """A TXT."""
    data = text_of(data)
    if places := undecodable(data):
        raise Broken(*places)
    lines = model_lines(data)
    if not lines:
        raise Broken
    return {"text": [line.decode() or None for line in lines]}


def strict(text: str) -> dict[str, Any]:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) < len(found):
            raise ValueError
        return dict(found)

    def constant(name: str) -> None:
        raise ValueError(name)

    def check(value: Any, deep: int) -> None:
        if isinstance(value, str):
            value.encode()
        elif isinstance(value, float) and value in (float("inf"), -float("inf")):
            raise ValueError
        elif isinstance(value, dict | list):
            if deep >= 64:
                raise ValueError
            for item in value if isinstance(value, list) else [*value, *value.values()]:
                check(item, deep + 1)

    value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    if not isinstance(value, dict):
        raise ValueError
    check(value, 0)
    return value


def model_json(data: bytes) -> dict[str, list[Any]]:
    """A JSONL."""
    data = text_of(data)
    places = undecodable(data)
    rows = []
    for number, line in enumerate(model_lines(data), 1):
        try:
            text = line.decode()
            if text.strip():
                rows.append(strict(text))
        except (ValueError, RecursionError):
            places.add(f"line {number}")
    if places:
        raise Broken(*places)
    names = dict.fromkeys(key for row in rows for key in row)
    if not names:
        raise Broken
    return {name: [row.get(name) for row in rows] for name in names}


Model = Callable[[bytes], Mapping[str, Sequence[Any]]]


def want(model: Model, data: bytes) -> Want:
    """What a model says of some bytes."""
    try:
        return Want(model(data))
    except Broken as broken:
        return Want(None, broken.places)


def finish(draw: random.Random, mutation: str, data: bytes, ending: str, model: Model) -> Mutant:
    """As a plain file or as gz, whose bytes may be mutated too."""
    if draw.random() < 0.8:
        return Mutant(mutation, {f"t{ending}": data}, f"t{ending}", want(model, data), f"t{ending}")
    name = f"t{ending}{draw.choice(['.gz', '.gz', '.GZ'])}"
    packed = gzip.compress(data, draw.choice([1, 9]), mtime=0)
    right = want(model, data)
    match draw.randrange(8):
        case 0 | 1:
            how = "gz"
        case 2:
            cut = draw.randrange(len(data) + 1)
            packed, how = gzip.compress(data[:cut]) + gzip.compress(data[cut:]), "gz of two members"
        case 3:
            packed, how = packed + bytes(draw.choice([1, 7, 512])), "gz padded with zeros"
        case 4:
            packed, how = packed + draw.choice([b"x", b"\n", b"\0\0trailing", b"PK"]), "gz with a tail"
            right = Want(None)
        case 5:
            packed, how = packed[: draw.randrange(1, len(packed))], "gz cut off"
            right = Want(None)
        case 6 if draw.random() < 0.02:
            bomb = zlib.compressobj(9, wbits=31)
            size = draw.choice([1 << 20, 30 << 20, 120 << 20])
            filler = draw.choice([b"\0", b"a", b"\n", b'"'])
            packed = (
                bomb.compress(data)
                + b"".join(bomb.compress(filler * (1 << 20)) for _ in range(size >> 20))
                + bomb.flush()
            )
            how = f"gz bomb of {filler!r}"
            right = want(model, data + filler * (1 << 20)) if size == 1 << 20 else Want(right.values, optional=True)
            if filler != b"\n" and size > 16 << 20:
                right = Want(None)
        case _:
            broken, how = damage(draw, packed), "damaged gz"
            packed, right = broken, Want(right.values, optional=True, other=lambda: model(unpack(broken)))
    return Mutant(f"{mutation}, {how}", {name: packed}, name, right, name)


def unpack(data: bytes) -> bytes:
    """All members of a gz."""
    text = b""
    while data.strip(b"\0"):
        member = zlib.decompressobj(wbits=31)
        text += member.decompress(data) + member.flush()
        if not member.eof:
            raise Broken
        data = member.unused_data
    return text


def quoted(draw: random.Random, cell: str, delimiter: str) -> str:
    needs = any(c in cell for c in (delimiter, "\n", "\r")) or cell.startswith('"')
    return '"' + cell.replace('"', '""') + '"' if needs or draw.random() < 0.2 else cell


def draw_cells(draw: random.Random, delimiter: str, ending: str) -> Mutant:
    width = draw.choice([1, 2, 2, 3, 3, 4, 6])
    header = [draw.choice(["", " ", "n"]) + f"c{i}" for i in range(width)]
    rows = [[draw.choice(CELLS) for _ in range(width)] for _ in range(draw.choice([1, 2, 5, 12, 40]))]
    done = []
    for _ in range(draw.choice([0, 1, 1, 1, 2])):
        row = draw.choice(rows) if rows else header
        match draw.randrange(9):
            case 0:
                row.append(draw.choice(CELLS))
                done.append("a cell more")
            case 1 if len(row) > 1:
                row.pop(draw.randrange(len(row)))
                done.append("a cell less")
            case 2:
                header[draw.randrange(len(header))] = draw.choice(
                    [draw.choice(header), "", " ", "\ufeff", "a\0", '"', "a\nb"]
                )
                done.append("header")
            case 3:
                rows = draw.choice([[], rows[:1], [rows[0]] * 3 if rows else []])
                done.append("few rows")
            case 4:
                rows.insert(draw.randrange(len(rows) + 1), draw.choice([[], [""], [" "], [""] * width]))
                done.append("a blank row")
            case 5 if rows:
                rows.append(list(header))
                done.append("header again")
            case _:
                done.append("cells")
    end = draw.choice(ENDS)
    ends = (
        [end if draw.random() < 0.8 else draw.choice(ENDS) for _ in range(len(rows) + 1)]
        if draw.random() < 0.3
        else None
    )
    lines = [delimiter.join(quoted(draw, c, delimiter) for c in row) for row in [header, *rows]]
    text = "".join(line + (ends[i] if ends else end) for i, line in enumerate(lines))
    if draw.random() < 0.3:
        text = text.rstrip("\r\n")
    data, more = encode(draw, text)
    delimiter_byte = delimiter.encode()
    return finish(draw, " + ".join([*done, *more]) or "none", data, ending, lambda d: model_cells(d, delimiter_byte))


def encode(draw: random.Random, text: str) -> tuple[bytes, list[str]]:
    data = text.encode()
    match draw.randrange(16):
        case 0:
            return b"\xef\xbb\xbf" + data, ["mark"]
        case 1:
            return text.encode(draw.choice(["utf-16", "utf-16-le", "utf-16-be", "utf-32"])), ["utf-16"]
        case 2:
            at = draw.randrange(len(data) + 1)
            return data[:at] + draw.choice([b"\xe9", b"\x80", b"caf\xe9 ", b"\xff\xfe", b"\xc3\x28"]) + data[at:], [
                "latin-1"
            ]
        case 3:
            return draw.choice([b"", b"\n", b"\r\n\r\n", b"\xef\xbb\xbf", b" ", b"\0", b"\xff", b"\xff\xfe"]), ["empty"]
        case 4 | 5 | 6 | 7 | 8 | 9:
            return data, []
        case 10:
            return damage(draw, data, times=3), ["3 damages"]
        case _:
            return damage(draw, data), ["damage"]


def draw_csv(draw: random.Random) -> Mutant:
    return draw_cells(draw, ",", ".csv")


def draw_tsv(draw: random.Random) -> Mutant:
    return draw_cells(draw, "\t", draw.choice([".tsv", ".TSV", ".tab"]))


def draw_txt(draw: random.Random) -> Mutant:
    lines = [draw.choice(CELLS) for _ in range(draw.choice([0, 1, 3, 20]))]
    text = "".join(line + draw.choice(ENDS[:2] if draw.random() < 0.7 else ENDS) for line in lines)
    data, done = encode(draw, text if draw.random() < 0.5 else text.rstrip("\r\n"))
    return finish(draw, " + ".join(done) or "none", data, ".txt", model_text)


# fmt: off
TOKENS = [
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "9" * 5000, "-" + "9" * 4301, "9" * 4300, "9" * 400,
    "01", '"\\ud800"', '"\\uDC00x"', '"\\ud83d\\ude00"', '"\\u0000"', "tru", "nul", "True", "None", ".5", "1.", "+1",
    "0x10", "1_000", "１", "'a'", "[" * 62 + "1" + "]" * 62, "[" * 63 + "]" * 63, "[" * 64 + "]" * 64, "[" * 5000,
    "-0", "-0.0", "[1,]", "[,1]", '{"a":1,}', "// x", '{"a":1,"a":2}', "[1 2]", '"a', '"\t"', '"\\x"', "1e5", "1E+2",
    '["\\ud800"]', "{}", '"007"', '"NA"', '"nan"', "null", "true", "[]", "[1,null,2.5]", "[[1,2],[3]]", '["a",1]',
    "12345678901234567890", "0.1",
]
# fmt: on


def draw_jsonl(draw: random.Random) -> Mutant:
    def value(deep: int) -> Any:
        kinds: list[Callable[[], Any]] = [
            lambda: draw.choice(CELLS),
            lambda: draw.randrange(-5, 5),
            lambda: draw.choice([0.5, 1e300, -2.0, 1e-300]),
            lambda: draw.choice([None, True, False]),
            lambda: [value(deep + 1) for _ in range(draw.randrange(4))] if deep < 3 else [],
            lambda: {draw.choice("abc"): value(deep + 1)} if deep < 3 else {},
        ]
        return draw.choice(kinds)()

    rows = [{k: value(0) for k in "abc" if draw.random() < 0.9} for _ in range(draw.choice([1, 2, 5, 12, 40]))]
    ascii_ = draw.random() < 0.5
    lines = [json.dumps(row, ensure_ascii=ascii_, separators=draw.choice([(",", ":"), (", ", ": ")])) for row in rows]
    done = []
    for _ in range(draw.choice([0, 1, 1, 1, 2])):
        i, token = draw.randrange(len(lines)), draw.choice(TOKENS)
        match draw.randrange(8):
            case 0:
                lines[i] = f'{{"a":{token},' + lines[i][1:] if len(lines[i]) > 2 else f'{{"a":{token}}}'
                done.append("a key more")
            case 1:
                lines[i] = draw.choice(
                    [token, "[" + lines[i] + "]", lines[i] + lines[i], lines[i] + ",", '"x"', "[", "{"]
                )
                done.append("no object")
            case 2:
                lines[i] = lines[i][: draw.randrange(len(lines[i]) + 1)]
                done.append("line cut off")
            case 3:
                lines.insert(i, draw.choice(["", " ", "\t", "\u2003", "\x0c", "\ufeff", "{}"]))
                done.append("blank line")
            case _:
                lines[i] = f'{{"{draw.choice("abcd")}": {token}}}'
                done.append("token")
    text = "".join(
        line + draw.choice(["\n", "\n", "\n", "\r\n", "\r"] if draw.random() < 0.2 else ["\n"]) for line in lines
    )
    if draw.random() < 0.1:
        text, done = "[\n" + ",\n".join(lines) + "\n]\n", [*done, "one list"]
    data, more = encode(draw, text)
    return finish(draw, " + ".join([*done, *more]) or "none", data, draw.choice([".jsonl", ".ndjson"]), model_json)
