"""The toy models of the tests, under the name that tests know: they are those of benchmarks/."""

from benchmarks.toy_gguf import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    IM_START,
    SPECIALS,
    TRAINING_TEXT,
    LinearType,
    ToyVocabulary,
    add_tensor,
    build_toy_model,
    byte_characters,
    tokenizer_metadata,
    toy_vocabulary,
    write_file,
    write_shape,
    write_tokenizer,
)

__all__ = [
    "CHAT_TEMPLATE",
    "END_OF_TEXT",
    "IM_END",
    "IM_START",
    "SPECIALS",
    "TRAINING_TEXT",
    "LinearType",
    "ToyVocabulary",
    "add_tensor",
    "build_toy_model",
    "byte_characters",
    "tokenizer_metadata",
    "toy_vocabulary",
    "write_file",
    "write_shape",
    "write_tokenizer",
]
