"""Everything that owns a tensor: one thread, the static buffers, the step, the verifier."""
