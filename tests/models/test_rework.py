"""What is done to batches in training."""

import numpy as np
import pytest
import torch

from mapsto.errors import ConfigError
from mapsto.inputs.vector import VectorInput
from mapsto.models.rework import Corrupt, Hide
from mapsto.noise import set_clock
from mapsto.outputs.vector import KNOWN, VectorOutput
from mapsto.ragged import Ragged
from mapsto.stream import Clock

COLUMNS = [("a", "number"), ("c", "label"), ("b", "number"), ("d", "label")]
ROWS = [(1.0, "x", 10.0, "p"), (2.0, "y", None, "q"), (None, None, 30.0, None), (4.0, "x", 20.0, "p")]


def table(repeat: int = 1):
    source = VectorInput(8, **VectorInput.measure([ROWS], columns=COLUMNS))
    output = VectorOutput(8, **VectorOutput.measure([ROWS], columns=COLUMNS, holes=True))
    batch = {}
    for name, part in (("table", source), ("target", output)):
        parsed = [part.parse(row) for row in ROWS * repeat]
        batch[name] = part.gather(
            {key: Ragged.pack([row[key] for row in parsed]).take(np.arange(len(parsed))) for key in parsed[0]}
        )
    return source, output, batch


def test_a_hidden_cell_is_read_as_one_that_is_missing():
    source, output, batch = table()
    hidden = torch.tensor([[True, True, False, False], [False] * 4, [False] * 4, [False, False, True, True]])
    made = Hide("table", source, output, 0.5).without(batch, hidden)
    gone = [(None, None, 10.0, "p"), ROWS[1], ROWS[2], (4.0, "x", None, None)]
    parsed = [source.parse(row) for row in gone]
    wanted = source.gather(
        {key: Ragged.pack([row[key] for row in parsed]).take(np.arange(len(parsed))) for key in parsed[0]}
    )
    assert torch.equal(made["table"]["labels"], wanted["labels"])
    assert torch.equal(made["table"]["numbers"].isnan(), wanted["numbers"].isnan())
    assert torch.equal(made["table"]["numbers"].nan_to_num(), wanted["numbers"].nan_to_num())
    assert made["target"][KNOWN].tolist() == [[cell is not None for cell in row] for row in gone]


def test_rows_lose_cells_in_training_but_never_all():
    source, output, batch = table(500)
    hide = Hide("table", source, output, 0.5).train()
    set_clock(hide, Clock(0))
    before, after = batch["target"][KNOWN], hide(batch)["target"][KNOWN]
    assert not (after & ~before).any()
    assert (after.sum(1) > 0).all()
    lost = (after != before).any(1)[before.all(1)].float().mean()
    assert 0.25 < lost < 0.5  # of the half that may lose cells, those that did
    assert torch.equal(hide(batch)["target"][KNOWN], after) is False
    assert hide.eval()(batch) is batch


def test_noise_is_on_what_is_read_alone():
    _, _, batch = table()
    corrupt = Corrupt(0.5).train()
    set_clock(corrupt, Clock(0))
    made = corrupt(batch)
    assert made["target"] is batch["target"]
    assert torch.equal(made["table"]["numbers"].isnan(), batch["table"]["numbers"].isnan())
    assert not torch.equal(made["table"]["numbers"].nan_to_num(), batch["table"]["numbers"].nan_to_num())
    assert corrupt.eval()(batch) is batch


def test_noise_on_pixels_keeps_them_pixels():
    grey = torch.full((200, 4, 4, 1), 128, dtype=torch.uint8)
    corrupt = Corrupt(0.1).train()
    set_clock(corrupt, Clock(0))
    noisy = corrupt({"image": {"pixels": grey}, "target": {"pixels": grey}})["image"]["pixels"]
    assert noisy.dtype == torch.uint8
    assert float(noisy.float().std()) == pytest.approx(25.5, rel=0.05)
    loud = corrupt({"image": {"pixels": grey * 0}})["image"]["pixels"]
    assert int(loud.max()) < 255 // 2
    assert float((loud == 0).float().mean()) > 0.4  # cut, and not wrapped around


def test_noise_of_texts_is_refused():
    corrupt = Corrupt(0.1).train()
    with pytest.raises(ConfigError, match=r"model\.masking"):
        corrupt({"text": {"ids": torch.zeros(2, 3, dtype=torch.long)}, "target": {}})
