"""The accounting of KV pages. Numbers only: the tensors belong to `specd.device`."""
