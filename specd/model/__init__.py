"""Model files, weight formats and the decoder."""
