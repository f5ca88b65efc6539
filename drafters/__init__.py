"""Drafters: guests that guess the next tokens. Start reading at `contract.py`.

Nothing in this package imports `specd`.
"""
