"""Words and phones from speech: audio, features, corpora, training, decoding."""

import sys
from importlib.util import find_spec

if find_spec("linattn_lab") is None:
    advice = f"{sys.argv[0].rpartition('/')[0] or '.'}/README.md says how to install it"
    sys.exit(f"{sys.argv[0]}: expected the package linattn_lab, got none installed; {advice}.")
