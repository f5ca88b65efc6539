"""Generated messages and stubs of package specd.v1, written by scripts/generate.

Everything here but this file is overwritten by it. Invariant: the descriptors are named
`specd/v1/*.proto`; only the Python modules live under `specd_client.v1`.
"""
