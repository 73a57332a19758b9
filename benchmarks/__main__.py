"""python -m benchmarks: Ctrl-C is one line, while torch is imported too."""

import sys

try:
    from benchmarks.command import main

    sys.exit(main())
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    sys.exit(130)
