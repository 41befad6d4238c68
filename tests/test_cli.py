"""The command line as a user meets it: what it prints, what it leaves, how it fails."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mapsto.cli import main

QUICK = ["train.epochs=2", "model.dim=16", "model.depth=1", "model.heads=2", "train.batch_tokens=512"]


def mapsto(*words, stdin=None, code=0):
    """Run the command line here; gives (stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["mapsto", *map(str, words)])
        patch.setattr(sys, "stdin", io.StringIO(stdin or ""))
        try:
            main()
            found = 0
        except SystemExit as ended:
            found = ended.code or 0
    assert found == code, err.getvalue() or out.getvalue()
    assert "Traceback" not in err.getvalue()
    return out.getvalue(), err.getvalue()


def alone(code, *words):
    """Run Python code with these words as its command line, in a process of its own."""
    words = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


def write_reviews(path, rows=120):
    rng = np.random.default_rng(0)
    good, bad, plain = ["lovely", "warm", "great"], ["dull", "cold", "poor"], ["film", "plot", "actor", "the", "a"]
    lines = ["id,text,label,age"]
    for i in range(rows):
        label = i % 2
        words = [*rng.choice(plain, 4), *rng.choice(good if label else bad, 2)]
        rng.shuffle(words)
        lines.append(f"{i},{' '.join(words)},{'pos' if label else 'neg'},{'' if i % 7 == 0 else 20 + i % 50}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on reviews, trained once for the module."""
    folder = tmp_path_factory.mktemp("trained")
    data = write_reviews(folder / "reviews.csv")
    before = Path.cwd()
    os.chdir(folder)
    try:
        words = ["train", data, "--from", "text", "--to", "label", "--json", *QUICK, "train.epochs=30", "train.lr=0.02"]
        return folder, json.loads(mapsto(*words)[0])
    finally:
        os.chdir(before)


def test_help_needs_no_torch():
    code = (
        "import sys, mapsto.cli as c\nsys.argv = ['mapsto', '--help']\n"
        "try: c.main()\nfinally: assert not {'torch', 'numpy', 'pyarrow', 'rich'} & set(sys.modules), 'slow import'"
    )
    done = alone(code)
    assert done.returncode == 0, done.stderr
    for verb in ("check", "train", "evaluate", "predict", "show", "convert", "config", "doctor", "demo"):
        assert f"\n  {verb} " in done.stdout


def test_train_json_is_one_object_with_the_promised_keys(trained):
    folder, result = trained
    assert set(result) == {"run", "metrics", "intervals", "baselines", "seconds"}
    assert set(result["metrics"]) == {"accuracy", "balanced_accuracy", "f1", "roc_auc", "nll"}
    assert result["metrics"]["accuracy"] > 0.8
    low, high = result["intervals"]["accuracy"]
    assert low <= result["metrics"]["accuracy"] <= high
    assert set(result["baselines"]) == {"most common", "logistic"}
    run = folder / result["run"]
    for name in (
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "log.txt",
        "result.json",
        "model/model.safetensors",
        "model/config.json",
        "model/README.md",
    ):
        assert (run / name).is_file(), name
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] > records[0]["step"]


def test_evaluate_gives_what_training_ended_with(trained, monkeypatch):
    folder, result = trained
    monkeypatch.chdir(folder)
    again = json.loads(mapsto("evaluate", result["run"], "--json")[0])
    assert set(again) == {"metrics", "intervals", "baselines"}
    assert again["metrics"] == pytest.approx(result["metrics"], abs=1e-5)


def test_convert_leaves_a_run_that_predicts(trained, monkeypatch):
    folder, result = trained
    monkeypatch.chdir(folder)
    out, error = mapsto("convert", result["run"], "--attention", "favor:32", "--json")
    converted = json.loads(out)
    assert converted["run"] == f"{result['run']}-favor"
    assert converted["metrics"]["before"] == pytest.approx(result["metrics"], abs=1e-5)
    assert "softmax -> favor:32" in error
    assert json.loads(mapsto("predict", converted["run"], "a lovely film", "--json")[0])["predictions"]
    _, error = mapsto("convert", result["run"], "--attention", "favor:32", "--normalise", code=2)
    assert error.endswith(f"mapsto convert {result['run']} --attention favor:32 --normalise --tune 5%\n")
    shown = mapsto("convert", "--help")[0]
    assert "mapsto convert runs/reviews --attention favor:256 --normalise --tune 5%" in shown


def test_evaluate_on_other_data_names_an_unseen_label(trained, monkeypatch, tmp_path):
    folder, result = trained
    monkeypatch.chdir(folder)
    other = tmp_path / "val.csv"
    other.write_text("text,label\na lovely film,pos\na dull plot,meh\n")
    _, error = mapsto("evaluate", result["run"], other, code=3)
    assert 'val.csv row 2: "label": label "meh" never occurs' in error


def test_predict_reads_texts_files_and_standard_input(trained, monkeypatch, tmp_path):
    folder, result = trained
    monkeypatch.chdir(folder)
    (row,) = json.loads(mapsto("predict", result["run"], "a lovely warm great film", "--json")[0])["predictions"]
    assert row["label"] == "pos"
    assert sum(row["label.probability"].values()) == pytest.approx(1)
    lines, _ = mapsto("predict", result["run"], "-", stdin="a lovely film\na dull cold plot\n")
    assert [line.split()[0] for line in lines.splitlines()] == ["pos", "neg"]
    typed, _ = mapsto("predict", result["run"], '{"text": "a lovely film"}', '{"text": "a dull cold plot"}')
    assert typed == lines
    for text in ('{"txt": "a lovely film"}', "{half", "{}"):  # of a run that reads one text, it is that text
        (row,) = json.loads(mapsto("predict", result["run"], text, "--json")[0])["predictions"]
        assert set(row) == {"label", "label.probability"}
    out = tmp_path / "said.csv"
    mapsto("predict", result["run"], folder / "reviews.csv", "--out", out)
    assert len(out.read_text().splitlines()) == 121
    (vector,) = json.loads(mapsto("predict", result["run"], "a film", "--embed", "--json")[0])["predictions"]
    assert len(vector["embedding"]) == 16


def test_a_second_run_of_a_name_leaves_the_first_alone(trained, monkeypatch):
    folder, result = trained
    monkeypatch.chdir(folder)
    before = (folder / result["run"] / "config.yaml").read_bytes()
    second = json.loads(mapsto("train", f"{result['run']}/config.yaml", "--json", "train.epochs=1", "train.steps=3")[0])
    assert second["run"] == f"{result['run']}-2"
    assert (folder / result["run"] / "config.yaml").read_bytes() == before


def test_the_same_seed_gives_the_same_bits(monkeypatch, tmp_path):
    data = write_reviews(tmp_path / "reviews.csv")
    runs = [
        json.loads(mapsto("train", data, "--from", "text", "--to", "label", "--json", "--run", n, *QUICK)[0])
        for n in "ab"
    ]
    first, second = (Path(r["run"], "model/model.safetensors").read_bytes() for r in runs)
    assert first == second


def test_a_mixed_table_maps_to_a_number(tmp_path):
    data = write_reviews(tmp_path / "reviews.csv")
    out = mapsto(
        "train", data, "--from", "text", "--from", "label", "--to", "age", "--json", "data.skip_bad=0.2", *QUICK
    )
    result = json.loads(out[0])
    assert set(result["metrics"]) == {"mae", "rmse", "r2", "nll"}
    assert set(result["baselines"]) == {"mean", "ridge"}


def test_a_folder_of_pictures_needs_no_columns(tmp_path):
    rng = np.random.default_rng(0)
    for label, shade in (("dark", 60), ("light", 190)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(30):
            size = (rng.integers(14, 22), rng.integers(14, 22))
            Image.fromarray(rng.integers(shade - 50, shade + 50, size).astype(np.uint8)).save(
                tmp_path / "photos" / label / f"{i}.png"
            )
    result = json.loads(mapsto("train", tmp_path / "photos", "--json", *QUICK, "train.epochs=6", "train.lr=0.01")[0])
    assert result["metrics"]["accuracy"] > 0.7
    picture = tmp_path / "photos" / "dark" / "0.png"
    (row,) = json.loads(mapsto("predict", result["run"], picture, "--json")[0])["predictions"]
    assert set(row["label.probability"]) == {"dark", "light"}


def test_tags_of_tokens_come_back_one_a_token(tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(80):
        words = rng.choice(["cat", "dog", "runs", "sleeps"], rng.integers(2, 7)).tolist()
        lines.append(json.dumps({"words": words, "tags": ["noun" if w in ("cat", "dog") else "verb" for w in words]}))
    data = tmp_path / "tags.jsonl"
    data.write_text("\n".join(lines))
    result = json.loads(
        mapsto("train", data, "--from", "words", "--to", "tags", "--json", *QUICK, "train.epochs=40", "train.lr=0.02")[
            0
        ]
    )
    assert result["metrics"]["accuracy"] > 0.9
    assert "most common of the token" in result["baselines"]


STOPPED = """
import os, signal
from mapsto.training.loop import Trainer
step = Trainer.step
def stopped(self, group, batches):
    if self.progress.step == 6:
        os.kill(os.getpid(), signal.SIGTERM)
    return step(self, group, batches)
Trainer.step = stopped
from mapsto.cli import main
main()
"""


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    data = write_reviews(tmp_path / "reviews.csv")
    words = [data, "--from", "text", "--to", "label", "--json", *QUICK, "train.epochs=6"]
    whole = json.loads(mapsto("train", *words, "--run", "whole")[0])
    stopped = alone("import torch; torch.set_num_threads(1)" + STOPPED, "train", *words, "--run", "part")
    assert stopped.returncode == 143, stopped.stderr
    assert "stopped at step 7" in stopped.stderr
    assert "--resume --run part" in stopped.stderr
    resumed = json.loads(mapsto("train", "--resume", "--run", "part", "--json")[0])
    first, second = (Path(r["run"], "model/model.safetensors").read_bytes() for r in (whole, resumed))
    assert first == second
    lines = [Path(r["run"], "metrics.jsonl").read_text().splitlines() for r in (whole, resumed)]
    clock = {"seconds", "steps_per_second"}
    same = [[{k: v for k, v in json.loads(x).items() if k not in clock} for x in part] for part in lines]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train", "nothing.csv", "--to", "label"], 3, "nothing.csv: no such file"),
        (
            ["train", "reviews.csv", "--from", "text", "--to", "labels"],
            3,
            'no column "labels".*Did you mean "--to label"',
        ),
        (
            ["train", "reviews.csv", "--from", "text:sequnce", "--to", "label"],
            2,
            'kind "sequnce" is not one of.*Did you mean "sequence"',
        ),
        (
            ["train", "reviews.csv", "--from", "text", "--to", "label", "train.epoch=3"],
            2,
            'Did you mean "train.epochs"',
        ),
        (
            ["train", "reviews.csv", "--from", "text", "--to", "label", "--attention", "softmaxx"],
            2,
            'Did you mean "softmax"',
        ),
        (
            ["train", "reviews.csv", "--from", "text", "--to", "label", "--device", "cuda:7"],
            2,
            'device "cuda:7" cannot be used',
        ),
        (
            ["train", "reviews.csv", "--from", "text", "--to", "age"],
            3,
            'reviews.csv row 1: "age" is empty.*18 such rows of 120.*data.skip_bad=0.2',
        ),
        (["train", "--demo", "peptide"], 2, 'no demo "peptide".*Did you mean "peptides"'),
        (["train"], 2, "which data"),
        (["trian"], 2, "train"),
        (["train", "reviews.csv", "--form", "text"], 2, "--from"),
        (["evaluate", "runs/none"], 4, "no run folder"),
        (["predict", "runs/none", "x"], 4, "no run folder"),
        (["config", "train.lrr"], 2, 'Did you mean "train.lr"'),
        (["train", "--resume", "--run", "none"], 2, "no run runs/none to resume"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_type(tmp_path, words, code, message):
    write_reviews(Path("reviews.csv"))
    _, error = mapsto(*words, code=code)
    assert re.search(message, error, re.DOTALL), error
    assert error.startswith("error: ")
    assert len(error.strip().splitlines()) == 1


def test_check_reads_everything_and_trains_nothing(tmp_path):
    data = write_reviews(tmp_path / "reviews.csv")
    report = json.loads(mapsto("check", data, "--from", "text", "--to", "label", "--json")[0])
    assert report["rows"] == 120
    assert report["columns"]["text"]["kind"] == "sequence"
    assert report["columns"]["label"]["counts"] == {"neg": 60, "pos": 60}
    assert not Path("runs").exists()


def test_check_of_a_run_holds_it_to_the_laws(trained, monkeypatch):
    folder, result = trained
    monkeypatch.chdir(folder)
    report = json.loads(mapsto("check", result["run"], "--json")[0])
    assert {"P", "B"} <= {v["law"][0] for v in report["laws"]}
    assert all(v["passed"] for v in report["laws"]), report


def test_folds_test_every_row_once(tmp_path):
    data = write_reviews(tmp_path / "reviews.csv", rows=60)
    result = json.loads(mapsto("train", data, "--from", "text", "--to", "label", "--folds", "3", "--json", *QUICK)[0])
    assert len(result["folds"]) == 3
    assert result["metrics"]["accuracy"] == pytest.approx(np.mean([f["metrics"]["accuracy"] for f in result["folds"]]))


def test_time_fixes_the_number_of_steps(tmp_path):
    data = write_reviews(tmp_path / "reviews.csv")
    result = json.loads(mapsto("train", data, "--from", "text", "--to", "label", "--time", "2s", "--json", *QUICK)[0])
    config = Path(result["run"], "config.yaml").read_text()
    steps = int(config.split("  steps: ")[1].split()[0])
    assert steps > 20


def test_doctor_and_demo_answer():
    report = json.loads(mapsto("doctor", "--json")[0])
    assert max(report["attention"].values()) < 1e-5
    assert set(json.loads(mapsto("demo", "--json")[0])) == {
        *("peptides", "languages", "digits", "clothes", "clothes-vae"),
        *("storms", "peptides-vae"),
        *("words", "verses", "play", "midi"),
    }


def test_a_column_may_be_called_target(tmp_path):
    data = write_reviews(tmp_path / "reviews.csv")
    data.write_text(data.read_text().replace("id,text,label,age", "id,target,label,age"))
    result = json.loads(mapsto("train", data, "--from", "target", "--to", "label", "--json", *QUICK)[0])
    assert mapsto("predict", result["run"], "a lovely film", "--json")[0]


def test_an_interrupt_outside_of_training_ends_with_130(tmp_path, monkeypatch):
    data = write_reviews(tmp_path / "reviews.csv")

    def interrupted(*words):
        raise KeyboardInterrupt

    monkeypatch.setattr("mapsto.tasks.train.prepare", interrupted)
    _, error = mapsto("train", data, "--from", "text", "--to", "label", code=130)
    assert error == "error: interrupted\n"


def test_a_part_without_rows_is_refused_before_the_first_step(tmp_path):
    data = write_reviews(tmp_path / "reviews.csv")
    words = ["train", data, "--from", "text", "--to", "label", *QUICK]
    _, error = mapsto(*words, "data.shares=[0.9,0.1,0]", code=3)
    assert "no rows for test.   Give data.shares" in error
    assert not Path("runs").exists()


def test_a_resumed_run_needs_its_weights_only_and_takes_no_other_settings(tmp_path):
    data = write_reviews(tmp_path / "reviews.csv")
    words = ["train", data, "--from", "text", "--to", "label", *QUICK]
    mapsto(*words, "--run", "first")
    mapsto(*words, "--run", "second", "--init", "runs/first")
    Path("runs/first").rename("runs/moved")
    Path("runs/second/result.json").unlink()
    for more in (["--from", "text"], ["--seed", "0"], ["--group", "id"]):
        _, error = mapsto("train", "--resume", "--run", "second", *more, code=2)
        assert "--resume goes on as the run began" in error
    assert "resumed at step" in mapsto("train", "--resume", "--run", "second")[0]


def test_seed_0_overrules_the_seed_of_a_config(tmp_path):
    data = write_reviews(tmp_path / "reviews.csv")
    mapsto("train", data, "--from", "text", "--to", "label", "--run", "five", "--seed", "5", *QUICK)
    mapsto("train", "runs/five/config.yaml", "--run", "zero", "--seed", "0")
    assert "\nseed: 0 " in Path("runs/zero/config.yaml").read_text()
