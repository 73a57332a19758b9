"""python -m benchmarks. Ctrl-C prints one line, also while torch is imported."""

import sys

try:
    from benchmarks.command import main

    sys.exit(main())
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    sys.exit(130)
