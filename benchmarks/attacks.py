"""What an attacker may do to a run folder: each is a function of (folder, base, source of randomness) that gives a title.

An attacker can compute a SHA-256, so most of them seal the manifest anew: only then are the deeper checks reached.
"""

import contextlib
import copy
import hashlib
import json
import os
import pickle
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flips import DAMAGES
from mapsto import document


@dataclass(frozen=True)
class Base:
    """A run to attack.

    Attributes:
        folder: of the run, which stays as it is.
        row: what its model is asked.
        answer: what it says.
        outside: a folder beside it that nobody may read.
        run: the run, loaded.
        id: its id, which its checkpoints name.
        card: its README.md.
    """

    folder: Path
    row: Any
    answer: str
    outside: Path
    run: Any
    id: str
    card: str


Attack = Callable[[Path, Base, random.Random], str]

NAMES = ["os", "antigravity", "mapsto.cli", "../softmax", "__init__", "softmax.py", "", "softmax:9", "a b", "\x1b[31m"]
NUMBERS: list[Any] = [
    4096,
    2**20,
    2**24,
    10**9,
    10**12,
    2**63,
    2**64,
    10**40,
    -1,
    0,
    1.5,
    1e308,
    5e-324,
    True,
    False,
    None,
    "7",
]
OTHERS: list[Any] = ["", "x" * 70_000, "\u202e\x1b[2J<script>", [], {}, [[]], {"a": {}}, [1, "a"], ["a"] * 9, "\x00"]


def put(path: Path, data: bytes) -> None:
    """Write a file anew: the one that is there may be the base's own, by a hard link."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def seal(folder: Path, names: list[str] | None = None) -> None:
    """Make a folder's manifest fit what is in it now."""
    path = folder / "manifest.json"
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        known = {"format": 1}
    facts = {k: v for k, v in known.items() if k not in ("files", "sha256")}
    files = sorted(p for p in folder.iterdir() if p.is_file() and not p.is_symlink())
    names = names or [p.name for p in files if p.name not in ("manifest.json", "README.md")]
    made = {}
    for name in names:
        data = (folder / name).read_bytes()
        made[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_manifest(path, {**facts, "files": made})


def write_manifest(path: Path, content: dict[str, Any]) -> None:
    """A manifest with its own sum."""
    content["sha256"] = hashlib.sha256(document.dump(content)).hexdigest()
    put(path, document.dump(content))


def steps(folder: Path) -> list[Path]:
    """The folders of checkpoints."""
    return sorted((folder / "checkpoints").iterdir())


def sealed(folder: Path, source: random.Random) -> Path:
    """A folder with a manifest: the model's mostly."""
    return folder / "model" if source.random() < 0.75 else source.choice(steps(folder))


# Bytes


def change(path: Path, source: random.Random) -> str:
    """Damage one file."""
    data = path.read_bytes()
    for _ in range(20):
        what = source.choice(list(DAMAGES)) if data else "bytes appended"
        new = DAMAGES[what](data, source)
        if new is None:
            path.unlink()
            break
        if new != data:
            put(path, new)
            break
    return f"{what} in {path.name}"


def any_bytes(folder: Path, base: Base, source: random.Random) -> str:
    """Any file."""
    return change(source.choice(sorted(p for p in folder.rglob("*") if p.is_file())), source)


def sealed_bytes(folder: Path, base: Base, source: random.Random) -> str:
    """A sealed file, or several, sealed anew."""
    place = sealed(folder, source)
    files = sorted(p for p in place.iterdir() if p.name not in ("README.md", "manifest.json"))
    titles = [change(path, source) for path in source.sample(files, source.choice([1, 1, 2]))]
    seal(place)
    return ", ".join(titles)


def foreign(folder: Path, base: Base, source: random.Random) -> str:
    """A file that is something else: a pickle that runs a command when it is read, an archive, a program."""
    place = sealed(folder, source)
    path = source.choice(sorted(p for p in place.iterdir() if p.name not in ("README.md", "manifest.json")))
    put(path, source.choice([PICKLE, b"PK\x03\x04" + PICKLE, b"\x93NUMPY\x01\x00" + PICKLE, b"\x7fELF" + bytes(60)]))
    seal(place)
    return f"something else in {path.name}"


class Bomb:
    """Unpickled, it asks for a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 3",)


PICKLE = pickle.dumps(Bomb())

# Weights


def tensors(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and content of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def headed(header: bytes, body: bytes, length: int | None = None) -> bytes:
    """A safetensors file."""
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def header(folder: Path, base: Base, source: random.Random) -> str:
    """A header that says what is not so."""
    place = sealed(folder, source)
    path = source.choice(sorted(place.glob("*.safetensors")))
    content, body = tensors(path)
    content.pop("__metadata__", None)
    name = source.choice(sorted(content))
    part = content[name]
    begin, end = part["data_offsets"]
    length, raw = None, b""
    title = source.choice(HEADERS)
    match title:
        case "begin after end":
            part["data_offsets"] = [end, begin] if end > begin else [end + 4, begin]
        case "end after the file":
            part["data_offsets"] = [begin, end + source.choice([4, 2**31, 2**62])]
        case "overlap":
            part["data_offsets"] = [max(0, begin - 4), max(0, begin - 4) + end - begin]
        case "gap":
            body, length = body + bytes(8), None
        case "long header":
            length = source.choice([2**64 - 1, 2**63, 1 << 30, len(body) + 10**6, 10**8])
        case "short header":
            length = source.randrange(64)
        case "type":
            part["dtype"] = source.choice(
                ["F4", "F8_E4M3", "C64", "U64", "os", "", None, 7, ["F32"], "F16", "I32", "F64"]
            )
        case "shape":
            part["shape"] = source.choice(
                [
                    [2**62, 4],
                    [2**63, 0],
                    [0, 2**64],
                    [-1],
                    [1.5],
                    [True],
                    "3",
                    None,
                    {},
                    [],
                    [1] * 70,
                    [10**30, 10**30],
                    [2**31] * 3,
                ]
            )
        case "offsets":
            part["data_offsets"] = source.choice(
                [[0], [0, 1, 2], ["0", "4"], None, [0.0, 4.0], [-4, 0], [True, False], {}]
            )
        case "missing":
            del content[name]
        case "extra":
            content[source.choice(["w", "../w", "\x1b[31m", "a" * 10_000])] = {
                "dtype": "F32",
                "shape": [0],
                "data_offsets": [0, 0],
            }
        case "metadata":
            content["__metadata__"] = source.choice([{"a": 1}, [], "x", {"a": "b" * 10**5}, None])
        case "twice":
            raw = json.dumps(content).encode()[:-1] + b"," + json.dumps({name: part}).encode()[1:]
        case "deep":
            raw = source.choice([b"[" * 10_000, b'{"a":' * 5000, b"[" * 50 + b"]" * 50, b"{" + b" " * 10**6 + b"}"])
        case "no object":
            raw = source.choice([b"[]", b"3", b'"x"', b"null", b"\xff{}", b"", b"{}", b'{"a": NaN}', b'{"a": 1e999}'])
        case "transposed":
            part["shape"] = part["shape"][::-1]
        case "unknown key":
            part["strides"] = [1]
    put(path, headed(raw or json.dumps(content).encode(), body, length))
    seal(place)
    return f"{title} in {path.name}"


HEADERS = [
    *(
        "begin after end",
        "end after the file",
        "overlap",
        "gap",
        "long header",
        "short header",
        "type",
        "shape",
        "offsets",
    ),
    *("missing", "extra", "metadata", "twice", "deep", "no object", "transposed", "unknown key"),
]


def weights(folder: Path, base: Base, source: random.Random) -> str:
    """Numbers that are none, in a file that is otherwise right."""
    place = sealed(folder, source)
    path = source.choice(sorted(place.glob("*.safetensors")))
    content, body = tensors(path)
    parts = [p for n, p in content.items() if n != "__metadata__" and p["dtype"] == "F32" and p["data_offsets"][1]]
    begin, end = source.choice(parts)["data_offsets"]
    numbers = np.frombuffer(bytearray(body[begin:end]), np.float32)
    value = source.choice([np.nan, np.inf, -np.inf, 3e38, 1e-40, 1e30])
    at = source.randrange(len(numbers)) if len(numbers) else 0
    numbers[at : at + source.choice([1, 1, len(numbers) or 1])] = value
    put(path, headed(json.dumps(content).encode(), body[:begin] + numbers.tobytes() + body[end:]))
    seal(place)
    return f"{value} in {path.name}"


# Settings


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in JSON."""
    if path:
        yield path
    for key, value in (
        content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    ):
        yield from places(value, (*path, key))


def owner(content: Any, path: tuple[Any, ...]) -> Any:
    """What holds the value of a path."""
    for key in path[:-1]:
        content = content[key]
    return content


def twist(content: Any, source: random.Random) -> str:
    """One change somewhere in JSON."""
    found = list(places(content))
    path = source.choice(found)
    holder, key = owner(content, path), path[-1]
    act = source.choice(["number", "number", "value", "name", "gone", "more", "twice", "other", "renamed"])
    match act:
        case "number":
            holder[key] = source.choice(NUMBERS)
        case "value":
            holder[key] = source.choice(OTHERS)
        case "name":
            holder[key] = source.choice(NAMES)
        case "gone":
            del holder[key]
        case "more" if isinstance(holder, dict):
            holder[source.choice(["more", "dim", "__class__", "\x1b[0m", "kind"])] = source.choice(NUMBERS + OTHERS)
        case "twice" if isinstance(holder, list):
            holder.extend([holder[key]] * source.choice([1, 1, 1000]))
        case "renamed" if isinstance(holder, dict):
            holder[source.choice(["x", "Kind", "<b>", key + " "])] = holder.pop(key)
        case _:
            other = source.choice(found)
            with contextlib.suppress(LookupError, TypeError):
                holder[key] = copy.deepcopy(owner(content, other)[other[-1]])
    return f"{act} at {'.'.join(map(str, path))[:60]!r}"


def settings(folder: Path, base: Base, source: random.Random) -> str:
    """Values of config.json."""
    place = folder / "model"
    content = json.loads((place / "config.json").read_text())
    titles = [twist(content, source) for _ in range(source.choice([1, 1, 1, 2, 3]))]
    if not document_of(place / "config.json", content):
        return "nothing"
    seal(place)
    return ", ".join(titles)


def document_of(path: Path, content: Any) -> bool:
    """Write JSON; False if a twist has made what no JSON can hold."""
    try:
        put(path, json.dumps(content).encode())
    except (ValueError, RecursionError):
        return False
    return True


def numbers(folder: Path, base: Base, source: random.Random) -> str:
    """Huge, negative, fractional and untrue sizes, wherever config.json has a number."""
    place = folder / "model"
    content = json.loads((place / "config.json").read_text())
    found = [p for p in places(content) if isinstance(owner(content, p)[p[-1]], int | float)]
    path = source.choice(found)
    value = owner(content, path)[path[-1]] = source.choice(NUMBERS)
    put(place / "config.json", json.dumps(content).encode())
    seal(place)
    return f"{'.'.join(map(str, path))} = {value!r}"


def kind(folder: Path, base: Base, source: random.Random) -> str:
    """Names of modules and paths, wherever a kind is named."""
    place = folder / "model"
    content = json.loads((place / "config.json").read_text())
    named = ("kind", "attention", "position", "pool", "norm", "activation", "vocabulary", "keep", "stem", "sigma")
    found = [p for p in places(content) if p[-1] in named and isinstance(owner(content, p)[p[-1]], str)]
    path = source.choice(found)
    value = owner(content, path)[path[-1]] = source.choice([*NAMES, "pickle", "json.tool", "mapsto.testing", "turtle"])
    put(place / "config.json", json.dumps(content).encode())
    seal(place)
    return f"{'.'.join(map(str, path))} = {value!r}"


TEXTS: list[bytes] = [
    *(b"", b"null", b"[]", b"3", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b'{"format": 1}', b'{"format": NaN}', b"{" * 5000),
    *(
        b"[" * 100_000,
        b'{"format": 1e999}',
        b'{"format": ' + b"9" * 5000 + b"}",
        b'{"a": "\\ud800"}',
        b"{}" * 9,
        b"\x00",
    ),
    *(b'{"a":' * 63 + b"1" + b"}" * 63, b"[" + b"0," * 1_200_000 + b"0]", b'"' + b"a" * (1 << 20) + b'"'),
    b'{"format": 1, "schema": {}, "inputs": [], "output": {}, "model": {}}',
]


def text(folder: Path, base: Base, source: random.Random) -> str:
    """JSON that is none, or means two things."""
    place = sealed(folder, source)
    path = source.choice(sorted(p for p in place.glob("*.json") if p.name != "manifest.json"))
    data = path.read_bytes()
    new = source.choice(
        [*TEXTS, data.replace(b"{", b'{"format": 1, "format": 2, ', 1), data + b"{}", b" " * 10**6 + data]
    )
    put(path, new)
    seal(place)
    return f"{new[:20]!r} as {path.name}"


def vocabulary(folder: Path, base: Base, source: random.Random) -> str:
    """A vocabulary that is none, or of another size."""
    place = folder / "model"
    found = sorted(place.glob("vocabulary.*"))
    if not found:
        return settings(folder, base, source)
    path = found[0]
    data = path.read_bytes()
    if path.suffix == ".json" and source.random() < 0.7:
        content = json.loads(data)
        title = twist(content, source)
        put(path, json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    elif path.suffix == ".model" and source.random() < 0.7:
        title, new = pieces(data, source)
        put(path, new)
    else:
        title = change(path, source)
    seal(place)
    return f"{title} in {path.name}"


def pieces(data: bytes, source: random.Random) -> tuple[str, bytes]:
    """A sentencepiece model that its parser takes for one."""
    more = {
        "a table of replacements": b"\x1a" + bytes([6]) + b"\x12\x04\xff\xff\xff\x7f",
        "a table to write by": b"\x2a" + bytes([6]) + b"\x12\x04\xff\xff\xff\x7f",
        "one more piece": b"\x0a\x08\x0a\x01z\x15\x00\x00\x80\xbf",
        "a piece twice": b"\x0a\x0a\x0a\x03the\x15\x00\x00\x80\xbf",
        "a score that is none": b"\x0a\x08\x0a\x01q\x15\x00\x00\xc0\x7f",
        "a piece without text": b"\x0a\x07\x0a\x00\x15\x00\x00\x80\xbf",
        "a piece of broken text": b"\x0a\x08\x0a\x01\xff\x15\x00\x00\x80\xbf",
        "a long number": b"\xff" * 30,
        "a long piece": b"\x0a\xff\xff\xff\xff\x7f",
        "an unknown field": b"\x9a\x06\x03abc",
        "a piece of another type": b"\x0a\x0a\x0a\x01w\x15\x00\x00\x80\xbf\x18\x09",
    }
    title = source.choice(list(more))
    return title, more[title] + data if source.random() < 0.3 else data + more[title]


# Names and links


OUT = [
    *("../../../outside/secret.json", "/etc/passwd", "..", ".", "", "a/../b", "vocabulary.0.json\x00", "CON", "a\nb"),
    *("..\\..\\x", "vocabulary.../x", "vocabulary.0.json/../config.json", "config.json", "~/x", "\u202egnp.x"),
    *("vocabulary.99.json", "vocabulary.0.json "),
]


def path(folder: Path, base: Base, source: random.Random) -> str:
    """Names that lead out of the folder, in config.json or a manifest."""
    place = sealed(folder, source)
    secret = base.outside / "secret.json"
    value = source.choice([str(secret), *OUT])
    references = [p for p in places(json.loads((folder / "model/config.json").read_text())) if p[-1] == "file"]
    if references and source.random() < 0.6:
        place = folder / "model"
        content = json.loads((place / "config.json").read_text())
        owner(content, references[0])["file"] = value
        put(place / "config.json", json.dumps(content).encode())
        seal(place)
        return f"file: {value!r}"
    known = json.loads((place / "manifest.json").read_text())
    known.pop("sha256")
    files = known["files"]
    if source.random() < 0.5:
        files[value] = files[source.choice(sorted(files))]
    else:
        files[value] = files.pop(source.choice(sorted(files)))
    write_manifest(place / "manifest.json", known)
    return f"manifest of {value!r}"


LINKS = ["out", "out", "in", "broken", "loop", "device", "pipe", "folder", "hard", "model", "checkpoint", "written"]


def link(folder: Path, base: Base, source: random.Random) -> str:
    """A link, pipe, device or folder where a file was; or a link where a folder was."""
    what = source.choice(
        ["out", "out", "in", "broken", "loop", "device", "pipe", "folder", "hard", "model", "checkpoint"]
    )
    if what in ("model", "checkpoint"):
        place = folder / "model" if what == "model" else steps(folder)[-1]
        inner = base.folder / place.relative_to(folder)
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
        place.symlink_to(inner)
        return f"{place.name} is a link"
    path = source.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
    same = base.folder / path.relative_to(folder)
    if what == "written":
        path = folder / "report.html"
    path.unlink(missing_ok=True)
    match what:
        case "out" | "written":
            path.symlink_to(source.choice([same, base.outside / "secret.json"]))
        case "in":
            path.symlink_to("config.yaml" if path.parent == folder else "README.md")
        case "broken":
            path.symlink_to("nowhere")
        case "loop":
            path.symlink_to(path.name)
        case "device":
            path.symlink_to(source.choice(["/dev/zero", "/dev/random", "/dev/stdin", "/proc/self/environ"]))
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "hard":
            os.link(same, path)
    return f"{what} link for {path.name}"


def huge(folder: Path, base: Base, source: random.Random) -> str:
    """A file of 20 MB to 20 GB, most of it holes, its manifest sealed where that is quick."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    path = source.choice(files)
    size = source.choice([20_000_000, 100_000_000, 2_000_000_000, 20_000_000_000])
    data = path.read_bytes()
    put(path, data)
    if source.random() < 0.3:
        put(path, b"")
    os.truncate(path, size)
    if path.parent.name != folder.name and path.name not in ("README.md", "manifest.json"):
        if size == 20_000_000:
            seal(path.parent)
        elif path.parent.name == "model":  # its size is right, its sum would take a minute
            known = json.loads((path.parent / "manifest.json").read_text())
            known.pop("sha256")
            known["files"][path.name]["bytes"] = size
            write_manifest(path.parent / "manifest.json", known)
    return f"{path.name} of {size:,} bytes"


# Other files of a run


def record(folder: Path, base: Base, source: random.Random) -> str:
    """Values of environment.json, result.json, a state.json or metrics.jsonl."""
    path = source.choice(
        [folder / "environment.json", folder / "result.json", folder / "metrics.jsonl", *folder.glob("*/*/state.json")]
    )
    if source.random() < 0.2:
        put(path, source.choice(TEXTS))
    else:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        at = source.randrange(len(lines))
        content = json.loads(lines[at])
        twist(content, source)
        try:
            lines[at] = json.dumps(content)
        except (ValueError, RecursionError):
            return "nothing"
        put(path, "\n".join(lines).encode("utf-8", "surrogatepass"))
    if path.name == "state.json":
        seal(path.parent)
    return path.name


YAML = [
    *(
        "!!python/object/apply:os.system ['exit 3']",
        "x: !!python/name:os.system",
        "seed: !!python/object/new:os.system [id]",
    ),
    *(
        "a: &a [x]\nb: [*a, *a]",
        "&a a: 1",
        "*a",
        "<<: {seed: 1}",
        "<<: *a",
        "seed: ! 1",
        "seed: !!int 1",
        "seed: 1\nseed: 2",
    ),
    *(
        "model: {dim: 8, dim: 9}",
        "model:\n  dim: yes",
        "model: {normalise: yes}",
        "seed: 0o17",
        "seed: 1_000",
        "seed: 0x10",
    ),
    *(
        "? [a]\n: 1",
        "? {a: 1}\n: 1",
        "{" * 3000,
        "[" * 100_000,
        "a: " + "[" * 3000,
        "- " * 20_000,
        "? " * 20_000,
        "seed: 1\n---\na",
    ),
    *(
        "seed: " + "9" * 5000,
        "seed: 1e999",
        "train: {lr: .inf}",
        "train: {lr: .nan}",
        "train: {lr: 1e400}",
        "\x00",
        "a: \x07",
    ),
    *(
        '"\\e[31m": 1',
        '"\\u202e": 1',
        'init: "\\ud800"',
        "%YAML 9.9\n---\nseed: 1",
        "%TAG ! tag:x,2000:\n---\n!a b",
        "\ufeffseed: 1",
    ),
    *(
        "data: {inputs: [" + "a, " * 100_000 + "]}",
        "x" * 300_000,
        "a: |\n" + " \n" * 100_000,
        "\n".join(f"k{i}: 1" for i in range(30_000)),
    ),
    *(
        "1: 2",
        "~: 1",
        "true: 1",
        "a: [1, 2",
        "\ta: 1",
        "@a",
        "`a`",
        "- a",
        "a",
        "",
        "# nothing",
        "...",
        "--- >\n a",
        "'",
        '"',
    ),
]
KEYS = {
    "data": ["folds", "fold", "skip_bad", "shares", "inputs", "source", "root", "split"],
    "input": [
        "vocabulary_size",
        "vocabulary_least",
        "limit",
        "window",
        "ngrams",
        "patch",
        "side",
        "shift",
        "flip",
        "vocabulary",
    ],
    "model": ["dim", "depth", "heads", "hidden", "dropout", "masking", "attention", "pool", "position", "normalise"],
    "train": [
        "steps",
        "epochs",
        "lr",
        "batch_tokens",
        "batch_rows",
        "accumulate",
        "workers",
        "patience",
        "timeout",
        "clip",
    ],
}


def snippet(folder: Path, base: Base, source: random.Random) -> str:
    """A config file that could surprise: such a text alone, or put into the file."""
    path, title = folder / "config.yaml", source.choice(YAML)
    lines = path.read_text().split("\n")
    if source.random() < 0.3:
        lines.insert(source.randrange(len(lines)), title)
    else:
        lines = [title]
    put(path, "\n".join(lines).encode("utf-8", "surrogatepass"))
    return title[:60]


def yaml(folder: Path, base: Base, source: random.Random) -> str:
    """A config file that asks for very much, or is damaged."""
    path = folder / "config.yaml"
    if source.random() < 0.3:
        return change(path, source)
    section = source.choice(list(KEYS))
    key, value = source.choice(KEYS[section]), source.choice(NUMBERS + OTHERS[2:] + NAMES)
    new = re.sub(rf"^  {key}: .*$", lambda _: f"  {key}: {json.dumps(value)}", path.read_text(), flags=re.MULTILINE)
    put(path, new.encode("utf-16") if source.random() < 0.02 else new.encode("utf-8", "surrogatepass"))
    return f"{section}.{key}: {json.dumps(value)[:60]}"


@dataclass(frozen=True)
class Class:
    """A class of attacks.

    Attributes:
        act: does it.
        weight: how often.
        asked: which questions are asked afterwards (see ``hostile.py``).
        another: whether another model may come of it, which is as good as any.
    """

    act: Attack
    weight: int
    asked: tuple[str, ...] = field(default=("model",))
    another: bool = True


RUN = ("model", "resume", "checkpoint", "report")
CLASSES = {
    "bytes": Class(any_bytes, 4, RUN, another=False),
    "sealed bytes": Class(sealed_bytes, 4, ("model", "checkpoint")),
    "another file": Class(foreign, 1, ("model", "checkpoint")),
    "header": Class(header, 4, ("model", "checkpoint")),
    "weights": Class(weights, 1, ("model", "checkpoint")),
    "settings": Class(settings, 5),
    "numbers": Class(numbers, 3),
    "kinds": Class(kind, 2),
    "text": Class(text, 2, ("model", "checkpoint")),
    "vocabulary": Class(vocabulary, 3),
    "paths": Class(path, 2, ("model", "checkpoint")),
    "links": Class(link, 2, RUN),
    "huge files": Class(huge, 1, RUN),
    "records": Class(record, 3, ("resume", "checkpoint", "report")),
    "config.yaml": Class(yaml, 3, ("model", "resume", "config", "report")),
    "snippets of YAML": Class(snippet, 3, ("model", "resume", "config", "report")),
}
