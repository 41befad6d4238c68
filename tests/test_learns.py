"""Every kind of input with every kind of output: a map that can be learned is learned, and beats what needs no model."""

import numpy as np
import pytest

import mapsto

QUICK = {
    "size": "xs",
    "model.dropout": 0,
    "train.average": 0,
    "train.batch_tokens": 512,
    "train.evaluate_every": 100000,
    "train.lr": 0.01,
    "threads": 1,
    "device": "cpu",
}


def draws(seed=0):
    return np.random.default_rng(seed)


def learn(rows, source, target, steps, **settings):
    """The metrics of a short run, and what needs no input: the commonest label, or the mean."""
    given = QUICK | {"train.steps": steps} | {k.replace("_", ".", 1): v for k, v in settings.items()}
    run = mapsto.fit(rows, source=source, target=target, settings=given, quiet=True)
    result = run.result
    plain = next(v for k, v in result["baselines"].items() if k.endswith(("mean", "most common")))
    return run, result["metrics"], plain


def strings(rows=300, letters="abcdef", seed=0):
    rng = draws(seed)
    return ["".join(rng.choice(list(letters), rng.integers(3, 9))) for _ in range(rows)]


def test_the_first_symbol_of_a_sequence_gives_its_label():
    rows = [{"code": s, "label": "early" if s[0] in "abc" else "late"} for s in strings()]
    run, found, plain = learn(rows, "code:sequence", "label", 120)
    assert found["accuracy"] > max(0.9, plain["accuracy"] + 0.2)
    assert [p["label"] for p in run.predict(["affff", "faaaa"])] == ["early", "late"]


def test_a_word_of_a_text_gives_its_label():
    rng = draws(1)
    plain_words = ["film", "plot", "actor", "scene", "the", "a"]
    rows = []
    for i in range(240):
        words = [*rng.choice(plain_words, 5), rng.choice(["lovely", "warm"] if i % 2 else ["dull", "cold"])]
        rng.shuffle(words)
        rows.append({"text": " ".join(words), "mood": "good" if i % 2 else "bad"})
    _, found, plain = learn(rows, "text", "mood", 60, input_vocabulary="words")
    assert found["accuracy"] > max(0.9, plain["accuracy"] + 0.2)


def test_the_counts_of_a_sequence_give_a_number():
    rows = [{"code": s, "much": 10.0 * s.count("a") - 5.0 * s.count("b") + 100} for s in strings(seed=2)]
    run, found, plain = learn(rows, "code:sequence", "much:number", 120, model_pool="sum")
    assert found["rmse"] < 0.5 * plain["rmse"]
    high, low = run.predict(["aaaa", "bbbb"])
    assert high["much"] > low["much"]
    assert high["much.sigma"] > 0


def test_the_letters_of_a_sequence_give_several_labels():
    rows = [{"code": s, "holds": [c for c in "abc" if c in s]} for s in strings(seed=3)]
    run, found, plain = learn(rows, "code:sequence", "holds:labels", 120)
    assert found["exact_match"] > plain["exact_match"] + 0.3
    assert set(run.predict(["aaddd"])[0]["holds.probability"]) == {"a", "b", "c"}


def test_every_symbol_of_a_sequence_gets_its_label():
    rng = draws(4)
    kind = {"cat": "noun", "dog": "noun", "runs": "verb", "sleeps": "verb", "red": "adjective"}
    rows = []
    for _ in range(120):
        words = rng.choice(list(kind), rng.integers(2, 8)).tolist()
        rows.append({"words": words, "tags": [kind[w] for w in words]})
    run, found, plain = learn(rows, "words", "tags", 60)
    assert found["accuracy"] > max(0.95, plain["accuracy"] + 0.2)
    assert run.predict([{"words": ["red", "cat", "runs"]}])[0]["tags"] == ["adjective", "noun", "verb"]


def waves(rows=200, seed=5, times=False):
    """Slow and fast waves of two channels; with times, the samples themselves are alike and the times tell."""
    rng, made = draws(seed), []
    for i in range(rows):
        length, phase = int(rng.integers(8, 20)), rng.uniform(0, 6)
        slow = 1.0 if times or i % 2 else 3.0
        turn = 0.4 * slow * np.arange(length) + phase
        wave = np.stack([np.sin(turn), np.cos(turn)], 1) + 0.1 * rng.normal(size=(length, 2))
        row = {"wave": wave.tolist(), "speed": "slow" if i % 2 else "fast"}
        if times:
            gaps = rng.uniform(0.5, 1.5, length) * (5.0 if i % 2 else 1.0)
            row["at"] = np.cumsum(gaps).tolist()
        made.append(row)
    return made


def test_the_speed_of_a_series_gives_its_label():
    _, found, plain = learn(waves(), "wave", "speed", 100)
    assert found["accuracy"] > max(0.85, plain["accuracy"] + 0.2)


def test_the_times_of_a_series_are_seen():
    _, found, plain = learn(waves(seed=6, times=True), "wave", "speed", 150, data_times="at")
    assert found["accuracy"] > max(0.85, plain["accuracy"] + 0.2)


def test_the_mean_of_a_series_gives_a_number():
    rng = draws(7)
    made = [rng.normal(rng.normal(), 0.3, int(rng.integers(4, 12))) for _ in range(200)]
    rows = [{"samples": x.tolist(), "level": float(50 + 10 * x.mean())} for x in made]
    _, found, plain = learn(rows, "samples:series", "level:number", 100)
    assert found["rmse"] < 0.5 * plain["rmse"]


def test_every_sample_of_a_series_gets_its_number():
    rng = draws(8)
    made = [rng.normal(size=int(rng.integers(4, 10))) for _ in range(200)]
    rows = [{"samples": x.tolist(), "squares": (3 * x * x + 7).tolist()} for x in made]
    run, found, plain = learn(rows, "samples:series", "squares:items", 150)
    assert found["rmse"] < 0.5 * plain["rmse"]
    assert len(run.predict([{"samples": [0.0, 1.0, 2.0]}])[0]["squares"]) == 3


def pictures(rows=160, seed=9):
    """Dark pictures with a bright bar that lies or stands; sizes differ."""
    rng, images, ways = draws(seed), [], []
    for i in range(rows):
        height, width = rng.integers(9, 15, 2)
        image = rng.integers(0, 60, (height, width)).astype(np.uint8)
        if i % 2:
            image[int(rng.integers(1, height - 2))] = 255
        else:
            image[:, int(rng.integers(1, width - 2))] = 255
        images.append(image)
        ways.append("lies" if i % 2 else "stands")
    return {"picture": images, "way": ways}


def test_what_a_picture_shows_gives_its_label():
    run, found, plain = learn(pictures(), "picture", "way", 80)
    assert found["accuracy"] > max(0.85, plain["accuracy"] + 0.2)
    assert len(run.predict(pictures(rows=3, seed=10)["picture"])) == 3


def test_the_brightness_of_a_picture_gives_a_number():
    rng = draws(11)
    shades = rng.uniform(20, 230, 160)
    images = [np.clip(rng.normal(s, 15, (8, 8)), 0, 255).astype(np.uint8) for s in shades]
    _, found, plain = learn({"picture": images, "shade": shades}, "picture", "shade:number", 80)
    assert found["rmse"] < 0.5 * plain["rmse"]


def houses(rows=300, seed=12):
    rng = draws(seed)
    made = []
    for _ in range(rows):
        area, rooms, town = rng.uniform(40, 200), int(rng.integers(1, 7)), str(rng.choice(["north", "south", "west"]))
        price = 2.0 * area + (100 if town == "south" else 0)
        made.append(
            {
                "area": float(area),
                "rooms": None if rng.random() < 0.2 else rooms,
                "town": None if rng.random() < 0.1 else town,
                "price": float(price),
                "extras": [n for n, yes in (("garden", area > 120), ("lift", town == "west")) if yes],
            }
        )
    return made


def test_a_table_with_gaps_gives_a_number():
    rows = houses()
    run, found, plain = learn(rows, ["area", "rooms", "town"], "price", 150)
    assert found["rmse"] < 0.5 * plain["rmse"]
    assert run.predict([{"area": 150.0, "rooms": None, "town": None}])[0]["price"] > 150


def test_a_table_gives_several_labels():
    rows = houses(seed=13)
    _, found, plain = learn(rows, ["area", "town"], "extras:labels", 150)
    assert found["exact_match"] > plain["exact_match"] + 0.2


def test_a_table_gives_a_label_and_a_number_at_once():
    rows = [r | {"large": "yes" if r["area"] > 120 else "no"} for r in houses(seed=14)]
    run, found, _ = learn(rows, ["area"], ["large", "price"], 150)
    assert found["large.accuracy"] > 0.85
    assert found["price.rmse"] < 75  # the town alone moves the price by 47 (standard deviation), the area by 92
    assert set(run.predict([{"area": 150.0}])[0]) == {"large", "large.probability", "price", "price.sigma"}


def test_a_text_and_a_number_give_a_label_that_needs_both():
    rng, rows = draws(15), []
    for _ in range(300):
        word, number = str(rng.choice(["plus", "minus"])), float(rng.normal())
        rows.append(
            {
                "text": f"the sign is {word}",
                "number": number,
                "label": "up" if (word == "plus") == (number > 0) else "down",
            }
        )
    _, found, plain = learn(rows, ["text:sequence", "number"], "label", 150, input_vocabulary="words")
    assert found["accuracy"] > max(0.85, plain["accuracy"] + 0.2)
    assert found["accuracy"] > 0.7


def test_an_empty_cell_of_labels_is_none_of_them(tmp_path):
    lines = ["code,holds", *(f"{s},{'|'.join(c for c in 'abc' if c in s)}" for s in strings(rows=60, seed=3))]
    (tmp_path / "codes.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    learn(str(tmp_path / "codes.csv"), "code:sequence", "holds:labels", 2)


@pytest.mark.parametrize("pool", ["attention", "class", "sigmoid", "softmax"])
def test_every_pooling_learns(pool):
    rows = [{"code": s, "label": "with" if "a" in s else "without"} for s in strings(seed=16)]
    _, found, plain = learn(rows, "code:sequence", "label", 70, model_pool=pool)
    assert found["accuracy"] > max(0.85, plain["accuracy"] + 0.1)


@pytest.mark.parametrize(
    ("position", "norm"),
    [
        ("sinusoidal", "post"),
        ("learned", "pre"),
        ("rotary", "pre"),
        ("t5", "pre"),
        ("relative", "pre"),
    ],
)
def test_every_position_tells_the_order(position, norm):
    rows = [{"code": s, "label": "up" if s.index("a") < s.index("b") else "down"} for s in _orders()]
    _, found, plain = learn(
        rows, "code:sequence", "label", 100, model_position=position, model_norm=norm, train_lr=0.007
    )
    assert found["accuracy"] > max(0.85, plain["accuracy"] + 0.2)


@pytest.mark.parametrize("mixer", ["composite", "gated"])
def test_a_memory_knows_which_marker_came_last(mixer):
    rng, rows = draws(18), []
    for _ in range(300):
        code = list(rng.choice(list("cdefgh"), int(rng.integers(6, 16))))
        for at in rng.choice(len(code), 3, replace=False):
            code[at] = str(rng.choice(["a", "b"]))
        last = next(c for c in reversed(code) if c in "ab")
        rows.append({"code": "".join(code), "label": f"last was {last}"})
    run, found, plain = learn(rows, "code:sequence", "label", 120, model_mixer=mixer)
    assert found["accuracy"] > max(0.9, plain["accuracy"] + 0.2)
    assert [p["label"] for p in run.predict(["ccaccbcc", "ccbccacc"])] == ["last was b", "last was a"]


def _orders(rows=300):
    rng = draws(17)
    made = []
    for i in range(rows):
        rest = list(rng.choice(list("cdef"), int(rng.integers(1, 5))))
        at = sorted(rng.choice(len(rest) + 2, 2, replace=False).tolist())
        for place, letter in zip(at, "ab" if i % 2 else "ba", strict=True):
            rest.insert(place, letter)
        made.append("".join(rest))
    return made


def test_a_series_is_forecast_from_its_own_past_down_to_its_noise():
    t, rng = np.arange(500), draws(9)
    x = 50 + 0.02 * t + 5 * np.sin(2 * np.pi * t / 12) + 0.5 * rng.normal(size=len(t))
    given = QUICK | {"output.horizon": 6, "output.history": 36, "train.steps": 40, "train.lr": 0.003}
    run = mapsto.fit({"x": x}, target="x", settings=given, quiet=True)
    found, beside = run.result["metrics"], run.result["baselines"]
    assert found["rmse"] < 0.75
    assert found["rmse"] < 0.3 * beside["last value"]["rmse"]
    assert found["rmse"] < 0.95 * next(v["rmse"] for k, v in beside.items() if k.startswith("season of"))
    assert found["coverage"] > 0.8
    assert len(run.result["steps"]) == 6
    (said,) = run.predict(x[:400].tolist())
    assert np.abs(np.array(said["future"]) - (58 + 5 * np.sin(2 * np.pi * np.arange(400, 406) / 12))).max() < 1.5
    assert (np.array(said["future.low"]) < said["future"]).all()


def test_futures_of_their_own_column_are_forecast():
    rng, rows = draws(10), []
    for _ in range(250):
        slope, start, known = rng.normal(), 10 * rng.normal(), int(rng.integers(4, 9))
        line = start + slope * np.arange(known + 3)
        rows.append({"before": line[:known].tolist(), "after": line[known : known + int(rng.integers(2, 4))].tolist()})
    given = QUICK | {"train.steps": 60, "train.lr": 0.003}
    run = mapsto.fit(rows, source="before:series", target="after:series", settings=given, quiet=True)
    found, beside = run.result["metrics"], run.result["baselines"]
    assert found["rmse"] < 0.3 * beside["last value"]["rmse"]
    (said,) = run.predict([[1.0, 2.0, 3.0, 4.0, 5.0]])
    assert np.abs(np.array(said["after"]) - [6, 7, 8]).max() < 1
