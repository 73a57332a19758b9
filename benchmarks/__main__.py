"""python -m benchmarks."""

import linattn_lab.startup  # noqa: F401  (before torch)
from benchmarks import command
from linattn_lab.script import parse_flags, run_script

if __name__ == "__main__":
    run_script(lambda: command.main(parse_flags(command.Flags, description=command.__doc__)))
