"""The groups of settings, each value with its meaning and default."""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["DataConfig", "InputConfig", "ModelConfig", "OutputConfig", "Section", "TrainConfig"]

MANY = 1 << 40  # steps, tokens and other counts of work; nothing is made of this size


class Section(BaseModel):
    """A group of settings; unknown names are errors, and so are values of another type."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, protected_namespaces=(), strict=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def whole(cls, value: Any) -> Any:
        """1e3 is a whole number; half of a surrogate pair is no text."""
        json.dumps(value, ensure_ascii=False, default=str).encode()
        return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < MANY else value


class DataConfig(Section):
    """Where rows come from and which part is for what."""

    source: str = Field("", description="the file or folder (CSV, TSV, JSONL, Parquet, TXT, NPZ, a folder of pictures)")
    inputs: list[str] = Field([], description="columns to map from, each name or name:kind")
    targets: list[str] = Field([], description="columns to map to, each name or name:kind")
    split: str = Field("", description="a column that says train, val or test; empty: by hash of the content")
    group: str = Field("", description="a column whose equal values stay on one side of every split")
    val: str = Field("", description="a file of its own to validate on")
    test: str = Field("", description="a file of its own to test on")
    shares: list[float] = Field([0.8, 0.1, 0.1], description="shares of train, val, test, where the hash decides")
    folds: int = Field(0, description="cross-validation in so many parts; 0: one split", ge=0, le=1000)
    fold: int = Field(0, description="which fold is the test part", ge=0, le=1000)
    times: str = Field("", description="a column with the times of a series' samples (seconds or dates)")
    missing: list[str] = Field([], description='further texts that mean "no value", such as NA')
    root: str = Field("", description="folder that paths in the data are relative to; empty: the data file's own")
    quote: Literal['"', ""] = Field('"', description="what quotes a cell of CSV and TSV; empty: nothing does")
    skip_bad: float = Field(
        0.0, description="share of rows that may be dropped because they cannot be read", ge=0, le=1
    )


class InputConfig(Section):
    """How inputs are read."""

    vocabulary: Literal["auto", "bytes", "characters", "words", "subwords", "symbols"] = Field(
        "auto", description="how text is cut into tokens: auto, bytes, characters, words, subwords, symbols"
    )
    vocabulary_size: int = Field(8000, description="at most so many tokens in the vocabulary", gt=0, le=1 << 20)
    vocabulary_least: int = Field(1, description="leave out tokens seen less often (words, characters)", gt=0, le=MANY)
    limit: int = Field(512, description="at most so many items of a sequence or series; 0: no limit", ge=0, le=1 << 24)
    keep: Literal["first", "last", "ends"] = Field(
        "first", description="which part of a longer sequence: first, last, ends"
    )
    window: int = Field(0, description="width of a convolution over neighbouring tokens, odd; 0: none", ge=0, le=999)
    ngrams: int = Field(0, description="embed the hashed n-grams of tokens up to this n, too; 0: none", ge=0, le=6)
    patch: int = Field(
        0, description="pixels a side of a patch, or samples of a series in an item; 0: by size", ge=0, le=4096
    )
    stem: Literal["", "patches", "convolution"] = Field(
        "", description="how a picture becomes items: patches, convolution; empty: convolution, if the patch allows"
    )
    side: int = Field(64, description="shrink pictures so that no side has more pixels; 0: never", ge=0, le=1 << 16)
    shift: int = Field(0, description="in training, move pictures by up to so many pixels", ge=0, le=1 << 16)
    relative: bool | None = Field(
        None,
        description="series less their last number, in units of their own spread; null: where a forecast is relative",
    )
    flip: bool = Field(False, description="in training, mirror half of the pictures left to right")


class OutputConfig(Section):
    """How sequences are written, and series forecast."""

    vocabulary: Literal["auto", "bytes", "characters", "words", "subwords", "symbols"] = Field(
        "auto", description="how target texts are cut into tokens: auto, bytes, characters, words, subwords, symbols"
    )
    vocabulary_size: int = Field(8000, description="at most so many tokens in the vocabulary", gt=0, le=1 << 20)
    vocabulary_least: int = Field(1, description="leave out tokens seen less often (words, characters)", gt=0, le=MANY)
    limit: int = Field(
        512,
        description="at most so many tokens of a target; of a language model, the tokens of a window; 0: no limit",
        ge=0,
        le=1 << 24,
    )
    horizon: int = Field(
        0,
        description="steps of a series to forecast; without --from, from its own past. 0: as many as the longest target has",
        ge=0,
        le=1 << 16,
    )
    history: int = Field(
        0,
        description="samples of its past that a series is forecast from; 0: four horizons, 64 at least, input.limit at most",
        ge=0,
        le=1 << 24,
    )
    noise: Literal["gaussian", "student"] = Field(
        "student",
        description="how numbers of a forecast stray: student (heavy tails, as heavy as they are), or gaussian",
    )
    density: str = Field(
        "",
        description="likelihood of a pixel: bernoulli, gaussian, gaussian:sigma=1, continuous_bernoulli, logistic, "
        "logistic:components=5; empty: bernoulli for black and white pictures, else gaussian",
    )
    number: Literal["auto", "gaussian", "count"] = Field(
        "auto",
        description="likelihood of a number: gaussian; count, of whole numbers from 0 on (negative binomial); auto: gaussian, "
        "and of a table that is said again what fits each column better",
    )
    binarise: bool = Field(False, description="draw pixels black or white anew each time, by their grey value")
    relative: bool = Field(True, description="a forecast goes on from the last number of the series it is mapped from")
    tie: bool = Field(True, description="a token's row of the last layer is its embedding")
    autoregressive: bool = Field(
        True,
        description="tokens are written one after the other, each knowing those before it; false: all at once, from the "
        "memory alone",
    )
    beam: int = Field(4, description="beams that the test part is written with; 1: greedy", ge=1, le=1 << 12)
    penalty: float = Field(
        1.0, description="beams are ranked by log-probability / length^penalty", allow_inf_nan=False, ge=-10, le=10
    )


class ModelConfig(Section):
    """What the model is made of."""

    dim: int = Field(0, description="width of an item; 0: by --size", ge=0, le=1 << 16)
    depth: int = Field(0, description="encoder blocks; 0: by --size", ge=0, le=1000)
    decoder: int = Field(0, description="decoder blocks of an output of sequences or series; 0: as many", ge=0, le=1000)
    heads: int = Field(0, description="heads of each attention; 0: by --size", ge=0, le=1 << 12)
    attention: str = Field(
        "softmax",
        description="how heads mix values: softmax, hard, window:256, favor:256, memory; auto: by their time here",
    )
    cross: str = Field("softmax", description="how a decoder attends to its memory: softmax, hard, favor:256, memory")
    mixer: Literal["attention", "composite", "gated"] = Field(
        "attention",
        description="how items know of each other: attention; or memories that read both ways: composite, gated",
    )
    position: Literal["auto", "sinusoidal", "learned", "rotary", "alibi", "t5", "relative", "none"] = Field(
        "auto",
        description="how places are told: auto (sinusoidal; none for sets and memories), sinusoidal, learned, rotary, "
        "alibi, t5, relative, none",
    )
    pool: Literal["mean", "max", "sum", "attention", "class", "sigmoid", "softmax"] = Field(
        "mean", description="one answer from all items: mean, max, sum, attention, class, sigmoid, softmax"
    )
    norm: Literal["pre", "post"] = Field("pre", description="place of the norms: pre, post")
    hidden: int = Field(0, description="width inside the feed-forward; 0: four times dim", ge=0, le=1 << 20)
    activation: Literal["gelu", "relu", "silu", "tanh", "identity"] = Field(
        "gelu",
        description="gelu, relu, silu, tanh; identity: perceptrons are linear, and an autoencoder is factor analysis",
    )
    normalise: bool | None = Field(
        None, description="normalise queries and keys, with a learned temperature; null: with favor attention"
    )
    latent: int = Field(
        0,
        description="dimensions of a latent variable, from which the inputs are said again; 0: a map to targets",
        ge=0,
        le=4096,
    )
    posterior: str = Field("normal", description="what the encoder believes of z: normal, full, flow:layers=4")
    prior: str = Field("standard", description="what is believed of z before: standard, mixture:components=16")
    memory: int = Field(
        4, description="items that a decoder which attends is given z as; perceptrons are given one", ge=1, le=4096
    )
    dropout: float = Field(0.1, description="share of numbers dropped in training", ge=0, lt=1)
    masking: float = Field(0.0, description="share of items hidden in training", ge=0, lt=1)
    sigma: Literal["dims", "shared", "datum"] = Field(
        "dims", description="spread of predicted numbers: one for each column (dims), for all (shared), or a datum"
    )

    @property
    def mixing(self) -> str:
        """How items know of each other, for a report."""
        if self.mixer != "attention":
            return f"{self.mixer} memory"
        return f"{self.heads} heads, {self.attention} attention"


class TrainConfig(Section):
    """How the model is trained."""

    steps: int = Field(0, description="optimiser steps; 0: by epochs", ge=0, le=MANY)
    epochs: float = Field(0, description="passes over the training rows; 0: by their number", ge=0, le=1e9)
    lr: float = Field(0, description="peak of the learning rate; 0: by --size", ge=0)
    warmup: float = Field(0.05, description="share of the steps that the learning rate rises", ge=0, le=1)
    batch_tokens: int = Field(0, description="items in a batch, padding included; 0: by the data's size", ge=0, le=MANY)
    batch_rows: int = Field(256, description="at most so many rows in a batch", gt=0, le=MANY)
    accumulate: int = Field(0, description="batches a step, over all processes; 0: one a process", ge=0, le=1 << 20)
    weight_decay: float = Field(0.05, description="of AdamW, on matrices", ge=0)
    clip: float = Field(1.0, description="largest norm of the gradient; 0: no limit", ge=0)
    average: float = Field(0.99, description="decay of the averaged weights; 0: none", ge=0, lt=1)
    smoothing: float = Field(0.0, description="label smoothing", ge=0, lt=1)
    bound: str = Field(
        "elbo",
        description="what an autoencoder maximises: elbo, elbo:samples=5, iwae:5, capacity:20 (nats that the KL is driven to), "
        "reconstruction (no KL)",
    )
    beta: float = Field(1.0, description="weight of the KL in training; reports are at 1", ge=0, le=1e9)
    beta_warmup: float = Field(
        0.0, description="share of the steps in which that weight, or the capacity, rises from 0", ge=0, le=1
    )
    hide: float = Field(
        0.5,
        description="of a table, share of the rows that lose cells in training, so that any hole can be filled",
        ge=0,
        lt=1,
    )
    noise: float = Field(
        0.0,
        description="deviation of noise on what an autoencoder reads (pixels are 0 to 1): it learns to clean",
        ge=0,
        lt=1,
    )
    free: str = Field("", description="free bits in nats: dims:0.1 (of a dimension), batch:0.1 (on average), total:2")
    evaluate_every: int = Field(
        0, description="steps between evaluations; 0: an epoch, at most 40 in all", ge=0, le=MANY
    )
    save_every: int = Field(
        0,
        description="steps between checkpoints; 0: at evaluations and each minute, in at most 5 % of the time",
        ge=0,
        le=MANY,
    )
    patience: int = Field(0, description="end after so many evaluations without a better one; 0: never", ge=0, le=MANY)
    workers: int = Field(0, description="threads that gather batches ahead; 0: none", ge=0, le=256)
    timeout: float = Field(
        300.0, description="seconds until a process that does not answer counts as lost", gt=0, le=1e9
    )
    shard: bool = Field(False, description="let each process hold a share of the model only (fully_shard)")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="auto (bfloat16 where the device computes in it, of CPUs from model.dim=128 on), float32, bfloat16",
    )
