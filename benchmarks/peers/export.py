"""Writes the weights of a GGUF file as a folder in bf16, for peers that read nothing else.

    PYTHON -m benchmarks.peers.export --model FILE.gguf --folder FOLDER

Runs under an interpreter with transformers, as `transformers_python.py` does. The folder has no
tokenizer: benchmarks speak in token ids.
"""

from __future__ import annotations

import argparse
import os
from typing import Any


def main() -> None:
    """Write the folder."""
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", required=True)
    chosen = parser.parse_args()
    source, name = os.path.split(os.path.abspath(chosen.model))
    library: Any = transformers
    model = library.AutoModelForCausalLM.from_pretrained(
        source, gguf_file=name, dtype=torch.bfloat16
    )
    # The tensors are plain ones by now; what says otherwise would not let them be written.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(chosen.folder)


if __name__ == "__main__":
    main()
