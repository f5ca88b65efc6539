"""Answers in a form: grammars, where sequences are in them, what they force. No torch, no gRPC."""
