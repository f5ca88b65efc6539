"""What a model file holds, and what the loader makes of it: sizes, formats, errors, bytes per step.

Knows which facts matter to somebody who chooses a model; conversions are measured in
`measuring.py`. Knows nothing of how facts are shown.

Invariant: `problem` is the sentence with which the daemon would refuse the file, and whatever was
learned before it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specd.errors import ModelFileError
from specd.model.arch import ModelConfig, check_tokenizer, config_from_gguf
from specd.model.formats import WeightFormat
from specd.model.gguf_file import TensorInfo
from specd.model.measuring import Conversion, Deviation, MeasuringLoader
from specd.model.opening import open_model
from specd.model.source import ModelSource
from specd.model.weights import ModelWeights, read_weights
from specd.text.chat import ChatTemplate
from specd.text.tokenizer import Tokenizer

Progress = Callable[[int, int], None]  # layers done, layers in all
MakeLoader = Callable[[ModelSource, ModelConfig, WeightFormat], MeasuringLoader]


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """As `GetModel` tells them. Ids and texts of the tokens that mean something; control: all."""

    vocab_size: int
    fingerprint: str
    bos: tuple[int, str] | None
    eos: tuple[tuple[int, str], ...]
    control: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What one plain step reads: layers with their norms, the head, K and V of `context`."""

    layers: int
    head: int
    kv: int
    context: int

    @property
    def total(self) -> int:
        return self.layers + self.head + self.kv


@dataclass(slots=True)
class Inspection:
    """What was learned of a file or a folder.

    numbers: the sizes under the architecture's own prefix, as the file has them.
    notes: what of it is not used, or not as it says. has_chat_template: one that can be used.
    step: None where it cannot be served.
    """

    path: Path
    file_bytes: int
    weights: WeightFormat
    name: str
    architecture: str
    numbers: Mapping[str, object]
    tensors: Sequence[TensorInfo]
    notes: Sequence[str] = ()
    config: ModelConfig | None = None
    tokenizer: TokenizerFacts | None = None
    has_chat_template: bool = False
    conversions: list[Conversion] = field(default_factory=list)
    step: StepBytes | None = None
    problem: str | None = None


def inspect(
    path: Path,
    weights: WeightFormat,
    context: int,
    progress: Progress = lambda done, total: None,
    make_loader: MakeLoader = MeasuringLoader,
) -> Inspection:
    """Learn all about a file or a folder.

    make_loader: of the kernels that would run it; chosen when the sizes are known.

    Raises: ModelFileError where it is no model that can be read, or `context` is beyond it.
    """
    file = open_model(path)
    found = _described(file, weights)
    problems: list[ModelFileError] = []
    for look in (_look_at_sizes, _look_at_tokenizer):
        try:
            look(file, found)
        except ModelFileError as error:
            problems.append(error)
    if found.config is not None and context > found.config.context_length:
        raise ModelFileError(
            f"a context of {context} positions is more than the {found.config.context_length} "
            "of the model"
        )
    if not problems:
        try:
            _look_at_weights(file, found, context, progress, make_loader)
        except ModelFileError as error:
            problems.append(error)
            found.conversions.clear()
    found.problem = str(problems[0]) if problems else None
    return found


def _described(file: ModelSource, weights: WeightFormat) -> Inspection:
    architecture = str(file.metadata.get("general.architecture", ""))
    prefix = f"{architecture}."
    numbers = {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix) and not isinstance(value, list)
    }
    return Inspection(
        path=file.path,
        file_bytes=sum(path.stat().st_size for path in file.files),
        weights=weights,
        name=str(file.metadata.get("general.name") or architecture),
        architecture=architecture,
        numbers=numbers,
        tensors=tuple(file.tensors.values()),
        notes=file.notes,
        has_chat_template=isinstance(file.metadata.get("tokenizer.chat_template"), str),
    )


def _look_at_sizes(file: ModelSource, found: Inspection) -> None:
    found.config = config_from_gguf(file.metadata)


def _look_at_tokenizer(file: ModelSource, found: Inspection) -> None:
    tokenizer = Tokenizer.from_source(file)

    def token(token_id: int) -> tuple[int, str]:
        return token_id, tokenizer.token_text(token_id)

    found.tokenizer = TokenizerFacts(
        vocab_size=tokenizer.vocab_size,
        fingerprint=tokenizer.fingerprint,
        bos=None if tokenizer.bos_id is None else token(tokenizer.bos_id),
        eos=tuple(map(token, sorted(tokenizer.eos_ids))),
        control=tuple(map(token, filter(tokenizer.is_special, range(tokenizer.vocab_size)))),
    )
    found.has_chat_template = ChatTemplate.from_source(file, tokenizer).usable
    if found.config is not None:
        check_tokenizer(found.config, tokenizer.vocab_size)


def _look_at_weights(
    file: ModelSource,
    found: Inspection,
    context: int,
    progress: Progress,
    make_loader: MakeLoader,
) -> None:
    assert found.config is not None
    loader = make_loader(file, found.config, found.weights)
    found.conversions = loader.conversions
    weights = read_weights(loader, found.config, progress)
    found.step = _step_bytes(weights, found.config, context)


def _step_bytes(weights: ModelWeights, config: ModelConfig, context: int) -> StepBytes:
    *layers, head = weights.linears()
    vectors = [vector for layer in weights.layers for vector in layer.vectors()]
    return StepBytes(
        layers=sum(linear.bytes for linear in layers) + sum(vector.nbytes for vector in vectors),
        head=head.bytes + weights.final_norm.nbytes,
        kv=config.num_layers * config.kv_width * weights.kv_dtype.itemsize * context,
        context=context,
    )


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors of one type in one use. format, memory_bytes, deviation: None before conversion."""

    block_type: str
    use: str | None
    format: str | None
    num_tensors: int
    file_bytes: int
    is_second: bool
    memory_bytes: int | None
    deviation: Deviation | None


def groups(found: Inspection) -> list[Group]:
    """All tensors, grouped by what they are and what they become."""
    if not found.conversions:
        return _stored_groups(found.tensors)
    uses: dict[tuple[str, str, str, bool], list[Conversion]] = {}
    for one in found.conversions:
        key = (one.tensor.type_name, one.use, one.format, one.is_second)
        uses.setdefault(key, []).append(one)
    return [
        Group(
            block_type=block_type,
            use=use,
            format=format,
            num_tensors=len(members),
            file_bytes=sum(one.tensor.data.nbytes for one in members),
            is_second=is_second,
            memory_bytes=sum(one.memory_bytes for one in members),
            deviation=sum((one.deviation for one in members), Deviation()),
        )
        for (block_type, use, format, is_second), members in uses.items()
    ]


def _stored_groups(tensors: Iterable[TensorInfo]) -> list[Group]:
    types: dict[str, list[TensorInfo]] = {}
    for tensor in tensors:
        types.setdefault(tensor.type_name, []).append(tensor)
    return [
        Group(
            name, None, None, len(members), sum(t.data.nbytes for t in members), False, None, None
        )
        for name, members in types.items()
    ]
