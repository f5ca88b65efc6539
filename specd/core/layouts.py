"""The structures of the core's C interface, field by field as in `src/core.h`.

Knows nothing but their layout. Invariant: `ABI_VERSION` equals the library's, or it is not used.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p

ABI_VERSION = 4
LANES = 16
PAGE = 32


class Part(Structure):
    """Rows of a matrix in one format."""

    _fields_ = (
        ("format", c_int32),
        ("reserved", c_int32),
        ("rows", c_int64),
        ("data", c_void_p),
    )


class Linear(Structure):
    """Parts behind each other, and a bias or null."""

    _fields_ = (
        ("columns", c_int64),
        ("num_parts", c_int64),
        ("parts", POINTER(Part)),
        ("bias", c_void_p),
    )


class Layer(Structure):
    """One decoder block; norms that a family lacks are null."""

    _fields_ = (
        ("attn_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("post_attn_norm", c_void_p),
        ("ffn_norm", c_void_p),
        ("post_ffn_norm", c_void_p),
        ("qkv", Linear),
        ("attn_output", Linear),
        ("gate", Linear),
        ("up", Linear),
        ("down", Linear),
        ("window", c_int64),
        ("rope", c_int64),
    )


class Model(Structure):
    """Sizes, constants and weights of a decoder."""

    _fields_ = (
        ("num_layers", c_int64),
        ("hidden", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("ffn", c_int64),
        ("vocab", c_int64),
        ("activation", c_int64),
        ("kv_is_fp32", c_int64),
        ("num_ropes", c_int64),
        ("norm_eps", c_double),
        ("embedding_scale", c_double),
        ("attention_scale", c_double),
        ("inverse_frequencies", c_void_p),
        ("layers", POINTER(Layer)),
        ("embedding", Part),
        ("final_norm", c_void_p),
        ("head", Linear),
    )


class Row(Structure):
    """`count` positions of one text from position `first` on, at flat index `offset`."""

    _fields_ = (
        ("offset", c_int64),
        ("count", c_int64),
        ("first", c_int64),
        ("table", c_void_p),
    )


class Step(Structure):
    """What changes from step to step."""

    _fields_ = (
        ("num_positions", c_int64),
        ("num_rows", c_int64),
        ("num_wanted", c_int64),
        ("num_pages", c_int64),
        ("tokens", c_void_p),
        ("rows", POINTER(Row)),
        ("wanted", c_void_p),
        ("logits", c_void_p),
        ("cache", c_void_p),
    )


class Draw(Structure):
    """How a token is chosen from the logits of its position."""

    _fields_ = (
        ("logits", c_void_p),
        ("seed", c_uint64),
        ("position", c_uint64),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("temperature", c_float),
        ("least_score", c_float),
    )


class Standing(Structure):
    """A token in the distribution of its position, and the most probable tokens there."""

    _fields_ = (
        ("logits", c_void_p),
        ("token", c_int64),
        ("num_best", c_int64),
        ("best", c_void_p),
        ("best_logprobs", c_void_p),
        ("rank", c_int64),
        ("logprob", c_double),
    )
