"""What a model's config.json may say, checked from its numbers and names before anything is made of it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mapsto import kinds
from mapsto.data.fault import plain
from mapsto.tasks.section import ModelConfig

__all__ = ["Reference", "Stored", "read_stored"]

FORMAT = 1

Names = Annotated[list[str], Field(min_length=1)]
Numbers = Annotated[list[float], Field(min_length=1)]
Scales = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
Size = Annotated[int, Field(ge=0, le=1 << 24)]
Side = Annotated[int, Field(ge=1, le=1 << 16)]


class Strict(BaseModel):
    """Names that are known, values of one type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class Spread(Strict):
    """Numbers standardised by their mean and scale."""

    mean: Numbers
    scale: Scales

    @model_validator(mode="after")
    def alike(self) -> Self:
        """A mean and a scale for each number."""
        if len(self.mean) != len(self.scale):
            raise ValueError(f"{len(self.mean)} means and {len(self.scale)} scales")
        return self


class Classes(Strict):
    """Labels, none of them twice."""

    classes: list[str]

    @model_validator(mode="after")
    def different(self) -> Self:
        """Each once."""
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("a class is named twice")
        return self


class NumberColumn(Spread):
    """Numbers of a table."""

    name: str
    kind: Literal["number"]


class LabelColumn(Classes):
    """Categories of a table."""

    name: str
    kind: Literal["label"]


class NumberAnswer(Spread):
    """Numbers to predict."""

    kind: Literal["number"]
    sigma: Literal["dims", "shared", "datum"]
    counted: bool = False


class LabelAnswer(Classes):
    """One of some labels, or any of them."""

    kind: Literal["label", "labels"]
    classes: Names


Column = Annotated[NumberColumn | LabelColumn, Field(discriminator="kind")]
Answer = Annotated[NumberAnswer | LabelAnswer, Field(discriminator="kind")]


class Reference(Strict):
    """A vocabulary in a file of its own."""

    vocabulary: str
    file: str = Field(pattern=r"^vocabulary\.[0-9]{1,6}\.[a-z]{1,16}$")


class Settings(Strict):
    """Arguments of inputs and outputs: whoever takes one of these names takes it with this meaning.

    What is not named here is left to the constructors, which also know what they need.
    """

    model_config = ConfigDict(extra="allow")

    vocabulary: Reference = Field(default_factory=lambda: Reference(vocabulary="", file="vocabulary.0.json"))
    limit: Size = 0
    keep: str = ""
    stem: Literal["patches", "convolution"] | Annotated[int, Field(ge=0, le=999)] = 0
    ngrams: int = Field(0, ge=0, le=6)
    patch: Annotated[int, Field(ge=1, le=4096)] | Annotated[list[Side], Field(max_length=2)] = 1
    channels: int = Field(1, ge=1, le=3)
    wide: bool = False
    side: Size = 0
    shift: Size = 0
    flip: bool = False
    relative: bool = False
    mean: Numbers = []
    scale: Scales = []
    gap: Annotated[float, Field(gt=0)] | None = None
    columns: Annotated[list[Column], Field(min_length=1)] = []
    smoothing: float = Field(0.0, ge=0, lt=1)
    name: str = ""
    target: Answer | None = None
    longest: Annotated[int, Field(ge=1, le=1 << 24)] = 1
    window: Size = 0
    tie: bool = True
    horizon: int = Field(1, ge=1, le=1 << 16)
    noise: Literal["gaussian", "student"] = "gaussian"
    source: int = Field(-1, ge=-1)
    past: Size = 0
    targets: Annotated[dict[str, Answer], Field(min_length=1)] = {}
    size: Annotated[list[Side], Field(min_length=2, max_length=2)] = [1, 1]
    density: str = Field("", max_length=200)
    binarise: bool = False
    holes: bool = False

    @model_validator(mode="after")
    def alike(self) -> Self:
        """A mean and a scale for each channel."""
        if len(self.mean) != len(self.scale) or (
            {"channels", "mean"} <= self.model_fields_set and len(self.mean) != self.channels
        ):
            raise ValueError(f"{len(self.mean)} means and {len(self.scale)} scales for {self.channels} channels")
        return self


class StoredField(Strict):
    """Columns that are one input, or the output."""

    name: str
    kind: str
    columns: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(min_length=1)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(column, kind) of each."""
        return [(column, kind) for column, kind in self.columns]


class StoredSchema(Strict):
    """What is mapped to what."""

    inputs: list[StoredField]
    output: StoredField
    times: str
    missing: list[str]


class Stored(Strict):
    """The whole file."""

    format: int = Field(ge=FORMAT, le=FORMAT)
    mapped: StoredSchema = Field(alias="schema")
    inputs: list[Settings]
    output: Settings
    model: ModelConfig

    @model_validator(mode="after")
    def agree(self) -> Self:
        """The kinds are there, and their settings are of the columns that the schema names."""
        fields, answer, said = self.mapped.inputs, self.mapped.output, self.output
        if len(self.inputs) != len(fields) or len({f.name for f in fields}) != len(fields):
            raise ValueError(f"{len(self.inputs)} inputs for {len(fields)} of the schema, or two of one name")
        for folder, found in (("inputs", fields), ("outputs", [answer])):
            known = kinds.names(folder)
            for field in found:
                if field.kind not in known:
                    raise ValueError(f"{folder}: {field.kind!r:.80} is not one of {', '.join(known)}")
        for field, settings in zip(fields, self.inputs, strict=True):
            read: list[tuple[str, str]] = [(c.name, c.kind) for c in settings.columns]
            alone = sequence(settings) if field.kind == "sequence" else field.kind
            if (read or [(field.columns[0][0], alone)]) != field.pairs:
                raise ValueError(f"the settings of input {field.name!r:.80} are of other columns")
        asked = {said.name: said.target} if said.target is not None else said.targets
        written = [(said.name, sequence(said))] if answer.kind in ("sequence", "parallel") else []
        if answer.kind == "image":
            written = [(said.name, "image")]
        if answer.kind == "series":
            written = [(said.name, "series")]
            goes_on = self.inputs[said.source] if 0 <= said.source < len(fields) else None
            if said.source >= 0 and (
                goes_on is None or fields[said.source].kind != "series" or len(goes_on.mean) != len(said.mean)
            ):
                raise ValueError("the output goes on from no series of as many channels")
        if not fields and answer.kind != "sequence":
            raise ValueError("no input, and no output that can do without")
        if (written or [(name, target.kind) for name, target in asked.items()]) != answer.pairs:
            raise ValueError("the settings of the output are of other columns")
        if fields and said.window:
            raise ValueError("windows are of a language model, and this model has inputs")
        if answer.kind == "items" and (len(fields) != 1 or fields[0].kind not in ("sequence", "series")):
            raise ValueError("an answer an item needs one sequence or series")
        if not (self.model.dim and self.model.heads):
            raise ValueError("model.dim and model.heads are not settled")
        return self


def sequence(settings: Settings) -> str:
    """The kind of the cells that a sequence is read from, or written to."""
    return "music" if settings.vocabulary.vocabulary == "music" else "sequence"


def read_stored(content: Any) -> Stored:
    """Check the content of a config.json.

    Raises:
        ValueError: says in one line what is wrong.
    """
    if isinstance(content, Mapping) and content.get("format") != FORMAT:
        raise ValueError(f"format {content.get('format')!r:.40}, this version reads {FORMAT}")
    try:
        return Stored.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(p)[:80] for p in first["loc"])
        raise ValueError(plain(f"{place}: {first['msg']}".removeprefix(": "))) from None
