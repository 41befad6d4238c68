"""What the README and the pages of docs say to type is typed here: every command and every block of Python runs."""

import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from mapsto import testing
from mapsto.cli import app, main
from mapsto.tasks import train as training
from mapsto.tasks.config import keys

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = ("mapsto", "pip", "pytest", "python", "torchrun")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(page):
    """(language, text) of every fenced block: shell commands, python, or text to look at (trees, output)."""
    for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        starts = {line.split()[0] for line in text.splitlines() if line.strip()}
        if not language and starts & set(PROGRAMS):
            assert starts <= set(PROGRAMS), f"{page.name}: a block of commands has other lines: {starts}"
            language = "sh"
        yield language or "text", text


def commands(text):
    """Each command of a block as its words."""
    for line in text.splitlines():
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            if words:
                yield words


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder of somebody who follows the pages: their data lie in it, and training takes four steps."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "generate.py"))["write"](tmp_path)
    lines = (tmp_path / "reviews.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "test.csv").write_text(
        "\n".join([lines[0], *(x.replace(" the ", " this ") for x in lines[1:40])]) + "\n", encoding="utf-8"
    )
    parts = ["part", *("test" if i % 5 == 0 else "val" if i % 5 == 1 else "train" for i in range(len(lines) - 1))]
    (tmp_path / "parted.csv").write_text(
        "".join(f"{x},{p}\n" for x, p in zip(lines, parts, strict=True)), encoding="utf-8"
    )
    (tmp_path / "lines.txt").write_text("a slow, lovely film\na dull plot\n", encoding="utf-8")
    settle = training.settle

    def short(config, dataset, world=None):
        config = settle(config, dataset, world)
        config.train.steps, config.train.evaluate_every, config.threads = 4, 2, 1
        config.model.dim, config.model.depth, config.model.heads = 16, 1, 2
        return config

    check = testing.check_model  # tests/test_laws.py tries them all; compiling takes most of the time
    monkeypatch.setattr(testing, "check_model", lambda model, batch, *, laws="PBMD": check(model, batch, laws=laws))
    monkeypatch.setattr(training, "settle", short)
    return tmp_path


def type_in(words, monkeypatch):
    """One command, as the shell would pass it on."""
    given = ""
    if "<" in words:
        words, given = words[: words.index("<")], Path(words[words.index("<") + 1]).read_text(encoding="utf-8")
    out, err = io.StringIO(), io.StringIO()
    with monkeypatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "stdin", io.StringIO(given))
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                pytest.fail(f"{shlex.join(words)}\n{err.getvalue()}")
    return out.getvalue() + err.getvalue()


def launch(words):
    """A command of torchrun, with a few steps; one that resumes finds what was left out of the run's end."""
    few = ["train.steps=4", "model.dim=16", "model.depth=1", "model.heads=2"]
    if "--resume" in words:
        few = []
        Path("runs", words[-1], "result.json").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words[1:], *few], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_says_to_type_runs(page, here, monkeypatch):
    names = {"__name__": "page"}
    for language, text in blocks(page):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(text, str(page), "exec"), names)
        elif language == "sh":
            for words in commands(text):
                if words[0] == "mapsto":
                    said = type_in(words, monkeypatch)
                    assert said.strip()
                    assert "BROKEN" not in said, said
                elif words[0] == "torchrun":
                    launch(words)
                elif words[0] == "python":
                    assert (ROOT / words[1]).is_file()
                else:
                    assert words[:2] == ["pip", "install"] or words == ["pytest"], words


def test_every_block_is_of_a_known_language():
    kinds = {language for page in PAGES for language, _ in blocks(page)}
    assert kinds <= {"sh", "python", "text"}
    for page in PAGES:
        assert page.read_text(encoding="utf-8").count("\n```") % 2 == 0, page.name


def test_the_readme_begins_with_the_two_commands_that_install_with_the_constraints():
    first, second = (text.strip() for _, text in list(blocks(README))[:2])
    assert re.fullmatch(r"pip install -c constraints\.txt \. && mapsto train --demo [a-z]+", first)
    assert second == "pip install -c constraints.txt '.[test]' && pytest"


@pytest.mark.parametrize(("mark", "number"), [("main command", 0), ("test command", 1)])
def test_ci_runs_the_readmes_own_commands(mark, number):
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (function,) = re.findall(r"^command_of\(\) \{.*\}$", ci, re.MULTILINE)
    done = subprocess.run(
        ["bash", "-c", f'{function}\ncommand_of "{mark}"'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout == list(blocks(README))[number][1]
    assert f'command_of "{mark}"' in ci.replace(function, "")


def test_the_tested_set_pins_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(one for part in project["optional-dependencies"].values() for one in part)]
    names = {re.match(r"[A-Za-z0-9-]+", one)[0].lower() for one in asked} - {"mapsto"}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0].lower() for line in lines if "==" in line}
    assert names <= pinned, names - pinned


def test_links_of_the_pages_lead_somewhere():
    for page in PAGES:
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            assert (page.parent / link).resolve().exists(), f"{page.name}: {link}"


def test_settings_and_options_named_on_the_pages_exist():
    known = set(keys())
    sections = {k.split(".")[0] for k in known if "." in k}
    verbs = typer.main.get_command(app).commands
    options = {name for verb in verbs.values() for parameter in verb.params for name in parameter.opts}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for quoted in re.findall(r"`([^`\n]+)`", text):
            for section, name in re.findall(r"\b(\w+)\.(\w+)=", quoted):
                assert section not in sections or f"{section}.{name}" in known, f"{page.name}: {quoted}"
            for option in re.findall(r"(?:^|\s)(--[a-z-]+)", "" if quoted.startswith("python ") else quoted):
                assert option in options | {"--help"}, f"{page.name}: {quoted}"


def test_scripts_named_on_the_pages_exist_and_know_their_options():
    named = {
        x for page in PAGES for x in re.findall(r"`python (benchmarks/\w+\.py[^`]*)`", page.read_text(encoding="utf-8"))
    }
    assert named
    for script, *words in map(str.split, named):
        text = (ROOT / script).read_text(encoding="utf-8")
        assert all(f'"{word}"' in text for word in words if word.startswith("--")), script


def test_the_readmes_tree_is_the_tree():
    (tree,) = [text for _, text in blocks(README) if text.startswith("src/mapsto/")]
    for line in tree.splitlines():
        name = line.split()[0]
        folder = ROOT / "src" / "mapsto" if line.startswith("  ") else ROOT
        assert (folder / name).exists(), name
