"""The decisions: admission, planning, drafting, padding, committing. No torch, no gRPC here."""
