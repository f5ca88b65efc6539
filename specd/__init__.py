"""specd: a daemon that serves a language model over gRPC with speculative decoding.

The way of a request: server/generation -> server/convert -> engine/loop
-> engine/scheduler -> engine/drafting -> engine/padding -> device/eager -> device/verifier.
"""

__version__ = "0.1.0"
