"""What the package shows to the outside: names, docstrings, what importing it does, and what its files may not hold."""

import ast
import importlib
import inspect
import io
import pkgutil
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import mapsto

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mapsto"
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = sorted({m.name for m in pkgutil.walk_packages([str(SOURCE)], "mapsto.")} - {"mapsto.__main__"})
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_package_shows_its_four_names():
    assert mapsto.__all__ == ["__version__", "fit", "load", "tune_process"]
    assert all(hasattr(mapsto, name) for name in mapsto.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+", mapsto.__version__)
    assert f'version = "{mapsto.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_every_name_a_module_offers_exists():
    for name in MODULES:
        module = importlib.import_module(name)
        offered = getattr(module, "__all__", [])
        assert len(offered) == len(set(offered)), name
        assert [n for n in offered if not hasattr(module, n)] == [], name


def test_every_public_class_and_function_says_what_it_is():
    silent = []
    for name in MODULES:
        module = importlib.import_module(name)
        assert (module.__doc__ or "").strip(), name
        for n in getattr(module, "__all__", []):
            one = getattr(module, n)
            if not (inspect.isclass(one) or inspect.isfunction(one)):
                continue
            own = one.__doc__ or ""
            if not own.strip() or own.startswith(f"{n}("):  # a dataclass writes its signature where nothing is said
                silent.append(f"{name}.{n}")
    assert silent == []


def test_names_in_the_pages_exist():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for dotted in re.findall(r"`(mapsto(?:\.[A-Za-z_]\w*)+)`", text):
            found, parts = mapsto, dotted.split(".")[1:]
            for i, part in enumerate(parts):
                if not hasattr(found, part):
                    importlib.import_module(".".join(["mapsto", *parts[: i + 1]]))
                found = getattr(found, part)
        for path in re.findall(r"`((?:tests|src|benchmarks|examples|docs)/[\w./-]+)`", text):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


WATCHED = """
import sys
seen = []
def watch(event, arguments):
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    makes = event == "open" and arguments[2] & (1 | 2 | 64) and not isinstance(arguments[1], str)
    others = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.spawn", "os.posix_spawn", "os.mkdir",
              "os.remove", "os.rename", "os.putenv", "urllib.", "ctypes.dlopen", "shutil.", "tempfile.")
    if writes or makes or event.startswith(others):
        seen.append((event, str(arguments)[:200]))
sys.dont_write_bytecode = True
sys.addaudithook(watch)
before = set(sys.modules)
import mapsto
slow = {"torch", "numpy", "pyarrow", "pydantic", "scipy", "PIL", "rich", "typer", "matplotlib", "yaml"} & set(sys.modules)
assert not slow, slow
assert not seen, seen
"""


def alone(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_importing_the_package_imports_nothing_slow_and_does_nothing():
    done = alone(WATCHED)
    assert done.returncode == 0, done.stderr


def test_importing_every_module_leaves_torch_as_it_was():
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "import torch, importlib\n"
        "before = (torch.random.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(),"
        " torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled())\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
        "after = (torch.random.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(),"
        " torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled())\n"
        "assert torch.equal(before[0], after[0]) and before[1:] == after[1:], (before[1:], after[1:])"
    )
    done = alone(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_a_file_is_short_and_runs_nothing_it_read(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {a.name.split(".")[0] for a in node.names} | {(getattr(node, "module", None) or "").split(".")[0]}
            assert not names & {"pickle", "cPickle", "dill", "shelve", "marshal", "joblib"}, node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__"), node.lineno
        if isinstance(node, ast.Attribute):
            whole = ast.unparse(node)
            assert whole not in (
                "torch.load",
                "torch.save",
                "np.load_pickle",
                "yaml.unsafe_load",
                "yaml.full_load",
                "os.system",
            ), node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
            assert any(k.arg == "allow_pickle" and k.value.value is False for k in node.keywords), node.lineno
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert node.value.value is False, node.value.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_a_file_leaves_nothing_undone_and_draws_from_no_global_generator(path):
    text = path.read_text(encoding="utf-8")
    comments = [t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT]
    assert not [c for c in comments if re.search(r"\b(TODO|FIXME|XXX)\b", c)]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("torch.manual_seed", "torch.seed", "np.random.seed", "random.seed"), node.lineno
            if called in (
                "torch.rand",
                "torch.randn",
                "torch.randperm",
                "torch.randint",
                "torch.bernoulli",
                "torch.multinomial",
            ):
                assert any(k.arg == "generator" for k in node.keywords), (
                    f"line {node.lineno}: {called} without a generator"
                )


def test_no_folder_is_for_whatever_fits_nowhere():
    assert not [
        p for p in SOURCE.rglob("*") if p.stem in ("utils", "util", "helpers", "helper", "misc", "common", "core")
    ]
