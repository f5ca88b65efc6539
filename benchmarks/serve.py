"""Eight streams at once, specd and its peers in turn.

    python -m benchmarks.serve --model smollm2-135m --llama-server BINARY

All streams of a contender start together, with different prompts of one length; the figure is all
tokens over the time from the first call to the last token. The last line is one JSON document. See
docs/benchmarks.md.
"""

from __future__ import annotations

import sys

from benchmarks.race import main, parser_of

if __name__ == "__main__":
    sys.exit(main("serve", parser_of(__doc__, streams=8)))
