"""specd: a daemon that serves a language model over gRPC with speculative decoding.

`docs/life-of-a-request.md` shows the way from a call to a token.
"""

__version__ = "0.1.0"
